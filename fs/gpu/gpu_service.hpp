// SPDX-License-Identifier: BSD-2-Clause
// GpuService answers our ioctls: it knows who may name which buffer, and lets buffers go when
// whoever registered them does.
//
// A buffer belongs to one open file and to one process; rings are RingService's. It is looked for
// among those of the open file that the request came by, so that what others have registered is not
// there (ENOENT) rather than forbidden; and the process must be the one that registered it, so that
// a child which inherited the descriptor finds nothing either. It ends with UNREGISTER, with the
// last close of the open file or with the process, in each case after the requests that use it.
//
// Threads: thread-safe; one of its own, "sluice-clients", started with the first buffer, waits for
// processes to end.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "base/unique_fd.hpp"
#include "fs/control/limit_use.hpp"
#include "fs/core/caller.hpp"
#include "fs/core/filesystem.hpp"
#include "fs/gpu/client_process.hpp"
#include "fs/gpu/descriptor_taker.hpp"
#include "fs/gpu/gpu_requests.hpp"
#include "fs/gpu/memfd_limit.hpp"
#include "fs/gpu/open_id.hpp"
#include "fs/gpu/ring_service.hpp"
#include "gpu/engine.hpp"

namespace sluice {

class GpuService {
 public:
  // That one open file, one user, and all together can have registered: ENOSPC beyond. A mapping
  // each, of which the kernel allows a process some 65,000.
  static constexpr std::size_t kMostOfFile = 4096, kMostOfUser = 8192, kMostOfAll = 32768;

  // `host_memory`: bytes of memfds that may be registered at once. `waiting`: how many requests of
  // the mount wait for an answer, those that are being answered included.
  GpuService(
      Engine& engine, Filesystem& filesystem, std::uint64_t host_memory,
      std::function<unsigned()> waiting = [] { return 1u; });
  ~GpuService();
  GpuService(const GpuService&) = delete;
  GpuService& operator=(const GpuService&) = delete;

  // For each open, and for its end.
  OpenId opened(int flags) { return {last_open_.fetch_add(1, std::memory_order_relaxed), flags}; }
  void released(OpenId open);

  // Answers one ioctl on the file `id`, which came by `open`. `caller.pid` is the calling thread,
  // 0 if it is in a PID namespace that we don't see.
  Result<void> answer(InodeId id, OpenId open, unsigned command, std::span<const std::byte> in,
                      std::size_t out_size, const Caller& caller, GpuReply& reply);

  std::uint32_t buffers() const { return count_.load(std::memory_order_relaxed); }
  std::uint64_t buffer_bytes() const { return bytes_.load(std::memory_order_relaxed); }
  const MemfdLimit& host_memory() const { return host_memory_; }
  std::size_t rings() const { return rings_.count(); }
  std::vector<LimitUse> limits() const;
  // Ends all rings, as the mount does: they read and write without the kernel's asking.
  void end_rings() { rings_.end(); }

 private:
  struct Buffer;
  using BufferPtr = std::shared_ptr<Buffer>;
  using Buffers = std::unordered_map<std::uint64_t, BufferPtr>;
  // By open file; sharded, so that threads of different files rarely meet.
  struct Shard {
    Mutex mutex;
    std::unordered_map<std::uint64_t, Buffers> opens GUARDED_BY(mutex);
  };
  // Where a request comes from.
  struct From {
    InodeId file;
    OpenId open;
    const Caller& caller;
  };

  Result<void> carry_out(const From& from, const QueryRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const RegisterRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const UnregisterRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const ReadRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const WriteRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const ReadvRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const PrefetchRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const StatsRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const RingCreateRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const RingDestroyRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const RingAddFileRequest& request, GpuReply& reply);
  Result<void> carry_out(const From& from, const RingDropFileRequest& request, GpuReply& reply);

  Shard& shard(OpenId open) { return shards_[(open.to_wire() >> 3) % shards_.size()]; }
  Result<BufferPtr> find(const From& from, std::uint64_t buffer);
  Result<BufferPtr> find(OpenId open, std::uint64_t buffer);
  // The memory of a buffer, for as long as somebody has it.
  Result<std::shared_ptr<Memory>> memory_for_ring(OpenId open, std::uint64_t buffer,
                                                  const ClientProcess& client);
  // A descriptor of the client's. EOPNOTSUPP if it is in another PID namespace.
  Result<UniqueFd> take(const ClientProcess& client, int fd, uid_t user);
  Result<MemfdLimit::Share> take_share(const ClientProcess& client, uid_t user,
                                       const UniqueFd& memfd, std::uint64_t bytes);
  Result<void> import(const RegisterRequest& request, Buffer& buffer);
  // Does a request in slices, while nobody else has to wait long for it; at most
  // SLUICE_MAX_TRANSFER bytes. `work` does one: a part of the segment.
  class AtWork;
  template <typename Work>
  Result<Transfer> in_turn(const Segment& segment, Work work);
  // The same for several segments; `count`: of those that were read.
  Result<Transfer> read_segments(const From& from, const ReadvRequest& request, Memory& memory,
                                 std::size_t& count);
  // The GPU of that UUID, or the first. ENODEV if there is none, EOPNOTSUPP if none is to be used.
  Result<Device*> device(const GpuUuid& gpu);
  // The process of the calling thread.
  Result<std::shared_ptr<ClientProcess>> client(pid_t thread);
  void watch_processes(const std::stop_token& stop);
  void drop_buffers_of(pid_t process);

  Engine& engine_;
  Filesystem& filesystem_;
  const std::function<unsigned()> waiting_;
  std::atomic<unsigned> at_work_{0};  // long requests that are being answered; a count to look at
  DescriptorTaker taker_;
  MemfdLimit host_memory_;
  std::atomic<std::uint64_t> last_open_{1};    // a counter
  std::atomic<std::uint64_t> last_buffer_{1};  // a counter
  std::atomic<std::uint32_t> count_{0};        // buffers; statistics, and read before a release
  std::atomic<std::uint64_t> bytes_{0};
  std::array<Shard, 64> shards_;
  mutable Mutex clients_mutex_;
  std::map<pid_t, std::shared_ptr<ClientProcess>> clients_ GUARDED_BY(clients_mutex_);
  std::map<uid_t, std::size_t> of_user_ GUARDED_BY(clients_mutex_);  // buffers
  UniqueFd events_;                                                  // epoll of pidfds
  UniqueFd wake_;                                                    // an eventfd
  RingService rings_;  // before the thread that tells it of processes
  std::jthread watcher_ GUARDED_BY(clients_mutex_);
};

}  // namespace sluice
