// SPDX-License-Identifier: BSD-2-Clause
// GpuService answers our ioctls. It decides which buffers a request may use, and releases buffers
// when their owner ends.
//
// A buffer belongs to one open file and to one process (RingService manages rings). A buffer is
// looked up only among those of the request's open file, so buffers of others are not found
// (ENOENT) rather than forbidden; those that an earlier daemon of the mount knew are stale
// (ESTALE). The process must also be the one that registered it, so a child that inherited the
// descriptor finds nothing either. A buffer ends with UNREGISTER, with the last close of the open
// file, or with the process, after all requests that use it.
//
// Threads: thread-safe. Its own thread, "sluice-clients", is started with the first buffer and
// waits for processes to end.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "base/unique_fd.hpp"
#include "fs/control/limit_use.hpp"
#include "fs/core/filesystem.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/gpu/client_process.hpp"
#include "fs/gpu/daemon_epoch.hpp"
#include "fs/gpu/descriptor_taker.hpp"
#include "fs/gpu/gpu_requests.hpp"
#include "fs/gpu/memfd_limit.hpp"
#include "fs/gpu/open_id.hpp"
#include "fs/gpu/ring_service.hpp"
#include "fs/gpu/share_socket.hpp"
#include "gpu/engine.hpp"

namespace sluice {

class GpuService {
 public:
  // The most buffers of one open file, of one user, and in total; ENOSPC beyond. Each is a mapping,
  // of which the kernel allows about 65,000 per process.
  static constexpr std::size_t kMostOfFile = 4096, kMostOfUser = 8192, kMostOfAll = 32768;

  // `host_memory`: the most bytes of memfds that may be registered at once. `ends`: whether the
  // mount ends or is handed over, so that no request may take long. `epoch`: of this daemon.
  // `share_socket`: where GPU memory is handed out; empty: nowhere.
  GpuService(
      Engine& engine, Filesystem& filesystem, std::uint64_t host_memory,
      std::function<bool()> ends = [] { return false; }, DaemonEpoch epoch = DaemonEpoch(0),
      std::string share_socket = {});
  ~GpuService();
  GpuService(const GpuService&) = delete;
  GpuService& operator=(const GpuService&) = delete;

  // Called for each release.
  void released(OpenId open);

  // Answers one ioctl on the file `id`, called on `open`. `caller.pid` is the calling thread, or 0
  // if it is in a PID namespace that we do not see.
  Result<void> answer(InodeId id, OpenId open, unsigned command, std::span<const std::byte> in,
                      std::size_t out_size, const Caller& caller, GpuReply& reply);

  std::uint32_t buffers() const { return count_.load(std::memory_order_relaxed); }
  std::uint64_t buffer_bytes() const { return bytes_.load(std::memory_order_relaxed); }
  const MemfdLimit& host_memory() const { return host_memory_; }
  std::size_t rings() const { return rings_.count(); }
  std::vector<LimitUse> limits() const;
  // Ends all rings when the mount ends, or when another daemon takes over (ESTALE): they read and
  // write without requests of the kernel.
  void end_rings(int why = ESHUTDOWN) { rings_.end(why); }

 private:
  struct Buffer;
  using BufferPtr = std::shared_ptr<Buffer>;
  using Buffers = std::unordered_map<std::uint64_t, BufferPtr>;
  // Buffers by open file. Sharded, so that threads of different files rarely share a lock.
  struct Shard {
    Mutex mutex;
    std::unordered_map<std::uint64_t, Buffers> opens GUARDED_BY(mutex);
  };
  // The origin of a request.
  struct From {
    InodeId file;
    OpenId open;
    const Caller& caller;
  };

  Result<void> handle(const From& from, const QueryRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const RegisterRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const UnregisterRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const ReadRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const WriteRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const ReadvRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const PrefetchRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const StatsRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const RingCreateRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const RingDestroyRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const RingAddFileRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const RingDropFileRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const ShareRequest& request, GpuReply& reply);
  Result<void> handle(const From& from, const GatherRequest& request, GpuReply& reply);

  Shard& shard(OpenId open) { return shards_[(open.to_wire() >> 3) % shards_.size()]; }
  Result<BufferPtr> find(const From& from, std::uint64_t buffer);
  Result<BufferPtr> find(OpenId open, std::uint64_t buffer);
  // The memory of a buffer. It stays valid while the pointer exists, even if the buffer ends.
  Result<std::shared_ptr<Memory>> memory_for_ring(OpenId open, std::uint64_t buffer,
                                                  const ClientProcess& client);
  // Takes a descriptor of the client. EOPNOTSUPP: the client is in another PID namespace.
  Result<UniqueFd> take(const ClientProcess& client, int fd, uid_t user);
  Result<MemfdLimit::Share> take_share(const ClientProcess& client, uid_t user,
                                       const UniqueFd& memfd, std::uint64_t bytes);
  Result<void> import(const RegisterRequest& request, Buffer& buffer);
  // For a request that may take long: true if it must end early.
  std::function<bool()> cancelling(const From& from);
  Result<Transfer> read(const From& from, Memory& memory, std::span<const Segment> segments,
                        Route route);
  // The GPU with that UUID, or the first GPU. ENODEV: there is none. EOPNOTSUPP: GPUs are turned
  // off.
  Result<Device*> device(const GpuUuid& gpu);
  // The process of the calling thread.
  Result<std::shared_ptr<ClientProcess>> client(pid_t thread);
  void watch_processes(const std::stop_token& stop);
  void drop_buffers_of(pid_t process);

  Engine& engine_;
  Filesystem& filesystem_;
  const std::function<bool()> ends_;
  const DaemonEpoch epoch_;
  DescriptorTaker taker_;
  ShareSocket shares_;
  MemfdLimit host_memory_;
  std::atomic<std::uint64_t> last_buffer_{1};  // a counter
  std::atomic<std::uint32_t> count_{
      0};  // number of buffers; for statistics, and checked before a release
  std::atomic<std::uint64_t> bytes_{0};
  std::array<Shard, 64> shards_;
  mutable Mutex clients_mutex_;
  std::map<pid_t, std::shared_ptr<ClientProcess>> clients_ GUARDED_BY(clients_mutex_);
  std::map<uid_t, std::size_t> of_user_ GUARDED_BY(clients_mutex_);  // buffers
  UniqueFd events_;                                                  // epoll of pidfds
  UniqueFd wake_;                                                    // an eventfd
  RingService rings_;  // declared before the thread that reports ended processes to it
  std::jthread watcher_ GUARDED_BY(clients_mutex_);
};

}  // namespace sluice
