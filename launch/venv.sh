# shellcheck shell=bash
# Sourced by the scripts that run Python here; it only defines functions and variables.
#
#   venv    the virtual environment: $SPADE_VENV, or .venv in the repository

# shellcheck source-path=SCRIPTDIR source=shell.sh
. "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

# shellcheck disable=SC2154 # root is of shell.sh
venv="${SPADE_VENV:-$root/.venv}"

# Print the first Python of version 3.11 or newer among $SPADE_PYTHON or the usual names.
find_python() {
    local candidate
    for candidate in ${SPADE_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer is on the PATH; install one, or name it with SPADE_PYTHON=/path/to/python3"
}

make_venv() {
    if [ -x "$venv/bin/python" ]; then
        "$venv/bin/python" -c '' 2>/dev/null ||
            fail "the virtual environment $venv is broken; delete that folder and run this again"
        return
    fi
    [ ! -e "$venv" ] || [ -z "$(ls -A "$venv")" ] ||
        fail "$venv exists but is no virtual environment; delete it, or set SPADE_VENV to another folder"
    local python
    python="$(find_python)"
    echo "Making a virtual environment in $venv"
    if ! "$python" -m venv "$venv" >/dev/null; then
        rm -rf "$venv"
        fail "$python cannot make virtual environments; install its venv module (Debian: apt-get install python3-venv)"
    fi
}

# install NAME COMMAND...: run COMMAND once for each content of setup.py, remembered as NAME.
install() {
    local stamp="$venv/.spade-$1" state
    state="$root $(cksum <"$root/setup.py")"
    [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$state" ] || return 0
    shift
    echo "Installing into $venv (a few minutes the first time)"
    "$@" || fail "the installation did not finish, see above; mend the cause and run this again" 1
    printf '%s\n' "$state" >"$stamp"
}

pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# The package with the extra $SPADE_EXTRA: tpu, gpu, or none for the CPU.
install_package() {
    pip_install --editable "$root${SPADE_EXTRA:+[$SPADE_EXTRA]}"
}
