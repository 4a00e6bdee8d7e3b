#!/usr/bin/env bash
# cufile_library_test.sh LIBCUFILE [CUFILE_H]: checks which symbols our libcufile exports, and that
# a process which preloads it without using it pays nothing. With NVIDIA's header: that every
# declared function is exported.
set -euo pipefail
library=$1 header=${2:-}
failures=0
report() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

wanted=$(sort <<'END'
cuFileBatchIOCancel
cuFileBatchIODestroy
cuFileBatchIOGetStatus
cuFileBatchIOSetUp
cuFileBatchIOSubmit
cuFileBufDeregister
cuFileBufRegister
cuFileDriverClose
cuFileDriverClose_v2
cuFileDriverGetP2PFlags
cuFileDriverGetProperties
cuFileDriverOpen
cuFileDriverSetMaxCacheSize
cuFileDriverSetMaxDirectIOSize
cuFileDriverSetMaxPinnedMemSize
cuFileDriverSetP2PFlags
cuFileDriverSetPollMode
cuFileExportPCIeTopology
cuFileGetBARSizeInKB
cuFileGetParameterBool
cuFileGetParameterGpuBounceBufferSlabArray
cuFileGetParameterMinMaxValue
cuFileGetParameterPosixPoolSlabArray
cuFileGetParameterSizeT
cuFileGetParameterString
cuFileGetStatsL1
cuFileGetStatsL2
cuFileGetStatsL3
cuFileGetStatsLevel
cuFileGetVersion
cuFileHandleDeregister
cuFileHandleRegister
cuFileRead
cuFileReadAsync
cuFileReadv
cuFileSetParameterBool
cuFileSetParameterGpuBounceBufferSlabArray
cuFileSetParameterPosixPoolSlabArray
cuFileSetParameterSizeT
cuFileSetParameterString
cuFileSetStatsLevel
cuFileStatsReset
cuFileStatsStart
cuFileStatsStop
cuFileStreamDeregister
cuFileStreamRegister
cuFileUseCount
cuFileWrite
cuFileWriteAsync
cuFileWritev
sluice_cufile_real
END
)
exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sort)
[[ $exported == "$wanted" ]] || report "exported are others: $(diff <(echo "$exported") <(echo "$wanted"))"
if [[ -n $header ]]; then
  declared=$(sed -E 's|//.*||; /^[[:space:]]*[/]?\*/d; /^#/d' "$header" | grep -oE '\bcuFile[A-Za-z0-9_]+ *\(' | tr -d ' (' | sort -u)
  missing=$(comm -13 <(echo "$exported") <(echo "$declared"))
  [[ -z $missing ]] || report "$header has more: $missing"
  (($(wc -l <<<"$declared") >= 25)) || report "$header was not understood"
fi
readelf -d "$library" | grep -q 'SONAME.*\[libcufile.so.0\]' || report "the SONAME is another one"
readelf -d "$library" | grep -q NODELETE || report "dlclose() would take its threads' code away"
readelf -d "$library" | grep -q 'RUNPATH.*\[$ORIGIN/\.\.\]' || report "libsluice is looked for elsewhere"
if readelf -V "$library" | grep -q 'Version definition'; then report "NVIDIA's symbols have no versions, ours have"; fi
# Preloaded, it comes first: libraries it needs would be chosen before those of the program.
if readelf -d "$library" | grep NEEDED | grep -vE '\[(libc\.so|libm\.so|ld-linux)'; then report "it needs more than it should"; fi

loaded=$(LD_PRELOAD=$library cat /proc/self/maps)
[[ $loaded == *libcufile.so.0* ]] || report "it is not preloaded"
if grep -E 'libsluice|libstdc\+\+|libcuda' <<<"$loaded"; then report "it brings libraries to a program that has no use for them"; fi
((failures == 0))
