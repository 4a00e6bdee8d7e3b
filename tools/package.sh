#!/usr/bin/env bash
# Builds the Debian packages: sluice, sluice-lab, libsluice1, libsluice-dev and python3-sluice, in build/packages.
#
#   tools/package.sh          install build dependencies (tools/setup.sh), build, and list the packages
#
# Packages built on Debian 12 also install on Debian 13 and Ubuntu 24.04; see docs/operations.md.
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
  '') ;;
  -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "package: unknown option '$1'; allowed: --help" >&2; exit 2 ;;
esac

cd "$repo"
tools/setup.sh --packages
mkdir -p build/packages
rm -f build/packages/*.deb
log=build/packages/package.log
# step WORDS COMMAND...: runs a command and shows the end of its output if it fails.
step() {
  local what=$1
  shift
  echo "package: $what"
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "package: $what: failed" >&2; exit 1; }
}
step "configuring" cmake --preset package
step "building (a few minutes the first time)" cmake --build --preset package
step "packing" cpack --config build/package/CPackConfig.cmake
rm -rf build/packages/_CPack_Packages
echo "package: built in build/packages:"
for package in build/packages/*.deb; do
  printf '  %-40s %7s KiB\n' "${package##*/}" $(($(stat -c %s "$package") / 1024))
done
