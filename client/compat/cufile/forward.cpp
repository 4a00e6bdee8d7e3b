// SPDX-License-Identifier: BSD-2-Clause
// Functions for the driver, parameters, statistics and versions. NVIDIA's library answers them if
// there is one.
#include <algorithm>
#include <atomic>

#include "client/compat/cufile/api.hpp"
#include "client/compat/cufile/errors.hpp"
#include "client/compat/cufile/real.hpp"

namespace sluice::dropin {
namespace {

RealFunction<CUfileError_t()> g_real_open("cuFileDriverOpen");
RealFunction<CUfileError_t()> g_real_close("cuFileDriverClose");
RealFunction<CUfileError_t()> g_real_close_v2("cuFileDriverClose_v2");
RealFunction<long()> g_real_use_count("cuFileUseCount");
RealFunction<CUfileError_t(CUfileDrvProps_t*)> g_real_properties("cuFileDriverGetProperties");
RealFunction<CUfileError_t(int*)> g_real_version("cuFileGetVersion");

// The version of the newest cufile.h whose functions we export.
constexpr int kVersion = 1190;

// How often the program has opened the driver, and how many of these calls succeeded in NVIDIA's
// library.
std::atomic<long> g_opens{0};
std::atomic<long> g_real_opens{0};

CUfileError_t close_driver(RealFunction<CUfileError_t()>& real) {
  if (Real::is_calling()) return real ? real() : result(CU_FILE_DRIVER_NOT_INITIALIZED);
  long opens = g_opens;
  while (opens > 0 && !g_opens.compare_exchange_weak(opens, opens - 1)) {
  }
  long real_opens = g_real_opens;
  while (real_opens > 0 && !g_real_opens.compare_exchange_weak(real_opens, real_opens - 1)) {
  }
  // NVIDIA's library may have opened its driver by itself, at the first file.
  const bool is_open_there = real_opens > 0 || (opens == 0 && real);
  if (is_open_there && real) return real();
  return result(opens > 0 ? CU_FILE_SUCCESS : CU_FILE_DRIVER_NOT_INITIALIZED);
}

// The properties of a machine without NVIDIA's storage driver. Sizes are in KiB, with NVIDIA's
// defaults.
CUfileDrvProps_t own_properties() {
  constexpr unsigned kAllowCompatMode = 1u << 1;
  constexpr unsigned kBatches = 1u << 1, kStreams = 1u << 2, kParallel = 1u << 3;
  CUfileDrvProps_t properties{};
  properties.nvfs.poll_thresh_size = 4;
  properties.nvfs.max_direct_io_size = 16384;
  properties.nvfs.dcontrolflags = kAllowCompatMode;
  properties.fflags = kBatches | kStreams | kParallel;
  properties.max_device_cache_size = 131072;
  properties.per_buffer_cache_size = 1024;
  properties.max_device_pinned_mem_size = 33554432;
  properties.max_batch_io_size = 128;
  return properties;
}

}  // namespace

// Files of a mount work without NVIDIA's driver, so its absence is not an error here. It is
// reported when other files are registered.
CUFILE_API CUfileError_t cuFileDriverOpen() {
  return guarded(kFailed, [] {
    const CUfileError_t error =
        g_real_open ? g_real_open() : result(CU_FILE_DRIVER_NOT_INITIALIZED);
    if (Real::is_calling() || error.err == CU_FILE_DRIVER_ALREADY_OPEN) return error;
    ++g_opens;
    if (error.err == CU_FILE_SUCCESS) ++g_real_opens;
    return result(CU_FILE_SUCCESS);
  });
}

CUFILE_API CUfileError_t cuFileDriverClose() {
  return guarded(kFailed, [] { return close_driver(g_real_close); });
}

CUFILE_API CUfileError_t cuFileDriverClose_v2() {
  return guarded(kFailed, [] { return close_driver(g_real_close_v2); });
}

CUFILE_API long cuFileUseCount() {
  return guarded(
      0L, [] { return std::max(g_opens.load(), g_real_use_count ? g_real_use_count() : 0L); });
}

CUFILE_API CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties) {
  return guarded(kFailed, [&] {
    if (properties == nullptr) return result(CU_FILE_INVALID_VALUE);
    if (g_real_properties && g_real_properties(properties).err == CU_FILE_SUCCESS) {
      return result(CU_FILE_SUCCESS);
    }
    *properties = own_properties();
    return result(CU_FILE_SUCCESS);
  });
}

