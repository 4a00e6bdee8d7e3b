// SPDX-License-Identifier: BSD-2-Clause
// AccessSampler notices that a file which stays open is being used, although the kernel reads and
// writes it without us: a model server that opens its weights once and reads them for weeks must
// not look cold. It marks open files with fanotify and takes a mark off at the first event, so that
// a file costs two system calls and one event a sample, however busy it is.
//
// Reads through a mapping cause no event. Threads: caller locks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "tiering/tier.hpp"

namespace sluice {

class AccessSampler {
 public:
  // Fails where the kernel or our privileges allow no fanotify.
  static Result<std::unique_ptr<AccessSampler>> create();

  // Begins a sample of these files; those of an earlier one are watched no longer.
  void watch(const std::vector<std::pair<InodeId, SharedFd>>& files);

  // Those that were read or written since the last call, each once a sample.
  std::vector<InodeId> used();

 private:
  explicit AccessSampler(UniqueFd queue) : queue_(std::move(queue)) {}

  UniqueFd queue_;
  // By what an event says of its file: the filesystem's id and the file's handle. The descriptors
  // are others' to close: held open, they would keep the file from moving.
  std::map<std::string, std::pair<InodeId, std::weak_ptr<const UniqueFd>>> watched_;
};

}  // namespace sluice
