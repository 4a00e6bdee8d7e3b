// SPDX-License-Identifier: BSD-2-Clause
// The RingService keeps the rings of all processes: who may use which, what their entries may name,
// and when they end.
//
// A ring belongs to one open file, its anchor, and to one process, and ends with either; its
// entries name the buffers that this process registered on the anchor. Files are named by tokens,
// which a process gets by an ioctl on the file itself: it has the file open, and an entry can do
// with it what that open file is for. A token ends with its open file, before the file is released:
// what is under way with it ends first.
//
// Threads: thread-safe. Each ring has one or two of its own (gpu/ring.hpp); one more,
// "sluice-rings", waits for those that ended without anybody who could wait.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "fs/control/limit_use.hpp"
#include "fs/core/caller.hpp"
#include "fs/core/filesystem.hpp"
#include "fs/gpu/client_process.hpp"
#include "fs/gpu/memfd_limit.hpp"
#include "fs/gpu/open_id.hpp"
#include "gpu/ring.hpp"

namespace sluice {

class RingService {
 public:
  // ENOSPC beyond: rings of one user and of all (each has a thread), files of one ring.
  static constexpr std::size_t kMostOfUser = 256, kMostOfAll = 1024, kMostFiles = 4096;
  static constexpr std::size_t kMostFilesOfUser = 65536;

  // The memory of a buffer of that open file and process; ENOENT if there is none.
  using FindMemory = std::function<Result<std::shared_ptr<Memory>>(
      OpenId anchor, std::uint64_t buffer, const ClientProcess& client)>;

  RingService(Filesystem& filesystem, FindMemory find_memory)
      : filesystem_(filesystem), find_memory_(std::move(find_memory)) {}
  ~RingService() { end(); }
  RingService(const RingService&) = delete;
  RingService& operator=(const RingService&) = delete;

  struct RingMemory {
    const UniqueFd& memfd;
    std::unique_ptr<Memory> memory;  // all of it
    MemfdLimit::Share share;
  };
  // Returns the ring's name. EINVAL for memory that is no ring; EACCES if it can't be written to.
  Result<std::uint64_t> create(OpenId anchor, std::shared_ptr<ClientProcess> client, uid_t user,
                               RingMemory memory);
  // ENOENT for rings that are not the caller's. Waits for what is under way.
  Result<void> destroy(std::uint64_t ring, const Caller& caller);
  // Returns a token for the file. ENOENT as destroy().
  Result<std::uint64_t> add_file(std::uint64_t ring, InodeId file, OpenId open,
                                 const Caller& caller);
  Result<void> drop_file(std::uint64_t ring, std::uint64_t file, const Caller& caller);

  // An open file ends: waits for what is under way with it, but not for rings it was the anchor of.
  void released(OpenId open);
  // Those of the process of that number that has ended: there may be a new one.
  void drop_rings_of(pid_t process);
  // No ring is served after this, and none is made.
  void end();

  std::size_t count() const { return count_.load(std::memory_order_relaxed); }
  std::vector<LimitUse> limits() const;

 private:
  class Ring;
  using RingPtr = std::shared_ptr<Ring>;

  Result<RingPtr> find(std::uint64_t ring, const Caller& caller);
  template <typename Condition>
  void drop_if(Condition condition);
  void reap(const std::stop_token& stop);
  void forget_tokens(uid_t user, std::size_t count) REQUIRES(mutex_);

  Filesystem& filesystem_;
  const FindMemory find_memory_;
  std::atomic<std::size_t> count_{0};  // of rings that are served; read before a release
  mutable Mutex mutex_;
  StopCondVar died_;
  CondVar reaped_;
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, RingPtr> rings_ GUARDED_BY(mutex_);
  std::vector<RingPtr> dead_ GUARDED_BY(mutex_);  // until their last request is done
  std::map<uid_t, std::size_t> of_user_ GUARDED_BY(mutex_);
  std::map<uid_t, std::size_t> tokens_of_user_ GUARDED_BY(mutex_);
  // Rings that have tokens of an open file: few need be asked when it is released.
  std::unordered_map<std::uint64_t, std::vector<std::weak_ptr<Ring>>> holders_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  std::jthread reaper_ GUARDED_BY(mutex_);
};

}  // namespace sluice
