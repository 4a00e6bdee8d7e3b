// SPDX-License-Identifier: BSD-2-Clause
// A kernel without passthrough that ignores all notifications.
#pragma once

#include "fs/core/filesystem.hpp"

namespace sluice {

class QuietKernel final : public KernelSide {
 public:
  Result<std::int32_t> add_backing(int) override { return Error(EOPNOTSUPP, "add backing file"); }
  void remove_backing(std::int32_t) override {}
  void drop_attributes(InodeId) override {}
  void drop_pages(InodeId) override {}
  bool drop_all_names() override { return true; }
  void drop_name(InodeId, const std::string&) override {}
};

}  // namespace sluice
