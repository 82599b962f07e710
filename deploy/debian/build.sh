#!/usr/bin/env bash
# Builds the Debian package of an architecture: build/edged_VERSION_ARCH.deb.  $1 is an environment that
# runs the build; its Python and this machine's architecture do not matter.
#
#   ARCH     amd64 or arm64; by default this machine's
#   VERSION  one or more, a package each; by default pyproject's and the number of commits
#   PYTHONS  versions of Python that the package is for; by default all
#   LEVEL    of compression, 12 by default
#   TARGETS  processors that kernels are compiled for (edged compile --help); by default all of ARCH
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${1:-.venv}
python=$venv/bin/python
. deploy/say.sh

if ! command -v zstd >/dev/null; then
  if may_install; then install_packages "packages are compressed with" zstd
  else say "packages are compressed with zstd: sudo apt-get install zstd"; exit 1; fi
fi
if [ -z "${ARCH:-}" ]; then
  case $(uname -m) in
    aarch64 | arm64) ARCH=arm64 ;;
    *) ARCH=amd64 ;;
  esac
fi
if [ -z "${VERSION:-}" ]; then
  project=$("$python" -c 'import importlib.metadata as m; print(m.version("edged"))')
  VERSION=$project+$(git rev-list --count HEAD 2>/dev/null || echo 0)
fi
words=(--arch "$ARCH" --level "${LEVEL:-12}")
for version in $VERSION; do words+=(--version "$version"); done
for minor in ${PYTHONS:-}; do words+=(--python "$minor"); done
for target in ${TARGETS:-}; do words+=(--target "$target"); done
exec "$python" deploy/debian/build.py "${words[@]}"
