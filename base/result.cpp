// SPDX-License-Identifier: BSD-2-Clause
#include "base/result.hpp"

#include <cstring>

namespace sluice {

std::string Error::text() const {
  return detail ? *detail : std::string(operation) + ": " + std::strerror(code);
}

Error Error::at(const std::string& place) const {
  Error placed = *this;
  placed.detail = std::make_shared<const std::string>(place + ": " + text());
  return placed;
}

}  // namespace sluice
