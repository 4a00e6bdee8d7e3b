// SPDX-License-Identifier: BSD-2-Clause
// Routes, which are the ways of bytes between a file and memory, the reasons for choosing one, and
// the choice: nothing else decides how bytes travel. The numbers are part of the ABI
// (client/include/sluice/ioctl.h).
//
// A route is a row of route_table(), and a file gpu/route_NAME.cpp with its RouteWay. Each says of
// a request whether it can be taken now. Some of these answers take time or have effects, such as
// registering the file, so choose_route() names the route to ask next until it knows enough.
//
// Threads: pure functions, values and constants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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
  std::size_t left = 0;       // segments at the end that were not read, because it was cancelled
  std::uint64_t largest = 0;  // of a sum: the bytes of the part that route and why are from

  // Adds a part of the same request. Route and reason of the sum are those of its largest part, and
  // of equal ones the last.
  void add(const Transfer& part) {
    bytes += part.bytes;
    if (part.bytes < largest) return;
    largest = part.bytes;
    route = part.route;
    why = part.why;
  }
};

struct RouteWay;  // gpu/engine_parts.hpp

// What is asked of a route.
struct Work {
  enum Kind : unsigned {
    Small = 1,  // a read of at most kSmall bytes
    Batch = 2,  // a read of several segments of that size, together at most kBatch bytes
    Large = 4,  // any other read
    Again = 8,  // a request that a faster route could not complete
    Write = 16,
  };
};

struct RouteRow {
  Route route;
  std::string_view name;
  bool on_gpu;       // whether the memory of the request is
  unsigned unasked;  // what it does for requests that name no route: Work::Kind, added up
  const RouteWay* way;
};

// The fastest first.
std::span<const RouteRow> route_table();

struct RouteOffer {
  enum Answer : std::uint8_t { Unknown, Yes, No };
  Answer answer = Unknown;
  // Yes: why this route. No: why not, if that tells users why they get another one. The reason for
  // a route that gives none is that of the last one before it which did.
  std::optional<Why> why = {};

  static constexpr RouteOffer yes(std::optional<Why> reason = {}) { return {Yes, reason}; }
  static constexpr RouteOffer no(std::optional<Why> reason = {}) { return {No, reason}; }
};

struct RouteFacts {
  Route wanted = Route::Auto;
  Work::Kind work = Work::Large;
  bool on_gpu = true;
  std::array<RouteOffer, kRoutes> offers = {};  // by Route

  RouteOffer& operator[](Route route) { return offers[static_cast<std::size_t>(route)]; }
};

struct RouteChoice {
  const RouteRow* row = nullptr;  // null: no route can be taken
  bool is_final = true;           // false: the offer of this route is needed to go on
  Why why = Why::Asked;
};

RouteChoice choose_route(const RouteFacts& facts);

}  // namespace sluice
