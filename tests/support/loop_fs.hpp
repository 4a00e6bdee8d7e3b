// SPDX-License-Identifier: BSD-2-Clause
// LoopFs is a small real filesystem in a sparse image file. It has its own device, can be full, and
// can be removed while in use.
//
// The loop device detaches itself when its last user (this object's descriptor, mounts) is gone,
// also after a crash. Threads: caller locks.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace sluice::test {

class LoopFs {
 public:
  // Creates `directory` and mounts a new filesystem of `type` ("ext4", "xfs") on it; the image is
  // next to it. xfs needs at least 300 MiB. Throws std::runtime_error.
  LoopFs(const std::string& directory, const std::string& type, std::uint64_t bytes);
  // Creates `directory` and mounts the filesystem in the file `image`, which may come from
  // elsewhere. The image is not removed.
  LoopFs(const std::string& directory, const std::string& type, const std::string& image);
  ~LoopFs();
  LoopFs(const LoopFs&) = delete;
  LoopFs& operator=(const LoopFs&) = delete;

  const std::string& path() const { return path_; }

  // Detaches the filesystem at once, even if it is in use. The directory stays, empty.
  void vanish();
  // Mounts it again with the same contents. Users of the detached mount share the filesystem,
  // including its errors: wait for is_free() if there were errors.
  void come_back();
  // Whether the detached filesystem has no users any more.
  bool is_free() const;
  void remount_read_only();
  // Makes every access fail with EIO until it has been unmounted and mounted again; data that was
  // not on the disk is lost.
  void shut_down();

 private:
  void attach(const std::string& image);
  void mount(unsigned long flags);

  std::string path_;
  std::string type_;
  std::string device_;
  UniqueFd loop_;
};

// Creates the file `image` with an empty filesystem of `type`. Throws.
void make_image(const std::string& image, const std::string& type, std::uint64_t bytes);

}  // namespace sluice::test
