#!/usr/bin/env bash
# library_test.sh LIBSLUICE LIBSLUICE_HF3FS SOURCE C_TEST EXAMPLE LOAD_EXAMPLE: checks which symbols the shared
# libraries export, that they print nothing, and that the examples work.
set -euo pipefail
library=$1 hf3fs=$2 source=$3 c_test=$4 example=$5 load_example=$6
failures=0
report() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

# exports LIBRARY PREFIX VERSION: exactly what the headers declare. Comments mention sluice_error() and others, so every
# name followed by a parenthesis must be declared.
exports() {
  local declared exported
  declared=$(grep -hoE "\b$2_[a-z0-9_]+\(" "$source"/client/include/sluice/*.h | tr -d '(' | grep -vx sluice_callback | sed "s/$/@@$3/" | sort -u)
  exported=$(nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | sort)
  [[ $exported == "$declared" ]] || report "exported and declared differ: $(diff <(echo "$exported") <(echo "$declared"))"
}
exports "$library" sluice SLUICE_1
exports "$hf3fs" hf3fs SLUICE_HF3FS_1
readelf -d "$library" | grep -q 'SONAME.*\[libsluice.so.1\]' || report "the SONAME is another one"
readelf -d "$library" | grep -q NODELETE || report "dlclose() would take its threads' code away"
if readelf -d "$library" | grep -E 'NEEDED.*(cuda|cufile|rocksdb|fuse|boost)'; then report "it needs more than it should"; fi

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
said=$("$c_test" "$directory/file" 2>&1) || report "the C program failed: $said"
[[ -z $said ]] || report "the library prints: $said"

head -c 100000 /dev/urandom >"$directory/file"
said=$("$example" "$directory/file" 2>&1) || report "the example failed: $said"
[[ $said == "100000 bytes to "* ]] || report "the example says: $said"
said=$("$example" "$directory/missing" 2>&1) && report "the example reads what is not there"
[[ $said == *"No such file"* ]] || report "the example says of a missing file: $said"

header='{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
{ printf "\\x$(printf %x ${#header})\\0\\0\\0\\0\\0\\0\\0"; printf %sdata "$header"; } >"$directory/model.safetensors"
said=$("$load_example" "$directory" 2>&1) || report "the example of loading failed: $said"
[[ $said == "4 bytes to "*U8*w ]] || report "the example of loading says: $said"
said=$("$load_example" "$directory/file" 2>&1) && report "the example loads what is no model"
[[ $said == *"is it a safetensors file"* ]] || report "the example of loading says of another file: $said"

for program in gpu_read load_model; do
  (($(wc -l <"$source/examples/$program.c") < 60)) || report "the example $program has grown"
done
((failures == 0))
