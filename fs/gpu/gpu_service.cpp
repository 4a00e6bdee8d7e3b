// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/gpu_service.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "fs/gpu/gpu_buffer.hpp"

namespace sluice {
namespace {

template <std::size_t N>
void copy_text(char (&to)[N], std::string_view text) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

sluice_route_stats stats_of(const RouteFigures& figures) {
  const auto ns = [](std::chrono::nanoseconds t) { return static_cast<std::uint64_t>(t.count()); };
  return {figures.operations,      figures.failures,
          figures.bytes,           ns(figures.busy),
          ns(figures.latency_sum), ns(figures.p50),
          ns(figures.p99),         static_cast<std::uint64_t>(figures.peak)};
}

}  // namespace

GpuService::GpuService(Engine& engine, Filesystem& filesystem, std::uint64_t host_memory,
                       std::function<bool()> ends, DaemonEpoch epoch, std::string share_socket)
    : engine_(engine),
      filesystem_(filesystem),
      ends_(std::move(ends)),
      epoch_(epoch),
      shares_(std::move(share_socket)),
      host_memory_(host_memory),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      rings_(
          filesystem,
          [this](OpenId open, std::uint64_t buffer, const ClientProcess& client) {
            return memory_for_ring(open, buffer, client);
          },
          epoch) {
  epoll_event event{};
  event.events = EPOLLIN;  // data 0: not a process
  ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

GpuService::~GpuService() {
  std::jthread watcher;
  {
    MutexLock lock(clients_mutex_);
    watcher = std::move(watcher_);
  }
  watcher.request_stop();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof one);
  if (watcher.joinable()) watcher.join();
  rings_.end();
  for (Shard& each : shards_) {
    std::unordered_map<std::uint64_t, Buffers> gone;
    MutexLock lock(each.mutex);
    gone.swap(each.opens);
  }
}

void GpuService::released(OpenId open) {
  rings_.released(open);
  if (count_.load() == 0) return;  // usually there are none
  Buffers gone;
  Shard& s = shard(open);
  MutexLock lock(s.mutex);
  const auto found = s.opens.find(open.to_wire());
  if (found == s.opens.end()) return;
  gone = std::move(found->second);
  s.opens.erase(found);
}

Result<void> GpuService::answer(InodeId id, OpenId open, unsigned command,
                                std::span<const std::byte> in, std::size_t out_size,
                                const Caller& caller, GpuReply& reply) {
  const GpuRequest request = SLUICE_TRY(decode_gpu_request(command, in, out_size));
  const From from{id, open, caller};
  return std::visit([&](const auto& each) { return handle(from, each, reply); }, request);
}

Result<std::shared_ptr<ClientProcess>> GpuService::client(pid_t thread) {
  if (thread == 0) return std::make_shared<ClientProcess>(0, UniqueFd());
  const pid_t process = SLUICE_TRY(process_of(thread));
  MutexLock lock(clients_mutex_);
  const auto known = clients_.find(process);
  // A process that has ended is about to be removed; this is a new process with the same id.
  if (known != clients_.end() && !has_ended(known->second->fd())) return known->second;
  UniqueFd fd = open_process(process);
  if (!fd) return Error::last("pidfd_open");
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u64 = static_cast<std::uint64_t>(process);
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd.get(), &event) < 0) return Error::last("epoll");
  const auto client = std::make_shared<ClientProcess>(process, std::move(fd));
  clients_[process] = client;
  if (!watcher_.joinable()) {
    watcher_ = std::jthread([this](const std::stop_token& stop) {
      begin_thread("sluice-clients");
      watch_processes(stop);
    });
  }
  return client;
}

void GpuService::watch_processes(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    epoll_event event{};
    if (::epoll_wait(events_.get(), &event, 1, -1) != 1 || event.data.u64 == 0) continue;
    drop_buffers_of(static_cast<pid_t>(event.data.u64));
  }
}

