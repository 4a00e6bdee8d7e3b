// SPDX-License-Identifier: BSD-2-Clause
#include "base/result.hpp"

#include <cstring>

namespace sluice {

std::string Error::text() const { return std::string(operation) + ": " + std::strerror(code); }

}  // namespace sluice
