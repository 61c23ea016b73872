#!/usr/bin/env bash
# What pod.sh runs on every worker, in the repository there: bash launch/worker.sh COMMAND
#
#   setup            a Python that is new enough, and the package with the extra $SPADE_EXTRA
#   train [flags]    start the trainer, or find the one that runs, and follow it to its end
#   status           whether it runs, or with which exit code it ended
#   stop             let it save and end
#
# The trainer belongs to no ssh connection: where that breaks, `train` given again takes it up.
# logs/train.log has what it says. Every line printed here begins with the worker's name.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

logs="$root/logs"
worker="${JAX_PROCESS_ID:-${HOSTNAME##*-w-}}" # the hosts of a slice are called t1v-...-w-0 and so on

setup() {
    if ! (find_python) >/dev/null 2>&1; then # Ubuntu 22.04, on TPU VMs, has 3.10
        step "installing uv, which fetches a newer Python," python3 -m pip install --quiet --user uv
        step "fetching Python 3.12" python3 -m uv python install 3.12
        SPADE_PYTHON="$(python3 -m uv python find 3.12)"
    fi
    make_venv
    install "package${SPADE_EXTRA:+-$SPADE_EXTRA}" install_package
}

running() {
    [ -s "$logs/pid" ] && pgrep -f -F "$logs/pid" spade_jax.train >/dev/null
}

# In a session of its own: the shell notes its process group and, at the end, the exit code.
start() {
    rm -f "$logs/pid" "$logs/code"
    # shellcheck disable=SC2016 # for the inner shell
    setsid --fork bash -c 'trap : INT TERM; echo $$ >"$0/pid"; code=0; "$@" || code=$?; echo "$code" >"$0/code"' \
        "$logs" "$venv/bin/python" -m spade_jax.train "$@" >>"$logs/train.log" 2>&1 </dev/null
    until [ -s "$logs/pid" ]; do sleep 0.1; done
}

train() {
    [ -x "$venv/bin/python" ] || fail "$venv is not there; run setup first"
    mkdir -p "$logs"
    touch "$logs/train.log"
    local from
    from=$(($(wc -c <"$logs/train.log") + 1))
    if running; then echo "the trainer is running already; following it"; else start "$@"; fi
    tail -c "+$from" -f --pid="$(cat "$logs/pid")" "$logs/train.log"
    [ -s "$logs/code" ] || fail "the trainer was killed with all its session" 137
    return "$(cat "$logs/code")"
}

status() {
    if running; then echo "running"; elif [ -s "$logs/code" ]; then
        echo "ended with exit code $(cat "$logs/code")"
    else echo "not running"; fi
}

stop() {
    running || fail "no trainer is running" 1
    kill -INT -- "-$(cat "$logs/pid")"
}

case "${1:-}" in
    setup | train | status | stop) "$@" 2>&1 | sed -u "s/^/[$worker] /" ;;
    *) fail "unknown command '${1:-}'; one of: setup, train, status, stop" ;;
esac
