// SPDX-License-Identifier: BSD-2-Clause
// KernelSide is what the core asks of the kernel by itself, not in reply to a request.
// Threads: every member may be called from any thread at once.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.hpp"
#include "base/result.hpp"

namespace sluice {

class KernelSide {
 public:
  virtual ~KernelSide() = default;

  // The passthrough table: files that the kernel reads and writes without asking the daemon.
  virtual Result<std::int32_t> add_backing(int fd) = 0;
  virtual void remove_backing(std::int32_t id) = 0;

  // Makes the kernel ask for the attributes of `id` again. REQUIRES: the caller holds no lock.
  virtual void drop_attributes(InodeId id) = 0;
  // Makes the kernel read the directory or file `id` again. REQUIRES: the caller holds no lock and
  // answers no request, because the kernel waits for reads and writes of the file to end.
  virtual void drop_pages(InodeId id) = 0;
  // Makes the kernel look up every name again. False if it can't do that for all names at once;
  // then drop_name() must be called for each. REQUIRES: as drop_pages().
  virtual bool drop_all_names() = 0;
  virtual void drop_name(InodeId parent, const std::string& name) = 0;
};

}  // namespace sluice
