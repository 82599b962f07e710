#!/usr/bin/env bash
# Builds the Debian package from the environment in $1: build/edged_VERSION_ARCH.deb.
# VERSION overrides the version; by default it is pyproject's and the number of commits.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${1:-.venv}
python=$venv/bin/python

project=$("$python" -c 'import importlib.metadata as m; print(m.version("edged"))')
commits=$(git rev-list --count HEAD 2>/dev/null || echo 0)
version=${VERSION:-$project+$commits}
arch=$(dpkg --print-architecture)
minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("$python" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')

root=build/deb
rm -rf "$root"
mkdir -p "$root/DEBIAN"
"$python" deploy/debian/tree.py "$root"
size=$(du -sk --exclude=DEBIAN "$root" | cut -f1)
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" \
    -e "s/@PYTHON@/$minor/" -e "s/@NEXT@/$next/" deploy/debian/control.in >"$root/DEBIAN/control"
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 755 "deploy/debian/$script" "$root/DEBIAN/"; done

package=build/edged_${version}_$arch.deb
# Level 1: half a gigabyte of machine code in two seconds; -19 would save a fifth of the bytes.
dpkg-deb -Zzstd -z1 --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
