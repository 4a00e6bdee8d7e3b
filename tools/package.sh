#!/usr/bin/env bash
# Builds the Debian packages sluice, sluice-lab, libsluice1, libsluice-dev and python3-sluice, and wheels of the Python
# package that contain libsluice, in build/packages.
#
#   tools/package.sh           install build dependencies (tools/setup.sh), build, and list the packages
#   tools/package.sh --wheels  only the wheels
#
# Packages built on Debian 12 also install on Debian 13 and Ubuntu 24.04; see docs/operations.md. A wheel is built for each of
# x86_64 and aarch64 that there is a compiler for (package g++-aarch64-linux-gnu).
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
wheels_only=
case ${1:-} in
  '') ;;
  --wheels) wheels_only=1 ;;
  -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "package: unknown option '$1'; allowed: --wheels, --help" >&2; exit 2 ;;
esac

cd "$repo"
tools/setup.sh --packages
mkdir -p build/packages
log=build/packages/package.log
# step WORDS COMMAND...: runs a command and shows the end of its output if it fails.
step() {
  local what=$1
  shift
  echo "package: $what"
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "package: $what: failed" >&2; exit 1; }
}
if [[ ! $wheels_only ]]; then
  rm -f build/packages/*.deb
  step "configuring" cmake --preset package
  step "building (a few minutes the first time)" cmake --build --preset package
  step "packing" cpack --config build/package/CPackConfig.cmake
  rm -rf build/packages/_CPack_Packages
fi
rm -f build/packages/*.whl
for architecture in x86_64 aarch64; do
  command -v "$architecture-linux-gnu-g++" >/dev/null || { echo "package: no wheel for $architecture: there is no compiler for it"; continue; }
  step "configuring the wheel for $architecture" cmake --preset "wheel-$architecture"
  step "building the wheel for $architecture" cmake --build --preset "wheel-$architecture"
  step "packing the wheel for $architecture" packaging/wheel.py "build/wheel-$architecture/lib/libsluice.so.1" build/packages
done
echo "package: built in build/packages:"
shopt -s nullglob
for package in build/packages/*.{deb,whl}; do
  printf '  %-55s %7s KiB\n' "${package##*/}" $(($(stat -c %s "$package") / 1024))
done
