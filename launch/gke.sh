#!/usr/bin/env bash
# One or more TPU slices of a GKE cluster: bash launch/gke.sh COMMAND
#
#   manifest [flags]        print the JobSet of a run of the trainer with these flags
#   submit [flags]          give it to the cluster with kubectl
#   xpk [flags]             or let XPK make and submit one
#   status                  of the JobSet and its Pods
#   logs [SLICE [HOST]]     follow the log of a host (0 0)
#   delete                  delete it
#
# README.md beside this file has the variables. The image is built by launch/Dockerfile.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=shell.sh
. "$(dirname "${BASH_SOURCE[0]}")/shell.sh"
# shellcheck source-path=SCRIPTDIR source=jobset.sh
. "$(dirname "${BASH_SOURCE[0]}")/jobset.sh"

command="${1:-}"
[ $# = 0 ] || shift
of="jobset.sigs.k8s.io/jobset-name=${SPADE_JOB:-}"
case "$command" in
    manifest | submit | xpk | status | logs | delete) ;;
    *) fail "unknown command '$command'; one of: manifest, submit, xpk, status, logs, delete" ;;
esac
need SPADE_JOB "a name for the run"
need_name SPADE_JOB
case "$command" in
    manifest | submit)
        need SPADE_IMAGE "the image, built by launch/Dockerfile" \
            SPADE_ACCELERATOR "the node label of the TPU, such as tpu-v5p-slice" \
            SPADE_TOPOLOGY "the chips of a slice, such as 4x4x4"
        text="$(manifest "$@")"
        if [ "$command" = manifest ]; then
            printf '%s\n' "$text"
        else
            step "submitting $SPADE_JOB" kubectl apply --filename=- <<<"$text"
        fi
        ;;
    xpk)
        need SPADE_IMAGE "the image, built by launch/Dockerfile" SPADE_CLUSTER "the cluster" \
            SPADE_ZONE "its zone" SPADE_PROJECT "its project" \
            SPADE_TPU "the accelerator type, such as v5p-128"
        step "submitting $SPADE_JOB" xpk workload create "--workload=$SPADE_JOB" \
            "--cluster=$SPADE_CLUSTER" "--zone=$SPADE_ZONE" "--project=$SPADE_PROJECT" \
            "--tpu-type=$SPADE_TPU" "--num-slices=${SPADE_SLICES:-1}" \
            "--docker-image=$SPADE_IMAGE" "--max-restarts=${SPADE_RESTARTS:-20}" "--restart-on-exit-codes=$restart_code" \
            "--termination-grace-period-seconds=${SPADE_GRACE:-300}" \
            "--command=${SPADE_PREPARE:+$SPADE_PREPARE && }python -m spade_jax.train $(quoted "$@")"
        ;;
    status) step "asking the cluster" kubectl get jobsets,pods "--selector=$of" ;;
    logs)
        host="jobset.sigs.k8s.io/job-index=${1:-0},batch.kubernetes.io/job-completion-index=${2:-0}"
        step "following the log" kubectl logs --follow --tail=100 "--selector=$of,$host"
        ;;
    delete) step "deleting $SPADE_JOB" kubectl delete jobset "$SPADE_JOB" ;;
esac
