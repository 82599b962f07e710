# Functions that the scripts of this folder share; sourced, not run.

say() { printf '\033[1medged:\033[0m %s\n' "$*" >&2; }

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# install_packages REASON PACKAGE...: says what and how much, then installs.
install_packages() {
  local reason=$1 size
  shift
  apt-get update -qq
  # --assume-no ends with 1, which is no error here
  size=$({ LC_ALL=C apt-get install --assume-no "$@" 2>/dev/null || true; } \
    | sed -n 's/^Need to get \(.*\) of archives.*/\1 to download/p
              s/^After this operation, \(.*\) of additional.*/\1 on disk/p' | paste -sd ';' | sed 's/;/, /')
  say "$reason $*: installing (${size:-size unknown})"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

# The major version of the Java that Spark would find; 0 where there is none.
java_major() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java found=
  if command -v "$java" >/dev/null; then
    found=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  fi
  echo "${found:-0}"
}

# The Debian package of a Java that Spark runs on, the oldest that this release has.
java_package() {
  local version
  if may_install; then apt-get update -qq; fi # a fresh machine knows no packages yet
  for version in 17 21 25; do
    # `apt-cache show` succeeds without output for a package that others only name
    if [ -n "$(apt-cache madison "openjdk-$version-jre-headless" 2>/dev/null)" ]; then
      echo "openjdk-$version-jre-headless"
      return
    fi
  done
  echo default-jre-headless
}
