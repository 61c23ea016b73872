#!/usr/bin/env bash
# A run on GPUs of a SLURM cluster, a process for each node: bash launch/slurm.sh [flags of the trainer]
#
# Installs the package where it is missing, then submits slurm_job.sh. The repository and the workdir
# must lie on disks that all nodes share. scancel --signal=INT JOB saves and ends; with the signal
# TERM, which SLURM sends before it preempts the job and SPADE_GRACE seconds before the end of its
# time, the job saves and is queued again. README.md beside this file has the variables.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

need SPADE_GPUS "GPUs of a node" SPADE_TIME "the time limit of the job, such as 24:00:00"
[[ "$SPADE_GPUS" =~ ^[1-9][0-9]*$ ]] || fail "SPADE_GPUS is '$SPADE_GPUS' but must be a number"
command -v sbatch >/dev/null || fail "sbatch is not on the PATH; run this where jobs are submitted"
export SPADE_EXTRA="${SPADE_EXTRA:-gpu}"
make_venv
install "package-$SPADE_EXTRA" install_package

logs="${SPADE_LOGS:-$root/runs/logs}"
mkdir -p "$logs"
read -ra more <<<"${SPADE_SBATCH:-}"
export SPADE_ROOT="$root" SPADE_LOGS="$logs"
exec sbatch \
    "--job-name=${SPADE_JOB:-spade_jax}" \
    "--nodes=${SPADE_NODES:-1}" --ntasks-per-node=1 \
    "--gpus-per-node=$SPADE_GPUS" "--cpus-per-task=${SPADE_CPUS:-16}" \
    "--time=$SPADE_TIME" "--signal=TERM@${SPADE_GRACE:-600}" \
    --requeue --open-mode=append "--output=$logs/%x-%j.log" \
    ${more[@]+"${more[@]}"} \
    "$root/launch/slurm_job.sh" "$@"
