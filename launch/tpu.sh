# shellcheck shell=bash
# Sourced by pod.sh: a TPU VM or a slice of several, made, looked at and deleted with gcloud.

# shellcheck source-path=SCRIPTDIR source=shell.sh
. "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

tpus() { gcloud compute tpus "$@" "--zone=$SPADE_ZONE" ${SPADE_PROJECT:+"--project=$SPADE_PROJECT"}; }

queued() { [ "${SPADE_QUEUE:-0}" = 1 ]; }

# The state of the TPU, or of the request for it; empty if there is none.
tpu_state() {
    step "asking for the state of $SPADE_POD" tpus tpu-vm list \
        "--filter=name~(^|/)$SPADE_POD\$" "--format=value(state)"
}
request_state() {
    step "asking for the state of the request $SPADE_POD" tpus queued-resources list \
        "--filter=name~(^|/)$SPADE_POD\$" "--format=value(state.state)"
}

runtime() {
    case "$SPADE_TPU" in
        v4-*) echo tpu-ubuntu2204-base ;;
        v5litepod-*) echo v2-alpha-tpuv5-lite ;;
        v5p-*) echo v2-alpha-tpuv5 ;;
        v6e-*) echo v2-alpha-tpuv6e ;;
        *) fail "SPADE_TPU is '$SPADE_TPU' but must begin with v4-, v5litepod-, v5p- or v6e-; newer ones are for gke.sh" ;;
    esac
}

create() {
    need SPADE_TPU "the accelerator type, such as v5p-128"
    local version options
    version="${SPADE_RUNTIME:-$(runtime)}"
    read -ra options <<<"--accelerator-type=$SPADE_TPU ${SPADE_CREATE_FLAGS:-}"
    [ "${SPADE_SPOT:-0}" != 1 ] || options+=(--spot)
    if queued; then
        request "--runtime-version=$version" "${options[@]}"
    else
        step "creating $SPADE_POD" tpus tpu-vm create "$SPADE_POD" "--version=$version" "${options[@]}"
    fi
}

# Ask for the TPU, unless that is done already, and wait until it is there.
request() {
    local state
    state="$(request_state)"
    [ -n "$state" ] || step "requesting $SPADE_POD" tpus queued-resources create "$SPADE_POD" "--node-id=$SPADE_POD" "$@"
    while true; do
        state="$(request_state)"
        case "$state" in
            ACTIVE) return ;;
            "" | FAILED | SUSPEND*) fail "the request $SPADE_POD is ${state:-gone}; delete it and create it again" 1 ;;
        esac
        echo "the request $SPADE_POD is $state; asking again in ${SPADE_POLL:-60} s" >&2
        sleep "${SPADE_POLL:-60}"
    done
}

delete() {
    if queued; then
        step "deleting the request $SPADE_POD and its TPU" tpus queued-resources delete "$SPADE_POD" --force --quiet
    else
        step "deleting $SPADE_POD" tpus tpu-vm delete "$SPADE_POD" --quiet
    fi
}
