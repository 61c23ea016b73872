# shellcheck shell=bash
# Sourced by the scripts of this folder; it only defines functions and two variables.
#
#   root            the repository
#   restart_code    of a trainer that saved after SIGTERM (spade_jax.program.RESTART)

# shellcheck disable=SC2034 # both are read by those who source this
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck disable=SC2034
restart_code="${SPADE_RESTART_CODE:-75}"

fail() {
    printf 'error: %s\n' "$1" >&2
    exit "${2:-2}"
}

# need NAME MEANING ...: each variable must be set.
need() {
    while [ $# -gt 0 ]; do
        [ -n "${!1:-}" ] || fail "$1 is not set; export it: $2"
        shift 2
    done
}

# need_name VARIABLE: its value must be what Google Cloud and Kubernetes take as a name.
need_name() {
    [[ "${!1}" =~ ^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$ ]] ||
        fail "$1 is '${!1}' but must be at most 63 of a-z, 0-9 and '-', the first a letter, the last no '-'"
}

# step WHAT COMMAND...: run it; if it fails, say what failed and exit with its code.
step() {
    local what="$1" code=0
    shift
    "$@" || code=$?
    [ "$code" = 0 ] || fail "$what failed with exit code $code, see above" "$code"
}

# The arguments as words for a shell, which takes them apart as they were.
quoted() {
    local words=
    [ $# = 0 ] || printf -v words ' %q' "$@"
    printf '%s' "${words# }"
}

# Whether an exit code asks for another start: saved after SIGTERM, or ended by SIGTERM itself.
asks_again() { [ "$1" = "$restart_code" ] || [ "$1" = 143 ]; }

# Whether a host was killed, or aborted by JAX since another one was.
lost_host() { [ "$1" = 137 ] || [ "$1" = 134 ]; }
