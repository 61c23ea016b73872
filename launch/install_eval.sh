#!/usr/bin/env bash
# All that the evaluation suites need of PyPI, into the same virtual environment as local.sh.
#
#   bash launch/install_eval.sh
#
# gem-llm and bfcl-eval pin other releases than this project's, so they come without what they
# depend on; the suites need nothing of it that the others do not bring.
#
# SPADE_VENV and SPADE_PYTHON as in local.sh.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

install_suites() {
    pip_install --editable "${root}[eval]" textarena==0.7.4
    pip_install --no-deps gem-llm==0.1.0 bfcl-eval==2026.3.23
}

make_venv
install eval install_suites
"$venv/bin/python" -c 'from spade_jax.evals import bfcl; bfcl.installed()'
echo "The evaluation suites are installed in $venv"
