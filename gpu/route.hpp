// SPDX-License-Identifier: BSD-2-Clause
// Routes, which are the ways of bytes between a file and memory, and the reasons for choosing one.
// The numbers are part of the ABI (client/include/sluice/ioctl.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "client/include/sluice/ioctl.h"

namespace sluice {

enum class Route : std::uint32_t {
  Auto = SLUICE_ROUTE_AUTO,
  Gds = SLUICE_ROUTE_GDS,
  CuFile = SLUICE_ROUTE_CUFILE,
  Mapped = SLUICE_ROUTE_MAPPED,
  Staged = SLUICE_ROUTE_STAGED,
  Pageable = SLUICE_ROUTE_PAGEABLE,
  Host = SLUICE_ROUTE_HOST,
  Hbm = SLUICE_ROUTE_HBM,
};
inline constexpr std::uint32_t kRoutes = SLUICE_ROUTE_HBM + 1;

enum class Why : std::uint32_t {
  Asked = SLUICE_WHY_ASKED,
  Fastest = SLUICE_WHY_FASTEST,
  HostMemory = SLUICE_WHY_HOST_MEMORY,
  Small = SLUICE_WHY_SMALL,
  Cached = SLUICE_WHY_CACHED,
  NotCached = SLUICE_WHY_NOT_CACHED,
  Registered = SLUICE_WHY_REGISTERED,
  ReadOnce = SLUICE_WHY_READ_ONCE,
  Changed = SLUICE_WHY_CHANGED,
  NoMemoryLeft = SLUICE_WHY_NO_MEMORY_LEFT,
  NoDirectPath = SLUICE_WHY_NO_DIRECT_PATH,
  NoCuFile = SLUICE_WHY_NO_CUFILE,
  CuFileRefused = SLUICE_WHY_CUFILE_REFUSED,
  Writing = SLUICE_WHY_WRITING,
  NotPinned = SLUICE_WHY_NOT_PINNED,
  InHbm = SLUICE_WHY_IN_HBM,
  FillingHbm = SLUICE_WHY_FILLING_HBM,
};

// The name, such as "staged"; "?" for an unknown number.
std::string_view name_of(Route route);
std::optional<Route> route_by_name(std::string_view name);
// The reason in words, such as "registering pays off from the second read on".
std::string_view text_of(Why why);

// The result of a request.
struct Transfer {
  std::uint64_t bytes = 0;
  Route route = Route::Auto;
  Why why = Why::Asked;
  std::size_t left = 0;  // segments at the end that were not read, because it was cancelled
  std::uint64_t largest = 0;  // of a sum: the bytes of the part that route and why are from

  // Adds a part of the same request. Route and reason of the sum are those of its largest part, and
  // of equal ones the last.
  void add(const Transfer& part);
};

}  // namespace sluice
