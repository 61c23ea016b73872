#!/usr/bin/env bash
# Lint, formatting and tests, in the same virtual environment as local.sh.
#
#   bash launch/test.sh              the fast tier
#   bash launch/test.sh --all        the slow tier as well
#   bash launch/test.sh -k regret    further arguments go to pytest
#
# SPADE_VENV and SPADE_PYTHON as in local.sh. Tests of tools that are not installed (shellcheck) are
# skipped by name; with SPADE_REQUIRE_TOOLS=1 they fail.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

TORCH=2.13.0

# On Linux the default index has PyTorch with several GB of CUDA libraries; the label +cpu names the
# build without, which is on PyTorch's own index and on mirrors of it.
install_torch() {
    if [ "$(uname -s)" != Linux ]; then
        pip_install "torch==$TORCH"
    else
        pip_install "torch==$TORCH+cpu" 2>/dev/null ||
            pip_install --extra-index-url https://download.pytorch.org/whl/cpu "torch==$TORCH+cpu"
    fi
}

install_tests() {
    install_torch && pip_install --editable "${root}[test]"
}

tier=(-m "not slow")
if [ "${1:-}" = --all ]; then
    tier=(-m "slow or not slow")
    shift
fi

make_venv
install tests install_tests
cd "$root"
"$venv/bin/python" -m ruff check .
"$venv/bin/python" -m ruff format --check .
exec "$venv/bin/python" -m pytest "${tier[@]}" "$@"
