#!/bin/sh
# Create the virtual environment $1 and install FedPref with everything a laptop needs.
#
# Without an NVIDIA GPU a CPU build of torch is preferred: the default build for Linux brings
# gigabytes of CUDA. FEDPREF_TORCH_INDEX names an index that has the CPU build, if yours does not.
set -eu
venv=${1:?usage: install.sh VENV}
python=${PYTHON:-python3}
torch=2.13.0

fail() { printf 'fedpref: %s\n' "$*" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 ||
  fail "no '$python' on the PATH. Install Python 3.11 or newer, or name one: make demo PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" -V) is too old. FedPref needs Python 3.11 or newer; name one: make demo PYTHON=python3.12"
if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
  rm -rf "$venv"
  "$python" -m venv "$venv" >/dev/null ||
    fail "'$python -m venv' failed. On Debian and Ubuntu install the package python3-venv."
fi
pip="$venv/bin/python -m pip --disable-pip-version-check --quiet"

echo "Installing FedPref into $venv (once, some minutes) …"
if ! "$venv/bin/python" -c 'import torch' >/dev/null 2>&1; then
  echo "… torch"
  if [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    $pip install ${FEDPREF_TORCH_INDEX:+--extra-index-url "$FEDPREF_TORCH_INDEX"} "torch==$torch+cpu" 2>/dev/null || {
      echo "No CPU build of torch found; taking the default build, which is several GB."
      echo "To avoid that, interrupt and set FEDPREF_TORCH_INDEX to an index of CPU builds (see pytorch's website)."
      $pip install "torch==$torch"
    }
  else
    $pip install ${FEDPREF_TORCH_INDEX:+--extra-index-url "$FEDPREF_TORCH_INDEX"} "torch>=$torch"
  fi
fi
echo "… Flower, transformers and the rest"
$pip install --editable '.[dev]' ||
  fail "the installation failed; the lines above say why. A package index must be reachable."
