#!/usr/bin/env bash
# Java 17 or newer for Spark.  A missing one is installed as root on Debian and its kin; otherwise
# the script names the command that installs it and fails.
set -euo pipefail
. "${0%/*}/say.sh"

[ "$(java_major)" -ge 17 ] && exit 0
if may_install; then
  install_packages "Spark needs Java 17 or newer," "$(java_package)"
  [ "$(java_major)" -ge 17 ] && exit 0
  say "JAVA_HOME or the PATH still has an older Java: $(command -v java)"
elif command -v apt-get >/dev/null; then
  say "Spark needs Java 17 or newer: sudo apt-get install $(java_package)"
elif command -v dnf >/dev/null; then
  say "Spark needs Java 17 or newer: sudo dnf install java-17-openjdk-headless"
else
  say "Spark needs Java 17 or newer on the PATH or in JAVA_HOME"
fi
exit 1
