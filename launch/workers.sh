# shellcheck shell=bash
# Sourced by pod.sh: what it does on the workers of a TPU, in ~/spade_jax on each.

# shellcheck source-path=SCRIPTDIR source=tpu.sh
. "$(dirname "${BASH_SOURCE[0]}")/tpu.sh"

FILES=(LICENSE README.md configs launch pyproject.toml setup.py spade_jax)
read -ra ssh_flags <<<"${SPADE_SSH_FLAGS:-}"

# on WORKER LINE: run a line of shell in the repository there, with the variables of SPADE_PASS.
on() {
    local line="mkdir -p spade_jax && cd spade_jax && " name
    for name in ${SPADE_PASS:-}; do line+="export $name=$(quoted "${!name:-}") && "; done
    tpus tpu-vm ssh "$SPADE_POD" "--worker=$1" "--command=$line$2" ${ssh_flags[@]+"${ssh_flags[@]}"}
}

setup() {
    local folder
    folder="$(mktemp -d)"
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf $(quoted "$folder")" EXIT
    step "packing the code" tar -czf "$folder/spade_jax.tar.gz" --exclude=__pycache__ -C "$root" "${FILES[@]}"
    step "copying the code to $SPADE_POD" tpus tpu-vm scp \
        "$folder/spade_jax.tar.gz" "$SPADE_POD:" --worker=all ${ssh_flags[@]+"${ssh_flags[@]}"}
    step "installing on $SPADE_POD" on all \
        "rm -f .ready && tar -xzf ../spade_jax.tar.gz && SPADE_EXTRA=tpu,gcs bash launch/worker.sh setup"
    step "SPADE_PREPARE on $SPADE_POD" on all "eval $(quoted "${SPADE_PREPARE:-true}") && touch .ready"
}

# Print lines, those that begin with [WORKER] also into WORKER.log in the folder.
split() {
    local line
    mkdir -p "$1"
    while IFS= read -r line; do
        printf '%s\n' "$line"
        [[ "$line" =~ ^\[([A-Za-z0-9._-]+)\]\ (.*) ]] || continue
        printf '%s\n' "${BASH_REMATCH[2]}" >>"$1/${BASH_REMATCH[1]}.log"
    done
}

train() {
    local code=0 state
    on all "bash launch/worker.sh train $(quoted "$@")" 2>&1 | split "${SPADE_LOGS:-$root/runs/logs}/$SPADE_POD" || code=$?
    case "$code" in 0 | 2 | 130) return "$code" ;; esac
    ! asks_again "$code" || return "$code"
    state="$(tpu_state)"
    [ "$state" = READY ] || fail "$SPADE_POD is ${state:-gone}, which ended the trainer" "$restart_code"
    fail "the trainer on $SPADE_POD failed with exit code $code, see above" "$code"
}
