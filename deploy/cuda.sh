#!/usr/bin/env bash
# Adds NVIDIA's compiler and the CUDA simulator to the environment in $1.  No GPU is needed.
set -euo pipefail
. "${0%/*}/say.sh"
venv=${1:-.venv}
lock=requirements/py$("$venv/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')-cuda.txt
say "the tests of GPU kernels need numba-cuda: installing $lock into $venv (0.5 GB on disk)"
"$venv/bin/pip" install -q --disable-pip-version-check -r "$lock"
