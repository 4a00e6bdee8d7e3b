#!/usr/bin/env bash
# Builds and runs the tests. About 13 minutes on two cores, most of it compiling; --full takes 40.
#
#   tools/test.sh             all tests on the release build
#   tools/test.sh --full      also unit and fault tests with asan and tsan, the lock checks of clang, clang-tidy, and MooseFS
#   tools/test.sh --quick     unit tests on the release build only
#   tools/test.sh --long      also the long tests (SLUICE_LONG=1)
#   tools/test.sh --packages  only the package tests: build, install and use them in fresh roots of this Debian and later ones
#   tools/test.sh -R REGEX    only tests whose name matches; can be combined with the other options
#
# Environment:
#   SLUICE_TEST_DIR   where tests mount and write (default a new temporary folder, removed at the end)
#   SLUICE_REQUIRE    what must not be skipped; as root with /dev/fuse this is "mount"
# The last line is "N passed, N failed, N skipped".
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
cd "$repo"
quick='' full='' packages='' filter=()
while (($#)); do
  case $1 in
    --quick) quick=1 ;;
    --full) full=1 ;;
    --long) export SLUICE_LONG=1 ;;
    --packages) packages=1 ;;
    -R) filter=(-R "${2:?test: -R needs a regular expression}"); shift ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "test: unknown option '$1'; allowed: --quick, --full, --long, --packages, -R REGEX, --help" >&2; exit 2 ;;
  esac
  shift
done

own_dir=
if [[ ! ${SLUICE_TEST_DIR:-} ]]; then
  SLUICE_TEST_DIR=$(mktemp -d -t sluice-test.XXXXXX)
  chmod 711 "$SLUICE_TEST_DIR" # some tests run programs as other users
  own_dir=1
fi
SLUICE_TEST_DIR=$(realpath -m "$SLUICE_TEST_DIR")
export SLUICE_TEST_DIR
mkdir -p "$SLUICE_TEST_DIR"
if [[ ! ${SLUICE_REQUIRE+set} ]] && ((EUID == 0)) && [[ -e /dev/fuse ]]; then export SLUICE_REQUIRE=mount; fi

# Unmounts everything below the test folder, the latest first, because mounts may be nested.
clear_mounts() {
  local target left=0
  while read -r target; do
    printf -v target '%b' "$target" # findmnt --raw writes a space as \x20
    [[ $target == "$SLUICE_TEST_DIR"/* ]] || continue
    left=$((left + 1))
    umount "$target" 2>/dev/null || umount -l "$target" || echo "test: cannot unmount $target" >&2
  done < <(findmnt --raw --noheadings --output TARGET | tac)
  # Loop devices with a backing file there that the unmount did not detach.
  losetup --noheadings --raw --list --output NAME,BACK-FILE 2>/dev/null |
    while read -r device file; do
      if [[ $file == "$SLUICE_TEST_DIR"/* ]]; then losetup -d "$device" || true; fi
    done
  return $((left > 0))
}

finish() {
  local code=$?
  trap - EXIT
  clear_mounts || echo "test: the tests left mounts behind; they are unmounted now" >&2
  if [[ $own_dir ]]; then rm -rf --one-file-system "$SLUICE_TEST_DIR"; fi
  exit $code
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
clear_mounts || echo "test: an earlier run had left mounts in $SLUICE_TEST_DIR; they are unmounted now" >&2

passed=0 failed=0 skipped=0

# Adds up the JUnit file of one ctest run.
tally() {
  local head
  head=$(grep -A 12 -m 1 '<testsuite' "$1" | tr '\n' ' ')
  field() { grep -oP "\\b$1=\"\\K[0-9]+" <<<"$head" || echo 0; }
  local tests failures disabled skips
  tests=$(field tests) failures=$(field failures) disabled=$(field disabled) skips=$(field skipped)
  failed=$((failed + failures))
  skipped=$((skipped + skips + disabled))
  passed=$((passed + tests - failures - skips - disabled))
}

# run PRESET [ctest arguments]: configures, builds and tests one preset.
run() {
  local preset=$1 started=$SECONDS report=$SLUICE_TEST_DIR/ctest-$1.xml
  shift
  echo "test: $preset: building"
  cmake --preset "$preset" -DSLUICE_TESTS=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >"$SLUICE_TEST_DIR/cmake.log" 2>&1 ||
    { tail -n 30 "$SLUICE_TEST_DIR/cmake.log" >&2; echo "test: $preset: cmake failed" >&2; failed=$((failed + 1)); return; }
  cmake --build --preset "$preset" >"$SLUICE_TEST_DIR/build.log" 2>&1 ||
    { grep -E -A 8 'error:|FAILED' "$SLUICE_TEST_DIR/build.log" | head -n 60 >&2; echo "test: $preset: the build failed" >&2
      failed=$((failed + 1)); return; }
  echo "test: $preset: built in $((SECONDS - started)) s"
  rm -f "$report"
  # ThreadSanitizer of gcc 12 does not start if the kernel randomizes more address bits than it supports.
  local launcher=()
  if [[ $preset == tsan ]] && setarch -R true 2>/dev/null; then launcher=(setarch -R); fi
  # Tests mostly wait, except with sanitizers, which need the CPU.
  local jobs=$(nproc)
  if [[ $preset == release ]]; then jobs=$((2 * jobs)); fi
  # Failing tests are counted below; the exit status of ctest is not needed.
  "${launcher[@]}" ctest --preset "$preset" -j "$jobs" --no-tests=ignore --output-junit "$report" "$@" "${filter[@]}" || true
  if [[ -s $report ]]; then tally "$report"; else failed=$((failed + 1)); fi
}

# Only for the warnings of the compiler: nothing of this build is run.
check_locks() {
  local started=$SECONDS
  echo "test: clang: building"
  if cmake --preset clang >"$SLUICE_TEST_DIR/cmake.log" 2>&1 &&
    cmake --build --preset clang >"$SLUICE_TEST_DIR/build.log" 2>&1; then
    passed=$((passed + 1))
    echo "test: clang: checked in $((SECONDS - started)) s"
  else
    grep -hE -A 8 'error:|Error' "$SLUICE_TEST_DIR"/{cmake,build}.log | head -n 60 >&2
    echo "test: clang: the code does not compile, or a lock check failed" >&2
    failed=$((failed + 1))
  fi
}

if [[ $packages ]]; then
  tools/setup.sh --packages
  code=0
  SLUICE_PACKAGES=1 tests/packaging/run.sh || code=$?
  case $code in
    0) passed=1 ;;
    77) skipped=1 ;;
    *) failed=1 ;;
  esac
  echo "$passed passed, $failed failed, $skipped skipped"
  exit $((failed > 0))
fi

if [[ $quick ]]; then
  tools/setup.sh
  run release -L unit
elif [[ $full ]]; then
  tools/setup.sh --browser --lint --engines
  run release
  check_locks
  run asan
  run tsan
else
  tools/setup.sh --browser
  run release -E lint_tidy_test -LE engine
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
