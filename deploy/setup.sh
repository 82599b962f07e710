#!/usr/bin/env bash
# Makes the environment in $1 from the lock file of the Python that runs it, and compiles the kernels.
# PYTHON chooses another interpreter than python3.
set -euo pipefail
. "${0%/*}/say.sh"
venv=${1:-.venv}
python=${PYTHON:-python3}

if ! command -v "$python" >/dev/null; then
  say "Python 3.10 or newer is needed: sudo apt-get install python3 python3-venv"; exit 1
fi
version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
if [ ! -f "requirements/py$version.txt" ]; then
  say "no lock file for $("$python" --version); there are: $(ls requirements | tr '\n' ' ')"
  say "choose one of those with: make PYTHON=python3.11 ..."; exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  if may_install; then
    install_packages "the environment needs" python3-venv
  else
    say "the venv module is missing: sudo apt-get install python3-venv"; exit 1
  fi
fi
if [ ! -x "$venv/bin/python" ]; then
  say "making $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi
version=$("$venv/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
say "installing requirements/py$version.txt into $venv (1.4 GB on disk; some minutes the first time)"
"$venv/bin/pip" install -q --disable-pip-version-check -r "requirements/py$version.txt"
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps -e .
say "compiling the kernels (about a minute the first time)"
"$venv/bin/edged" compile
say "ready; what this machine can run, measure and set: $venv/bin/edged doctor"
