#!/usr/bin/env bash
# The batch script that slurm.sh submits: one trainer on each node, and the queue again where they
# have saved and ask for it or one was killed, unless the job was cancelled. SLURM copies this file
# elsewhere, hence SPADE_ROOT.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
. "$SPADE_ROOT/launch/venv.sh"

trap : TERM # what SLURM sends to all; the trainers answer, and this waits for them
if [ "$SLURM_NNODES" -gt 1 ]; then
    nodes="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
    JAX_COORDINATOR_ADDRESS="${nodes%%$'\n'*}:${SPADE_PORT:-$((20000 + SLURM_JOB_ID % 20000))}"
    export JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES="$SLURM_NNODES"
fi

code=0
# shellcheck disable=SC2016 # for the inner shell
srun --kill-on-bad-exit=0 "--cpus-per-task=$SLURM_CPUS_PER_TASK" \
    "--output=$SPADE_LOGS/%x-%j-%t.log" --open-mode=append \
    bash -c 'export JAX_PROCESS_ID="$SLURM_PROCID"; exec "$@"' trainer \
    "$venv/bin/python" -m spade_jax.train "$@" || code=$?
again() {
    asks_again "$code" && return
    lost_host "$code" && [ "${SLURM_RESTART_COUNT:-0}" -lt "${SPADE_RESTARTS:-20}" ]
}
if again && [ "$(squeue --noheader --format=%T "--jobs=$SLURM_JOB_ID")" = RUNNING ]; then
    echo "ended with exit code $code; queueing job $SLURM_JOB_ID again"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