// Drops the buffers of a process with that id that has ended. A new process may already have the
// same id.
void GpuService::drop_buffers_of(pid_t process) {
  std::vector<BufferPtr> gone;
  const auto ended = [&](const auto& entry) {
    const ClientProcess& client = *entry.second->client;
    const bool has = client.process() == process && has_ended(client.fd());
    if (has) gone.push_back(entry.second);
    return has;
  };
  for (Shard& each : shards_) {
    MutexLock lock(each.mutex);
    for (auto& [open, buffers] : each.opens) std::erase_if(buffers, ended);
    std::erase_if(each.opens, [](const auto& open) { return open.second.empty(); });
  }
  rings_.drop_rings_of(process);
  if (!gone.empty()) {
    log::get().info("released the buffers of a process that ended: pid={} buffers={}", process,
                    gone.size());
  }
  MutexLock lock(clients_mutex_);
  const auto known = clients_.find(process);
  if (known != clients_.end() && has_ended(known->second->fd())) clients_.erase(known);
}

Result<GpuService::BufferPtr> GpuService::find(const From& from, std::uint64_t buffer) {
  const BufferPtr found = SLUICE_TRY(find(from.open, buffer));
  if (!found->client->has(from.caller.pid))
    return Error(ENOENT, "the buffer belongs to another process");
  return found;
}

Result<GpuService::BufferPtr> GpuService::find(OpenId open, std::uint64_t buffer) {
  Shard& s = shard(open);
  MutexLock lock(s.mutex);
  const auto buffers = s.opens.find(open.to_wire());
  if (buffers == s.opens.end()) return epoch_.unknown(buffer, "no such buffer");
  const auto entry = buffers->second.find(buffer);
  if (entry == buffers->second.end()) return epoch_.unknown(buffer, "no such buffer");
  return entry->second;
}

Result<Device*> GpuService::device(const GpuUuid& gpu) {
  if (!engine_.is_enabled()) return Error(EOPNOTSUPP, "GPUs are turned off by gpu = false");
  return engine_.devices().by_uuid(gpu);
}

Result<UniqueFd> GpuService::take(const ClientProcess& client, int fd, uid_t user) {
  if (client.process() == 0) {
    static std::atomic<bool> told{false};  // logged once
    if (!told.exchange(true)) {
      log::get().warn(
          "cannot take a descriptor from a process in another PID namespace; run it, "
          "or the daemon, in the same one");
    }
    return Error(EOPNOTSUPP, "the caller is in another PID namespace");
  }
  return taker_.take(client.fd(), fd, user);
}

Result<MemfdLimit::Share> GpuService::take_share(const ClientProcess& client, uid_t user,
                                                 const UniqueFd& memfd, std::uint64_t bytes) {
  auto share = host_memory_.take(user, memfd, bytes);
  if (failed_with(share, ENOSPC)) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
      log::get().warn("refused to register host memory: {}: used={} limit={} pid={} uid={}",
                      share.error().operation, format_size(host_memory_.used()),
                      format_size(host_memory_.most()), client.process(), user);
    }
  }
  return share;
}

Result<void> GpuService::import(const RegisterRequest& request, Buffer& buffer) {
  if (request.kind == SLUICE_BUFFER_CUDA_IPC) {
    Device* gpu = SLUICE_TRY(device(request.gpu));
    buffer.memory = SLUICE_TRY(import_ipc(*gpu, request.handle, request.offset, request.length));
    return {};
  }
  const ClientProcess& client = *buffer.client;
  const UniqueFd fd = SLUICE_TRY(take(client, request.fd, buffer.user));
  if (request.kind == SLUICE_BUFFER_MEMFD) {
    auto memory = SLUICE_TRY(map_host(fd, request.offset, request.length));
    buffer.share = SLUICE_TRY(take_share(client, buffer.user, fd, request.length));
    buffer.memory = std::move(memory);
    return {};
  }
  Device* gpu = SLUICE_TRY(device(request.gpu));
  buffer.memory =
      SLUICE_TRY(import_fd(*gpu, fd, request.allocation, request.offset, request.length));
  return {};
}

