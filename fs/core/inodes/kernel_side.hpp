// SPDX-License-Identifier: BSD-2-Clause
// KernelSide is the interface through which the core calls the kernel on its own initiative, not in
// reply to a request. Session implements it.
//
// Threads: thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.hpp"
#include "base/result.hpp"

namespace sluice {

class KernelSide {
 public:
  virtual ~KernelSide() = default;

  // Adds a file to the kernel's passthrough table, whose files it reads and writes without requests
  // to the daemon. Returns the backing id.
  virtual Result<std::int32_t> add_backing(int fd) = 0;
  virtual void remove_backing(std::int32_t id) = 0;

  // Makes the kernel drop the cached attributes of `id`. REQUIRES: the caller holds no lock.
  virtual void drop_attributes(InodeId id) = 0;
  // Makes the kernel drop the cached pages of a file or the cached listing of a directory.
  // REQUIRES: the caller holds no lock. CHECKED: it is not answering a request, because the kernel
  // waits for reads and writes of the file to end.
  virtual void drop_pages(InodeId id) = 0;
  // Makes the kernel drop all cached names. False if the kernel cannot do that; then drop_name()
  // must be called for each name. REQUIRES: as drop_pages().
  virtual bool drop_all_names() = 0;
  virtual void drop_name(InodeId parent, const std::string& name) = 0;
};

}  // namespace sluice
