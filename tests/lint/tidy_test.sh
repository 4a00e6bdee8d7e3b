#!/usr/bin/env bash
# Runs a few checks of clang-tidy on the product except tools/, in about a minute on two cores. It checks the unity files of the
# preset `clang` (CMAKE_UNITY_BUILD), because most of the time is spent on headers that the files of a group share.
#
#   tidy_test.sh SCRATCH   a folder for the configured tree
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in clang-tidy clang++; do
  command -v $tool >/dev/null || { echo "$tool is not installed: tools/setup.sh --lint" >&2; exit 77; }
done
checks=bugprone-use-after-move,bugprone-dangling-handle,bugprone-undelegated-constructor,bugprone-unused-raii
checks+=,misc-unused-using-decls,performance-unnecessary-copy-initialization,performance-for-range-copy,modernize-use-override

scratch=${1:?a folder is needed}
cmake --preset clang -B "$scratch" -DSLUICE_TESTS=OFF >"$scratch.log" 2>&1 || { cat "$scratch.log" >&2; exit 1; }
folders='(base|metadata|tiering|gpu|fs|client)'
# kernels.cpp includes a header that the build generates.
mapfile -t sources < <(grep -oP '"file": "\K[^"]+' "$scratch/compile_commands.json" |
  grep -E "^($PWD|$scratch)/$folders/.*\.(cpp|cxx)\$" | grep -v '/gpu/kernels\.cpp$')
((${#sources[@]} > 20)) || { echo "only ${#sources[@]} groups of sources were found" >&2; exit 1; }
printf '%s\0' "${sources[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$scratch" --quiet --checks="-*,$checks" --warnings-as-errors='*' --header-filter="^$PWD/$folders/" 2>/dev/null
