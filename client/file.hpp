// SPDX-License-Identifier: BSD-2-Clause
// A File is an open file, on a Sluice mount or elsewhere, with the buffers that were made known to
// the daemon for it.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "client/buffer.hpp"
#include "gpu/engine.hpp"

namespace sluice {

class File {
 public:
  // O_APPEND and O_DIRECT are left out: each request names its offset, and the engine chooses by
  // itself what goes past the page cache. EISDIR or EINVAL for what is no regular file.
  static Result<std::unique_ptr<File>> open(const char* path, int flags, mode_t mode);
  // REQUIRES: `fd` stays open as long as the File lives.
  static Result<std::unique_ptr<File>> borrow(int fd);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  const EngineFile& for_engine() const { return engine_file_; }
  Result<std::uint64_t> size() const;
  bool is_deleted() const;   // it has no name
  std::string path() const;  // for messages

  // What the daemon said of the file and its GPUs when first asked; nothing if there is no daemon.
  const std::optional<struct sluice_query>& daemon();

  // The daemon's names for the pieces of `buffer`, which is made known to it if it is not yet. An
  // error means that the daemon can't use the buffer.
  using Names = std::vector<std::uint64_t>;
  Result<std::shared_ptr<const Names>> names_of(const Buffer& buffer);
  // Takes the buffer back from the daemon.
  void forget(const Buffer& buffer);

 private:
  File(int fd, UniqueFd owned);

  const UniqueFd owned_;  // empty if the descriptor is borrowed as it is
  const int fd_;
  EngineFile engine_file_;

  Mutex asking_;
  bool asked_ GUARDED_BY(asking_) = false;
  std::optional<struct sluice_query> daemon_;  // written once, under asking_

  Mutex mutex_;
  std::map<const Buffer*, std::shared_ptr<const Names>> buffers_ GUARDED_BY(mutex_);
};

}  // namespace sluice

// The C name of it.
struct sluice_file {
  std::unique_ptr<sluice::File> file;
};
