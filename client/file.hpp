// SPDX-License-Identifier: BSD-2-Clause
// A File is an open file, on a Sluice mount or elsewhere. It remembers which buffers are registered
// with the daemon on it.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
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
#include "gpu/file_version.hpp"

namespace sluice {

class File {
 public:
  // O_APPEND and O_DIRECT are ignored: every request has an offset, and the engine chooses what
  // bypasses the page cache. EISDIR or EINVAL if it is not a regular file.
  static Result<std::unique_ptr<File>> open(const char* path, int flags, mode_t mode);
  // REQUIRES: `fd` stays open as long as the File lives.
  static Result<std::unique_ptr<File>> borrow(int fd);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  const EngineFile& for_engine() const { return engine_file_; }
  Result<std::uint64_t> size() const;
  bool is_deleted() const;  // true if no name is left
  // Whether its size or its times are not those that it had when it was opened.
  bool has_changed() const;
  std::string path() const;  // for messages

  // What the daemon replied about the file and its GPUs when it was first asked; empty if there is
  // no daemon.
  const std::optional<struct sluice_query>& daemon();

  // The daemon's ids for the pieces of `buffer`; registers it first if necessary. An error means
  // that the daemon can't use the buffer.
  using BufferIds = std::vector<std::uint64_t>;
  Result<std::shared_ptr<const BufferIds>> daemon_ids(const Buffer& buffer);
  // The same after the daemon has answered ESTALE to a request with `stale`: the ids of the daemon
  // that serves the mount now. ESTALE: it is still the same daemon, so it meant something else.
  Result<std::shared_ptr<const BufferIds>> renewed_ids(const Buffer& buffer,
                                                       const BufferIds& stale);
  // Whether it is worth asking the daemon for records of a copy in GPU memory. If it had none, it
  // is not asked again for a moment, because each question makes others wait.
  bool may_be_in_hbm() const { return Clock::now().time_since_epoch() >= ask_again_.load(); }
  void is_not_in_hbm() { ask_again_ = (Clock::now() + kAskAgain).time_since_epoch(); }
  // Unregisters the buffer from the daemon.
  void forget(const Buffer& buffer);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kAskAgain{100};
  File(int fd, UniqueFd owned, const struct stat& opened);

  const UniqueFd owned_;  // empty if the caller's descriptor is used directly
  const int fd_;
  const FileVersion opened_;
  EngineFile engine_file_;

  std::atomic<Clock::duration> ask_again_{Clock::duration::zero()};  // since the clock's epoch

  Mutex asking_;
  bool asked_ GUARDED_BY(asking_) = false;
  std::optional<struct sluice_query> daemon_;  // written once, under asking_

  Mutex mutex_;
  std::map<const Buffer*, std::shared_ptr<const BufferIds>> buffers_ GUARDED_BY(mutex_);
};

}  // namespace sluice

// The handle that C programs see.
struct sluice_file {
  std::unique_ptr<sluice::File> file;
};
