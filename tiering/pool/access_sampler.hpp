// SPDX-License-Identifier: BSD-2-Clause
// AccessSampler detects accesses to files that stay open, although the kernel reads and writes them
// without the daemon. A model server that opens its weights once and reads them for weeks must not
// look cold. The sampler marks open files with fanotify and removes a mark at the first event, so
// each sample of a file costs two system calls and one event, however busy the file is.
//
// Limits: reads through a mapping cause no event.
// Threads: caller locks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

class AccessSampler {
 public:
  // Fails if the kernel has no fanotify or the process may not use it.
  static Result<std::unique_ptr<AccessSampler>> create();

  // Starts a sample of these files. Files of an earlier sample are no longer watched.
  void watch(const std::vector<std::pair<InodeId, SharedFd>>& files);

  // The files that were read or written since the last call. Each file is reported once per sample.
  std::vector<InodeId> used();

 private:
  explicit AccessSampler(UniqueFd queue) : queue_(std::move(queue)) {}

  UniqueFd queue_;
  // The key is what an event says about its file: the filesystem's id and the file's handle. The
  // pointers are weak because an open descriptor would keep the file from moving.
  std::map<std::string, std::pair<InodeId, std::weak_ptr<const UniqueFd>>> watched_;
};

}  // namespace sluice
