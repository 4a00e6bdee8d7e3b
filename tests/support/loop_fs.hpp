// SPDX-License-Identifier: BSD-2-Clause
// LoopFs is a small real filesystem in a sparse image file: its own device, its own ENOSPC, and it
// can vanish.
//
// The loop device detaches itself when the last user is gone (this object's descriptor, mounts),
// also after a crash. Threads: caller locks.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace sluice::test {

class LoopFs {
 public:
  // Makes `directory` and mounts a new filesystem of `type` ("ext4", "xfs") on it; the image lies
  // beside it. xfs is never smaller than 300 MiB. Throws std::runtime_error.
  LoopFs(const std::string& directory, const std::string& type, std::uint64_t bytes);
  ~LoopFs();
  LoopFs(const LoopFs&) = delete;
  LoopFs& operator=(const LoopFs&) = delete;

  const std::string& path() const { return path_; }

  // What an operator does to a failing disk: detached at once, even in use. The directory stays,
  // empty.
  void vanish();
  // Mounts it again, same contents.
  void come_back();
  void remount_read_only();

 private:
  void mount(unsigned long flags);

  std::string path_;
  std::string type_;
  std::string device_;
  UniqueFd loop_;
};

}  // namespace sluice::test