Result<void> GpuService::handle(const From& from, const RegisterRequest& request, GpuReply& reply) {
  const auto owner = SLUICE_TRY(client(from.caller.pid));
  {
    MutexLock lock(clients_mutex_);
    if (count_.load() >= kMostOfAll || of_user_[from.caller.uid] >= kMostOfUser)
      return Error(ENOSPC, "too many buffers");
    ++of_user_[from.caller.uid];
  }
  const auto buffer = std::make_shared<Buffer>(*this, owner, from.caller.uid);
  SLUICE_TRY(import(request, *buffer));
  count_.fetch_add(1);
  bytes_.fetch_add(request.length);
  auto out = reply.start<sluice_buffer_register>();
  out.buffer = epoch_.number(last_buffer_.fetch_add(1));
  {
    Shard& s = shard(from.open);
    MutexLock lock(s.mutex);
    Buffers& buffers = s.opens[from.open.to_wire()];
    if (buffers.size() >= kMostOfFile) return Error(ENOSPC, "too many buffers of one file");
    buffers.emplace(out.buffer, buffer);
  }
  // If the process was killed meanwhile, there will be no other event.
  if (owner->fd() && has_ended(owner->fd())) drop_buffers_of(owner->process());
  reply.set(out);
  return {};
}

Result<void> GpuService::handle(const From& from, const UnregisterRequest& request, GpuReply&) {
  const BufferPtr buffer = SLUICE_TRY(find(from, request.buffer));
  Shard& s = shard(from.open);
  MutexLock lock(s.mutex);
  const auto open = s.opens.find(from.open.to_wire());
  // Another thread may have unregistered it meanwhile.
  if (open == s.opens.end() || open->second.erase(request.buffer) == 0)
    return Error(ENOENT, "no such buffer");
  if (open->second.empty()) s.opens.erase(open);
  return {};
}

Result<void> GpuService::handle(const From& from, const PrefetchRequest& request, GpuReply&) {
  if (request.warm) {
    if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
    SLUICE_TRY(filesystem_.gpu().warm(from.file, request.offset, request.length, from.caller.uid));
  }
  if (request.hbm) {
    if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
    SLUICE_TRY(filesystem_.gpu().hbm_pins().prefetch(from.file, GpuUuid{}, from.caller.uid));
  }
  if (request.promote) {
    // As for user.sluice.tier, which needs the right to write the file.
    if (!from.open.writes() &&
        !SLUICE_TRY(filesystem_.attributes().is_owner(from.file, from.caller)))
      return Error(EPERM, "promote a file: open it for writing, or be its owner");
    SLUICE_TRY(filesystem_.moves().promote(from.file, from.caller.uid));
  }
  return {};
}

Result<void> GpuService::handle(const From& from, const QueryRequest& request, GpuReply& reply) {
  Device* gpu = nullptr;
  std::string why_no_gpu;
  if (request.kind != SLUICE_BUFFER_MEMFD) {
    const auto found = device(request.gpu);
    // A caller that asks for any GPU is told that there is none.
    if (!found && request.gpu != GpuUuid{}) return found.error();
    if (found) {
      gpu = *found;
    } else {
      why_no_gpu =
          engine_.is_enabled() ? engine_.devices().why_none() : "turned off by gpu = false";
    }
  }
  const auto file = SLUICE_TRY(filesystem_.gpu().preview(from.file, gpu, from.caller.uid));
  auto out = reply.start<sluice_query>();
  out.abi_version = SLUICE_ABI_VERSION;
  out.file_size = file.size;
  out.route = static_cast<std::uint32_t>(file.preview.route);
  out.why = static_cast<std::uint32_t>(file.preview.why);
  out.alignment = file.preview.alignment;
  out.max_segments = SLUICE_MAX_SEGMENTS;
  out.gpus = engine_.is_enabled() && request.kind != SLUICE_BUFFER_MEMFD
                 ? static_cast<std::uint32_t>(engine_.devices().all().size())
                 : 0;
  out.epoch = epoch_.value();
  copy_text(out.tier, file.tier);
  copy_text(out.reason,
            file.preview.words + (why_no_gpu.empty() ? "" : "; no usable GPU: " + why_no_gpu));
  reply.set(out);
  return {};
}

Result<void> GpuService::handle(const From& from, const StatsRequest& request, GpuReply& reply) {
  if (request.reset && from.caller.uid != 0) return Error(EPERM, "reset statistics: only root may");
  const bool of_all = request.gpu == GpuUuid{};
  const Stats::Figures figures = of_all ? engine_.stats().all() : engine_.stats().of(request.gpu);
  auto out = reply.start<sluice_stats>();
  out.buffers = buffers();
  out.buffer_bytes = buffer_bytes();
  out.pinned_bytes = engine_.pinned_bytes();
  out.mapped_bytes = engine_.mapped_bytes();
  static_assert(kRoutes <= SLUICE_STATS_ROUTES);
  std::transform(figures.begin(), figures.end(), std::begin(out.routes), stats_of);
  if (request.reset) engine_.stats().reset();
  reply.set(out);
  return {};
}

