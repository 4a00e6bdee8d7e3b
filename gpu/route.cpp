// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route.hpp"

#include <array>

namespace sluice {
namespace {

constexpr std::array<std::string_view, kRoutes> kNames = {"auto",   "gds",      "cufile", "mapped",
                                                          "staged", "pageable", "host",   "hbm"};

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

std::string_view name_of(Route route) {
  const auto index = static_cast<std::uint32_t>(route);
  return index < kNames.size() ? kNames[index] : "?";
}

std::optional<Route> route_by_name(std::string_view name) {
  for (std::uint32_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Route>(i);
  }
  return std::nullopt;
}

void Transfer::add(const Transfer& part) {
  bytes += part.bytes;
  if (part.bytes < largest) return;
  largest = part.bytes;
  route = part.route;
  why = part.why;
}

std::string_view text_of(Why why) {
  const auto index = static_cast<std::uint32_t>(why);
  return index < kReasons.size() ? kReasons[index] : "?";
}

}  // namespace sluice
