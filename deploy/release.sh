#!/usr/bin/env bash
# Makes a release in build/release: both packages, their SBOMs, SHA256SUMS and its signature.
#
#   deploy/release.sh .venv                  builds; each package twice, which must be the same bytes
#   GPG_KEY=FINGERPRINT deploy/release.sh    signs with gpg: SHA256SUMS.asc
#   MINISIGN_KEY=FILE deploy/release.sh      signs with minisign: SHA256SUMS.minisig
#
# The tree must be that of a commit, which a tag names.  A maintainer signs on the own machine.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/say.sh
venv=${1:-.venv}
release=build/release

if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
  say "the tree has changes: a release is built from a commit"; exit 1
fi
# One version and one time for all builds.
project=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("edged"))')
VERSION=${VERSION:-$project+$(git rev-list --count HEAD)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export VERSION SOURCE_DATE_EPOCH
rm -rf "$release"
mkdir -p "$release"
for arch in amd64 arm64; do
  package=$(ARCH=$arch deploy/debian/build.sh "$venv" | tail -n 1)
  mv "$package" "${package%.deb}.cdx.json" "$release/"
  if [ "${AGAIN:-yes}" = yes ]; then
    ARCH=$arch deploy/debian/build.sh "$venv" >/dev/null
    cmp "$package" "$release/${package##*/}"
    rm "$package" "${package%.deb}.cdx.json"
    say "${package##*/}: two builds are the same bytes"
  fi
done
cd "$release"
sha256sum -- *.deb *.cdx.json >SHA256SUMS
say "$PWD/SHA256SUMS"
if [ -n "${GPG_KEY:-}" ]; then
  gpg --batch --yes --local-user "$GPG_KEY" --armor --detach-sign SHA256SUMS
  gpg --verify SHA256SUMS.asc SHA256SUMS
elif [ -n "${MINISIGN_KEY:-}" ]; then
  minisign -S -s "$MINISIGN_KEY" -m SHA256SUMS -t "edged, commit $(git rev-parse --short HEAD)"
else
  say "not signed: give GPG_KEY or MINISIGN_KEY"
fi
