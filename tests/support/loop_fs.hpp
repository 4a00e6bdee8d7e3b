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
  // Makes `directory` and mounts the filesystem that is in the file `image`, which may be one of
  // another filesystem's. It is not removed.
  LoopFs(const std::string& directory, const std::string& type, const std::string& image);
  ~LoopFs();
  LoopFs(const LoopFs&) = delete;
  LoopFs& operator=(const LoopFs&) = delete;

  const std::string& path() const { return path_; }

  // What an operator does to a failing disk: detached at once, even in use. The directory stays,
  // empty.
  void vanish();
  // Mounts it again, same contents. Whoever still uses the vanished mount shares the filesystem,
  // with its errors: wait for is_free() where it had some.
  void come_back();
  // Whether nobody uses the vanished filesystem any more.
  bool is_free() const;
  void remount_read_only();
  // Every later access fails with EIO, until it has been unmounted and mounted again; what was not
  // yet on the disk is lost.
  void shut_down();

 private:
  void attach(const std::string& image);
  void mount(unsigned long flags);

  std::string path_;
  std::string type_;
  std::string device_;
  UniqueFd loop_;
};

// Makes the file `image` with an empty filesystem of `type` in it. Throws.
void make_image(const std::string& image, const std::string& type, std::uint64_t bytes);

}  // namespace sluice::test
