#!/usr/bin/env bash
# Runs a command again until it is done: bash launch/restart.sh COMMAND...
#
#   exit code 0        done
#   75, 143            it saved after SIGTERM, was ended by it, or lost its machine: start it again
#   2                  wrong usage, which another try would not mend: stop with it
#   130                stopped by the user: stop with it
#   any other          a failure: try again, but give up after so many in a row; with 134 JAX ends a
#                      host that misses another one, with 255 ssh does
#
# SPADE_FAILURES=3         failures in a row after which to give up
# SPADE_STEADY=3600        seconds of a start after which its failure is the first in a row
# SPADE_RESTART_WAIT=30    seconds before each restart
# SPADE_RESTART_CODE=75    another code for "saved, start me again"

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=shell.sh
. "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

limit="${SPADE_FAILURES:-3}"
steady="${SPADE_STEADY:-3600}"
wait="${SPADE_RESTART_WAIT:-30}"
[[ "$limit" =~ ^[1-9][0-9]*$ ]] || fail "SPADE_FAILURES is '$limit' but must be a positive number"
[[ "$steady" =~ ^[0-9]+$ ]] || fail "SPADE_STEADY is '$steady' but must be a number of seconds"
[[ "$wait" =~ ^[0-9]+$ ]] || fail "SPADE_RESTART_WAIT is '$wait' but must be a number of seconds"
[ $# -gt 0 ] || fail "name the command to run: bash launch/restart.sh COMMAND..."

stopped=
trap 'stopped=130' INT
trap 'stopped=143' TERM

failures=0
while true; do
    code=0
    begun=$SECONDS
    "$@" || code=$?
    [ -z "$stopped" ] || [ "$code" = 0 ] || fail "stopped by a signal; the same command goes on" "$stopped"
    case "$code" in 0 | 2 | 130) exit "$code" ;; esac
    if asks_again "$code"; then
        failures=0
        echo "ended with exit code $code, which asks for another start; restarting in $wait s" >&2
    else
        [ $((SECONDS - begun)) -lt "$steady" ] || failures=0
        failures=$((failures + 1))
        [ "$failures" -lt "$limit" ] ||
            fail "gave up after $failures failures in a row, the last with exit code $code" "$code"
        echo "failed with exit code $code, failure $failures of $limit in a row; restarting in $wait s" >&2
    fi
    sleep "$wait" || true
    [ -z "$stopped" ] || fail "stopped by a signal; the same command goes on" "$stopped"
done
