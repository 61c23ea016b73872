#!/usr/bin/env bash
# Packages of the evaluation suites that pin other releases than this project's, without their
# dependencies, into the same virtual environment as local.sh.
#
#   bash launch/install_eval.sh
#
# bfcl-eval: data, simulators and converters of the suites bfcl_*. Of what it depends on, they need
# mpmath alone.
#
# SPADE_VENV and SPADE_PYTHON as in local.sh.

set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

install_package() {
    pip_install --editable "$root"
}

install_suites() {
    pip_install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0
}

make_venv
install package install_package
install eval install_suites
"$venv/bin/python" -c 'from spade_jax.evals import bfcl; bfcl.installed()'
echo "The evaluation packages are installed in $venv"