Result<std::shared_ptr<Memory>> GpuService::memory_for_ring(OpenId open, std::uint64_t buffer,
                                                            const ClientProcess& client) {
  const BufferPtr found = SLUICE_TRY(find(open, buffer));
  if (found->client.get() != &client) return Error(ENOENT, "the buffer belongs to another process");
  return std::shared_ptr<Memory>(found, found->memory.get());
}

Result<void> GpuService::handle(const From& from, const RingCreateRequest& request,
                                GpuReply& reply) {
  const auto owner = SLUICE_TRY(client(from.caller.pid));
  const UniqueFd fd = SLUICE_TRY(take(*owner, request.fd, from.caller.uid));
  auto memory = SLUICE_TRY(map_host(fd, 0, request.length));
  auto share = SLUICE_TRY(take_share(*owner, from.caller.uid, fd, request.length));
  auto out = reply.start<sluice_ring_create>();
  out.ring = SLUICE_TRY(
      rings_.create(from.open, owner, from.caller.uid, {fd, std::move(memory), std::move(share)}));
  // If the process was killed meanwhile, there will be no other event.
  if (has_ended(owner->fd())) drop_buffers_of(owner->process());
  reply.set(out);
  return {};
}

Result<void> GpuService::handle(const From& from, const RingDestroyRequest& request, GpuReply&) {
  return rings_.destroy(request.ring, from.caller);
}

Result<void> GpuService::handle(const From& from, const RingAddFileRequest& request,
                                GpuReply& reply) {
  auto out = reply.start<sluice_ring_file>();
  out.file = SLUICE_TRY(rings_.add_file(request.ring, from.file, from.open, from.caller));
  reply.set(out);
  return {};
}

Result<void> GpuService::handle(const From& from, const RingDropFileRequest& request, GpuReply&) {
  return rings_.drop_file(request.ring, request.file, from.caller);
}

Result<void> GpuService::handle(const From& from, const ShareRequest& request, GpuReply& reply) {
  if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
  Device* gpu = SLUICE_TRY(device(request.gpu));
  auto shared = SLUICE_TRY(filesystem_.gpu().share(from.file, *gpu, from.caller.uid));
  auto out = reply.start<sluice_share>();
  std::memcpy(out.gpu_uuid, gpu->uuid().data(), sizeof out.gpu_uuid);
  out.size = shared.size;
  out.filled = shared.filled;
  out.allocation_length = shared.allocation;
  out.changed_ns = static_cast<std::uint64_t>(shared.changed);
  if (shared.memory) {
    if (shares_.path().size() >= sizeof out.socket)
      return Error(ENAMETOOLONG, "share GPU memory: the path of the socket is too long");
    const auto token = SLUICE_TRY(
        shares_.offer(from.caller.uid, std::move(shared.memory), std::move(shared.check)));
    std::memcpy(out.token, token.data(), sizeof out.token);
    copy_text(out.socket, shares_.path());
  } else {
    std::memset(out.token, 0, sizeof out.token);
  }
  reply.set(out);
  return {};
}

std::vector<LimitUse> GpuService::limits() const {
  std::size_t of_user = 0;
  {
    MutexLock lock(clients_mutex_);
    for (const auto& [user, count] : of_user_) of_user = std::max(of_user, count);
  }
  const std::uint64_t used = host_memory_.used(), largest = host_memory_.largest_share();
  std::vector<LimitUse> out{
      {"buffers", "user", of_user, kMostOfUser, "ENOSPC"},
      {"buffers", "all", buffers(), kMostOfAll, "ENOSPC"},
      {"host memory", "user", largest, (host_memory_.most() - (used - largest)) / 2, "ENOSPC",
       true},
      {"host memory", "all", used, host_memory_.most(), "ENOSPC", true},
      {"hanging descriptors", "all", taker_.hanging(), DescriptorTaker::kMostOfAll, "EBUSY"},
      {"share tokens", "all", shares_.tokens(), ShareSocket::kMostOfAll, "EBUSY"}};
  for (const LimitUse& each : rings_.limits()) out.push_back(each);
  return out;
}

}  // namespace sluice
