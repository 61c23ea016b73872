#!/usr/bin/env bash
# A run on a TPU of its own, in one command: bash launch/tpu_vm.sh [flags of the trainer]
#
# Creates the TPU, sets it up, trains, makes it anew after a preemption, and deletes it at the end,
# also after a failure. Ctrl-C leaves the TPU and its run alone; the same command goes on with it.
#
# Variables are those of pod.sh and restart.sh, with SPADE_TPU=v6e-8 (one VM) where none is named.
# SPADE_KEEP=1    do not delete; then the workdir may lie on the TPU's own disk

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=shell.sh
. "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

export SPADE_TPU="${SPADE_TPU:-v6e-8}"
need SPADE_POD "a name for the TPU" SPADE_ZONE "the zone of the TPU, such as us-east5-a"
need_name SPADE_POD
if [ "${SPADE_KEEP:-0}" != 1 ]; then
    case " $* " in
        *" --workdir="*://* | *" --workdir "*://*) ;;
        *)
            fail "the TPU and its disk are deleted at the end; give --workdir=gs://BUCKET/FOLDER, or keep them with SPADE_KEEP=1"
            ;;
    esac
fi

code=0
bash "$root/launch/restart.sh" bash "$root/launch/pod.sh" run "$@" || code=$?
if [ "$code" = 130 ] || [ "$code" = 143 ] || [ "${SPADE_KEEP:-0}" = 1 ]; then
    echo "$SPADE_POD is kept; bash launch/pod.sh delete deletes it" >&2
else
    bash "$root/launch/pod.sh" delete || [ "$code" != 0 ] || code=1
fi
exit "$code"
