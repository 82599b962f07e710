#!/usr/bin/env bash
# Makes a container image of a package on a fresh Debian, and writes it as an OCI archive beside it.
#
#   deploy/image.sh build/edged_VERSION_amd64.deb
#
# As root, with debootstrap and podman or docker.  SUITE chooses the Debian, bookworm by default.  The
# image has the daemon as its command, the state in the volume /var/lib/edged, and no systemd running.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/say.sh
package=$1 suite=${SUITE:-bookworm}
version=$(dpkg-deb -f "$package" Version) arch=$(dpkg-deb -f "$package" Architecture)
root=build/image/root archive=${package%.deb}.oci.tar

[ "$(id -u)" = 0 ] || { say "as root: sudo make image"; exit 1; }
need=
command -v debootstrap >/dev/null || need=debootstrap
command -v podman >/dev/null || command -v docker >/dev/null || need="$need podman"
if [ -n "$need" ]; then
  # shellcheck disable=SC2086
  if may_install; then install_packages "an image needs" $need
  else say "an image needs: sudo apt-get install $need"; exit 1; fi
fi
rm -rf "$root"
mkdir -p "$root"
debootstrap --arch="$arch" --variant=minbase --include=python3,systemd,adduser "$suite" "$root" \
  http://deb.debian.org/debian >build/image/debootstrap.log
install -m 644 "$package" "$root/edged.deb"
# systemd-tmpfiles needs /proc, which is mounted for this command only.
unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$1" dpkg -i /edged.deb' sh "$root"
chroot "$root" install -d -o edged -g edged -m 750 /run/edged/daemon
# An image's Python does not change: the environments of others stay out.
own=$(chroot "$root" /opt/edged/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
find "$root/opt/edged/lib" -mindepth 1 -maxdepth 1 ! -name "$own" -exec rm -rf {} +
rm -rf "$root/edged.deb" "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*

changes=(
  'CMD ["/opt/edged/bin/edged", "run", "--config", "/etc/edged/edged.toml"]'
  'USER edged' 'WORKDIR /var/lib/edged' 'VOLUME /var/lib/edged' 'STOPSIGNAL SIGTERM'
  'ENV HOME=/var/lib/edged' 'ENV NUMBA_CACHE_DIR=/var/cache/edged/numba'
  'ENV EDGED_CACHE=/var/cache/edged/expr' 'ENV EDGED_RUN__DOOR=/run/edged/daemon/door'
  'ENV EDGED_RUN__FILES=/var/lib/edged/files'
)
words=()
for change in "${changes[@]}"; do words+=(--change "$change"); done
name=edged:${version//+/-}
if command -v podman >/dev/null; then
  tar -C "$root" -c . | podman import "${words[@]}" - "$name" >/dev/null
  rm -f "$archive"
  podman save --quiet --format oci-archive -o "$archive" "$name" >/dev/null
else
  tar -C "$root" -c . | docker import "${words[@]}" - "$name" >/dev/null
  docker save -o "$archive" "$name"
fi
rm -rf "$root"
say "$name, $archive: $(du -h "$archive" | cut -f1)"
