// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route.hpp"

#include <algorithm>
#include <array>
#include <iterator>

namespace sluice {

// Each is defined in the file of its route.
extern const RouteWay kHbmWay, kGdsWay, kCuFileWay, kMappedWay, kStagedWay, kPageableWay, kHostWay;

namespace {

constexpr unsigned kReads = Work::Small | Work::Batch | Work::Large;
constexpr unsigned kAll = kReads | Work::Again | Work::Write;

constexpr RouteRow kTable[] = {
    // First, because readers may wait until a copy is filled, and must hold no pass then.
    {Route::Hbm, "hbm", true, kReads, &kHbmWay},
    {Route::Gds, "gds", true, Work::Large, &kGdsWay},
    {Route::CuFile, "cufile", true, 0, &kCuFileWay},
    {Route::Mapped, "mapped", true, Work::Batch | Work::Large, &kMappedWay},
    {Route::Staged, "staged", true, kAll, &kStagedWay},
    {Route::Pageable, "pageable", true, kAll, &kPageableWay},
    {Route::Host, "host", false, kAll, &kHostWay},
};
static_assert(std::size(kTable) + 1 == kRoutes);

Why first_reason(const RouteFacts& facts) {
  if (!facts.on_gpu) return Why::HostMemory;
  if (facts.work == Work::Write) return Why::Writing;
  return facts.work == Work::Small ? Why::Small : Why::Fastest;
}

constexpr std::array<std::string_view, SLUICE_WHY_FILLING_HBM + 1> kReasons = {
    "the request asked for this route",
    "nothing prevents the fastest route",
    "the buffer is in host memory",
    "the request is too small for a faster route to pay off",
    "the page cache has the bytes: a copy beats the disk",
    "the page cache does not have the bytes",
    "the file's page cache is already registered with the GPU",
    "registering pays off from the second read on",
    "the file changed recently, so it is not registered",
    "the share of memory that may be pinned is used up",
    "no nvidia-fs and no PCIe P2PDMA to this disk",
    "libcufile is missing or unusable",
    "cuFile does not accept this file",
    "all writes take this route",
    "no host memory could be pinned",
    "the file is in the memory of the GPU already",
    "the request also put the file into the memory of the GPU",
};

}  // namespace

std::span<const RouteRow> route_table() { return kTable; }

RouteChoice choose_route(const RouteFacts& facts) {
  const bool asked = facts.wanted != Route::Auto;
  Why why = first_reason(facts);
  for (const RouteRow& row : kTable) {
    const RouteOffer& offer = facts.offers[static_cast<std::size_t>(row.route)];
    if (offer.answer == RouteOffer::No) {
      why = offer.why.value_or(why);
      continue;
    }
    const bool does = (row.unasked & facts.work) != 0 || (asked && facts.work != Work::Write);
    if (row.on_gpu != facts.on_gpu || !does || (asked && facts.wanted != row.route)) continue;
    if (offer.answer == RouteOffer::Unknown) return {&row, false, why};
    return {&row, true, asked ? Why::Asked : offer.why.value_or(why)};
  }
  return {};
}

std::string_view name_of(Route route) {
  if (route == Route::Auto) return "auto";
  const auto* const row = std::find_if(std::begin(kTable), std::end(kTable),
                                       [&](const RouteRow& each) { return each.route == route; });
  return row == std::end(kTable) ? "?" : row->name;
}

std::optional<Route> route_by_name(std::string_view name) {
  for (std::uint32_t i = 0; i < kRoutes; ++i) {
    if (name_of(static_cast<Route>(i)) == name) return static_cast<Route>(i);
  }
  return std::nullopt;
}

std::string_view text_of(Why why) {
  const auto index = static_cast<std::uint32_t>(why);
  return index < kReasons.size() ? kReasons[index] : "?";
}

}  // namespace sluice
