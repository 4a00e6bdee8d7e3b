// SPDX-License-Identifier: BSD-2-Clause
// The RingService manages the rings of all processes: who may use which ring, which files and
// buffers its entries may use, and when it ends.
//
// A ring belongs to one open file, its anchor, and to one process, and ends with either. Its
// entries use the buffers that this process registered on the anchor. They refer to files by
// tokens. A process gets a token by an ioctl on the open file, and entries have the access mode of
// that open file. A token ends with its open file; requests in progress end before the file is
// released.
//
// Threads: thread-safe. Each ring has one or two threads (gpu/ring.hpp). Another thread,
// "sluice-rings", waits for rings that end when no caller can wait for them.
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
#include "fs/core/filesystem.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/gpu/client_process.hpp"
#include "fs/gpu/daemon_epoch.hpp"
#include "fs/gpu/memfd_limit.hpp"
#include "fs/gpu/open_id.hpp"
#include "gpu/ring.hpp"

namespace sluice {

class RingService {
 public:
  // Limits (ENOSPC): rings of one user and in total (each has a thread), files of one ring.
  static constexpr std::size_t kMostOfUser = 256, kMostOfAll = 1024, kMostFiles = 4096;
  static constexpr std::size_t kMostFilesOfUser = 65536;

  // Finds the memory of a buffer of that open file and process; ENOENT if there is none.
  using FindMemory = std::function<Result<std::shared_ptr<Memory>>(
      OpenId anchor, std::uint64_t buffer, const ClientProcess& client)>;

  RingService(Filesystem& filesystem, FindMemory find_memory, DaemonEpoch epoch)
      : filesystem_(filesystem), find_memory_(std::move(find_memory)), epoch_(epoch) {}
  ~RingService() { end(); }
  RingService(const RingService&) = delete;
  RingService& operator=(const RingService&) = delete;

  struct RingMemory {
    const UniqueFd& memfd;
    std::unique_ptr<Memory> memory;  // the whole ring
    MemfdLimit::Share share;
  };
  // Returns the ring's id. EINVAL: the memory is not a valid ring. EACCES: it is not writable.
  Result<std::uint64_t> create(OpenId anchor, std::shared_ptr<ClientProcess> client, uid_t user,
                               RingMemory memory);
  // ENOENT: the caller has no such ring. ESTALE: an earlier daemon had it. Waits for requests in
  // progress.
  Result<void> destroy(std::uint64_t ring, const Caller& caller);
  // Returns a token for the file. ENOENT and ESTALE as for destroy().
  Result<std::uint64_t> add_file(std::uint64_t ring, InodeId file, OpenId open,
                                 const Caller& caller);
  Result<void> drop_file(std::uint64_t ring, std::uint64_t file, const Caller& caller);

  // An open file ends: waits for requests in progress on it, but not for rings that have it as
  // anchor.
  void released(OpenId open);
  // Ends the rings of a process with that id that has ended. A new process may already have the
  // same id.
  void drop_rings_of(pid_t process);
  // Ends all rings; no new ring can be created afterwards. `why`: ESTALE if another daemon takes
  // over.
  void end(int why = ESHUTDOWN);

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
  const DaemonEpoch epoch_;
  std::atomic<std::size_t> count_{0};  // number of served rings; checked before a release
  mutable Mutex mutex_;
  StopCondVar died_;
  CondVar reaped_;
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, RingPtr> rings_ GUARDED_BY(mutex_);
  std::vector<RingPtr> dead_ GUARDED_BY(mutex_);  // until their last request is done
  std::map<uid_t, std::size_t> of_user_ GUARDED_BY(mutex_);
  std::map<uid_t, std::size_t> tokens_of_user_ GUARDED_BY(mutex_);
  // For each open file, the rings that have tokens of it, so that a release need not ask all rings.
  std::unordered_map<std::uint64_t, std::vector<std::weak_ptr<Ring>>> rings_by_open_
      GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  int why_ GUARDED_BY(mutex_) = ESHUTDOWN;  // told to clients whose rings end
  std::jthread reaper_ GUARDED_BY(mutex_);
};

}  // namespace sluice
