// SPDX-License-Identifier: BSD-2-Clause
// The cuFile routes: NVIDIA's library reads the file, from the disk straight to the GPU where
// machine, filesystem and disk allow it (gds), else through host memory of its own (cufile).
//
// Ownership: CuFiles keeps the handles of some files open. Threads: thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_version.hpp"

namespace sluice {

class CuFiles {
 public:
  explicit CuFiles(bool enabled);
  ~CuFiles();

  // Whether cuFile would read the file, and if so directly.
  struct Verdict {
    bool usable = false, direct = false;
    Why why = Why::NoCuFile;  // not direct, or not usable
    std::string words = {};   // the one thing in the way, and what to do about it
  };
  Verdict judge(int fd, const FileId& id, Device& device);
  // False: no file of this machine can be read directly. Costs nothing once it is known.
  bool may_be_direct(Device& device);

  // Returns how many bytes there were. EOPNOTSUPP if cuFile does not take the file.
  Result<std::uint64_t> read(int fd, const FileId& id, Memory& memory,
                             std::span<const Segment> segments);
  void forget(const FileId& id);
};

}  // namespace sluice
