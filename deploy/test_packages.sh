#!/usr/bin/env bash
# Programs that the tests need beside Python.  Missing ones are installed as root on Debian and its
# kin; otherwise the script names the one command that installs them and fails.
#
#   deploy/test_packages.sh          for `make test`
#   deploy/test_packages.sh system   for `make system`
#   deploy/test_packages.sh arm64    for `make system-arm64`
#   deploy/test_packages.sh faults   for `make faults`
set -euo pipefail
. "${0%/*}/say.sh"

need() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null || missing+=("$2")
}

missing=()
PATH=$PATH:/usr/sbin
if [ "${1:-}" = system ]; then
  need debootstrap debootstrap            # makes a Debian
  need systemd-nspawn systemd-container   # boots it
  need zstd zstd                          # keeps it for the next run
  need mkfs.ext4 e2fsprogs                # a file system that encrypts
elif [ "${1:-}" = arm64 ]; then
  need debootstrap debootstrap
  need qemu-aarch64-static qemu-user-static # runs its programs
  need zstd zstd
elif [ "${1:-}" = faults ]; then
  need strace strace         # makes system calls fail
  need mkfs.ext4 e2fsprogs   # a file system whose power is cut
  need losetup mount         # mounts it
  [ "$(java_major)" -ge 17 ] || missing+=("$(java_package)")
else
  need git git               # lists the tree's files
  need curl curl             # runs the commands of docs/api.md
  need zstd zstd             # compresses packages
  need openssl openssl       # makes the certificates of the TLS tests
  need mosquitto mosquitto   # the broker of external meters
  need chromium chromium     # opens the status page
  need promtool prometheus   # scrapes a daemon and checks the rules
  compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ||
    missing+=(postgresql)    # replicates its tables
  [ "$(java_major)" -ge 17 ] || missing+=("$(java_package)")
fi
[ "${#missing[@]}" = 0 ] && exit 0
if may_install; then
  install_packages "the tests need" "${missing[@]}"
elif command -v apt-get >/dev/null; then
  say "the tests need ${missing[*]}:"
  say "    sudo sh -c 'apt-get update && apt-get install -y ${missing[*]}'"
  exit 1
else
  say "the tests need these packages, by their Debian names: ${missing[*]}"
  exit 1
fi
