#!/usr/bin/env bash
# A TPU VM or a pod slice: bash launch/pod.sh COMMAND
#
#   create          make it; with SPADE_QUEUE=1 request it, and wait
#   setup           copy the code to every worker, install it there, run SPADE_PREPARE there
#   train [flags]   the same command of the trainer on every worker, followed to its end
#   run [flags]     train, after create and setup where they are missing, as after a preemption
#   logs [WORKER]   follow the log of a worker (0)
#   status          of the TPU, and of the trainer on every worker
#   stop            let the trainers save and end
#   each COMMAND    run a command on every worker, in the repository there
#   delete          delete it
#
# SPADE_POD and SPADE_ZONE must be set, and SPADE_TPU to create; README.md beside this file has them
# all. Ctrl-C ends no trainer: `train` given again follows it. Exit codes are those of what was run.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=workers.sh
. "$(dirname "${BASH_SOURCE[0]}")/workers.sh"

# A TPU that is set up, unless it is there.
up() {
    local state
    state="$(tpu_state)"
    [ -n "$state" ] || ! queued || state="$(request_state)"
    case "$state" in
        READY)
            on all "test -e .ready" || setup
            return
            ;;
        "" | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) ;;
        PREEMPTED | TERMINATED | STOPPED | SUSPENDED | FAILED)
            echo "$SPADE_POD is $state; making it anew" >&2
            delete
            ;;
        *) fail "$SPADE_POD is $state and cannot be used now" "$restart_code" ;;
    esac
    create
    setup
}

command="${1:-}"
[ $# = 0 ] || shift
case "$command" in
    create | setup | train | run | logs | status | stop | each | delete) ;;
    *) fail "unknown command '$command'; one of: create, setup, train, run, logs, status, stop, each, delete" ;;
esac
need SPADE_POD "a name for the TPU" SPADE_ZONE "the zone of the TPU, such as us-east5-a"
need_name SPADE_POD
case "$command" in
    run)
        up
        train "$@"
        ;;
    logs) step "following the log" on "${1:-0}" "tail -n 100 -F logs/train.log" ;;
    status)
        tpu_state
        step "asking the workers" on all "bash launch/worker.sh status"
        ;;
    stop) step "stopping" on all "bash launch/worker.sh stop" ;;
    each) step "the command" on all "$(quoted "$@")" ;;
    *) "$command" "$@" ;;
esac
