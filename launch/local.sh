#!/usr/bin/env bash
# Self-play on this machine. Makes a virtual environment, installs the package into it, and runs
#
#   python -m spade_jax.train --config=tiny --workdir=runs/tiny "$@"
#
# Arguments given here come last, so they win. With --config=NAME the default workdir is runs/NAME.
# Interrupted with Ctrl-C, the same command goes on where it stopped.
#
# SPADE_VENV=DIR     another virtual environment than .venv
# SPADE_PYTHON=EXE   the Python to make it with
# SPADE_EXTRA=EXTRA  install for an accelerator: tpu or gpu
# SPADE_MALLOC=0     leave the C library's allocator as it is (see README.md beside this file)

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

# XLA's CPU client maps its temporaries afresh at each call; told to keep freed memory, glibc spares
# the page faults. Read at the start of a process, hence set here.
keep_freed_memory() {
    [ "${SPADE_MALLOC:-1}" != 0 ] || return 0
    getconf GNU_LIBC_VERSION >/dev/null 2>&1 || return 0
    export MALLOC_MMAP_MAX_=0
    export MALLOC_TRIM_THRESHOLD_=17179869184
    export MALLOC_TOP_PAD_=268435456
}

config=tiny
workdir_given=no
previous=
for argument in "$@"; do
    case "$previous" in --config | -config) config="$argument" ;; esac
    case "$argument" in
        --config=* | -config=*) config="${argument#*=}" ;;
        --workdir | -workdir | --workdir=* | -workdir=*) workdir_given=yes ;;
    esac
    previous="$argument"
done
if [ "$workdir_given" = no ]; then
    name="$(basename "$config")"
    name="${name/.py/}"
    set -- "--workdir=$root/runs/${name//[:,]/-}" "$@"
fi

make_venv
install "package${SPADE_EXTRA:+-$SPADE_EXTRA}" install_package
keep_freed_memory
exec "$venv/bin/python" -m spade_jax.train --config=tiny "$@"
