#!/usr/bin/env bash
# Makes sure that Spark finds Java 17 or newer; installs it where that is allowed.
set -euo pipefail

say() { printf '\033[1medged:\033[0m %s\n' "$*" >&2; }

major() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  command -v "$java" >/dev/null || { echo 0; return; }
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

found=$(major)
[ "${found:-0}" -ge 17 ] && exit 0
if command -v apt-get >/dev/null; then
  if [ "$(id -u)" = 0 ]; then
    say "Spark needs Java 17 or newer: installing it"
    apt-get update -qq
    apt-get install -y -qq openjdk-17-jre-headless 2>/dev/null \
      || apt-get install -y -qq openjdk-21-jre-headless 2>/dev/null \
      || apt-get install -y -qq default-jre-headless
    [ "$(major)" -ge 17 ] && exit 0
  fi
  say "Spark needs Java 17 or newer: sudo apt-get install openjdk-17-jre-headless"
elif command -v dnf >/dev/null; then
  say "Spark needs Java 17 or newer: sudo dnf install java-17-openjdk-headless"
else
  say "Spark needs Java 17 or newer on the PATH or in JAVA_HOME"
fi
exit 1