CUFILE_API CUfileError_t cuFileGetVersion(int* version) {
  return guarded(kFailed, [&] {
    if (version == nullptr) return result(CU_FILE_INVALID_VALUE);
    if (g_real_version) return g_real_version(version);
    *version = kVersion;
    return result(CU_FILE_SUCCESS);
  });
}

// All other functions are passed on. Without NVIDIA's library, or if it is too old, they return an
// error. Structures whose content we do not need are declared as void.
#define FORWARD(name, parameters, arguments)                                      \
  CUFILE_API CUfileError_t name parameters {                                      \
    static constinit RealFunction<CUfileError_t parameters> s_real(#name);        \
    return guarded(kFailed, [&] {                                                 \
      if (s_real) return s_real arguments;                                        \
      return result(Real::library() == nullptr ? CU_FILE_DRIVER_NOT_INITIALIZED   \
                                               : CU_FILE_PLATFORM_NOT_SUPPORTED); \
    });                                                                           \
  }

FORWARD(cuFileDriverSetPollMode, (bool poll, std::size_t threshold), (poll, threshold))
FORWARD(cuFileDriverSetMaxDirectIOSize, (std::size_t size), (size))
FORWARD(cuFileDriverSetMaxCacheSize, (std::size_t size), (size))
FORWARD(cuFileDriverSetMaxPinnedMemSize, (std::size_t size), (size))
FORWARD(cuFileDriverGetP2PFlags, (int which, int* flags), (which, flags))
FORWARD(cuFileDriverSetP2PFlags, (int which, int flags), (which, flags))
FORWARD(cuFileExportPCIeTopology, (const char* path), (path))
FORWARD(cuFileGetBARSizeInKB, (int gpu, std::size_t* size), (gpu, size))
FORWARD(cuFileGetParameterSizeT, (int which, std::size_t* value), (which, value))
FORWARD(cuFileGetParameterBool, (int which, bool* value), (which, value))
FORWARD(cuFileGetParameterString, (int which, char* value, int size), (which, value, size))
FORWARD(cuFileGetParameterMinMaxValue, (int which, std::size_t* least, std::size_t* most),
        (which, least, most))
FORWARD(cuFileSetParameterSizeT, (int which, std::size_t value), (which, value))
FORWARD(cuFileSetParameterBool, (int which, bool value), (which, value))
FORWARD(cuFileSetParameterString, (int which, const char* value), (which, value))
FORWARD(cuFileGetParameterPosixPoolSlabArray,
        (std::size_t * sizes, std::size_t* counts, int length), (sizes, counts, length))
FORWARD(cuFileSetParameterPosixPoolSlabArray,
        (const std::size_t* sizes, const std::size_t* counts, int length), (sizes, counts, length))
FORWARD(cuFileGetParameterGpuBounceBufferSlabArray,
        (std::size_t * sizes, std::size_t* counts, int length), (sizes, counts, length))
FORWARD(cuFileSetParameterGpuBounceBufferSlabArray,
        (const std::size_t* sizes, const std::size_t* counts, int length), (sizes, counts, length))
FORWARD(cuFileSetStatsLevel, (int level), (level))
FORWARD(cuFileGetStatsLevel, (int* level), (level))
FORWARD(cuFileStatsStart, (), ())
FORWARD(cuFileStatsStop, (), ())
FORWARD(cuFileStatsReset, (), ())
FORWARD(cuFileGetStatsL1, (void* statistics), (statistics))
FORWARD(cuFileGetStatsL2, (void* statistics), (statistics))
FORWARD(cuFileGetStatsL3, (void* statistics), (statistics))

}  // namespace sluice::dropin
