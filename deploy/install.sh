#!/usr/bin/env bash
# Installs from the tree as the package does, with this machine's interpreter: for machines without
# dpkg or with another Python than Debian's.  $1 is the environment of `make setup`, $2 the root of an
# image, empty for this machine.  `deploy/install.sh --remove` removes it; state, configuration and
# users stay.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\033[1medged:\033[0m %s\n' "$*" >&2; }

if [ "$(id -u)" != 0 ]; then say "as root: sudo make install"; exit 1; fi
if dpkg-query -W edged >/dev/null 2>&1 && [ -z "${2:-}" ]; then
    say "the Debian package is installed: upgrade it with make deb and dpkg -i, or remove it first"
    exit 1
fi

if [ "${1:-}" = --remove ]; then
    sh deploy/debian/prerm remove
    rm -f /usr/lib/systemd/system/edged{,-api,-collector,-compact,-compile,-governor-helper}.service \
        /usr/lib/systemd/system/edged{,-governor-helper}.socket \
        /usr/lib/systemd/system/edged-compact.timer /usr/lib/sysusers.d/edged.conf \
        /usr/lib/tmpfiles.d/edged.conf /usr/lib/udev/rules.d/70-edged.rules /usr/bin/edged
    rm -rf /usr/share/doc/edged
    sh deploy/debian/postrm remove
    say "removed; /etc/edged, /var/lib/edged and the users edged and edged-collector are still there"
    exit 0
fi

venv=${1:-.venv} destination=${2:-}
tree=build/install
rm -rf "$tree"
"$venv/bin/python" deploy/debian/tree.py "$tree"
# The interpreter of the environment in place of Debian's.
interpreter=$("$venv/bin/python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
ln -sfn "$interpreter" "$tree/opt/edged/bin/python3"
sed -i "s|^home = .*|home = $(dirname "$interpreter")|" "$tree/opt/edged/pyvenv.cfg"
case $interpreter in
    /home/* | /root/*) say "warning: $interpreter is a person's: the daemon's user may not see it" ;;
esac
# Changed files in /etc stay.
if [ -e "$destination/etc/edged/edged.toml" ]; then rm "$tree/etc/edged/edged.toml"; fi
upgrade=
[ -e "$destination/opt/edged" ] && upgrade=yes
rm -rf "$destination/opt/edged"
tar -C "$tree" --owner=root --group=root -c . | tar -C "${destination:-/}" --no-overwrite-dir -x
rm -rf "$tree"
if [ -n "$destination" ]; then
    say "laid out in $destination; run deploy/debian/postinst configure in it"
else
    sh deploy/debian/postinst configure $upgrade
    say "installed; edged validate /etc/edged/edged.toml, systemctl status edged"
    say "what this machine can run, measure and set: edged doctor"
fi
