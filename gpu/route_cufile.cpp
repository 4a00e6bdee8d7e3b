// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route_cufile.hpp"

#include <fcntl.h>

#include <algorithm>

#include "gpu/cutter.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/residency.hpp"

namespace sluice {
namespace {

constexpr std::size_t kOpenFiles = 32;

// A separate open file: cuFile needs it for as long as the file is registered, and needs O_DIRECT
// to bypass the page cache.
UniqueFd reopen(int fd, bool direct) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0)));
}

class CuFileRead : public WorkerPool::Job {
 public:
  CuFileRead(Cutter& cutter, CuFileHandle& handle, Memory& memory)
      : cutter_(cutter), handle_(handle), memory_(memory) {}

  Result<bool> work(unsigned, WorkerPool::Turn& turn) override {
    SLUICE_TRY(memory_.device()->enter());
    Cutter::Piece piece;
    while (!is_stopped() && cutter_.take(piece)) {
      for (const Cutter::Part& part : piece.all()) SLUICE_TRY(read(part));
      if (turn.is_over()) return true;
    }
    return false;
  }

 private:
  Result<void> read(const Cutter::Part& part) {
    const auto& [to, from, length] = part.range;
    for (std::uint64_t at = 0; at < length;) {
      const std::size_t got =
          SLUICE_TRY(handle_.read(memory_.address(), to + at, length - at, from + at));
      if (got == 0) {
        cutter_.ends(part, at);
        break;
      }
      at += got;
    }
    return {};
  }

  Cutter& cutter_;
  CuFileHandle& handle_;
  Memory& memory_;
};

CuFiles::Verdict judge(Engine::Parts& parts, const RouteQuery& query) {
  return parts.cufiles.judge(query.file.fd, query.version.id, *query.device);
}

// The fastest route from the disk. A copy of bytes that are in memory is faster.
RouteOffer offer_gds(Engine::Parts& parts, RouteQuery& query) {
  if (query.wanted == Route::Auto) {
    const auto& [to, from, length] = query.segments[0];
    const auto glance = std::min(length, parts.settings.chunk);
    if (cached_share(query.file.fd, from, glance).value_or(0) >= 0.9) return RouteOffer::no();
  }
  return judge(parts, query).direct ? RouteOffer::yes(Why::Fastest) : RouteOffer::no();
}

RouteOffer offer_cufile(Engine::Parts& parts, RouteQuery& query) {
  return judge(parts, query).usable ? RouteOffer::yes() : RouteOffer::no();
}

Result<RouteWent> read_cufile(Engine::Parts& parts, EngineRequest& request) {
  WorkerPool& workers = parts.workers();
  Cutter cutter(request.segments, parts.settings.chunk, workers.size(), request.file.is_cancelled);
  const auto read = parts.cufiles.read(workers, request.file.fd, request.version.id, request.memory,
                                       cutter, request.file.user);
  if (failed_with(read, EOPNOTSUPP)) return RouteWent(RouteOffer::no(Why::CuFileRefused));
  const auto done = SLUICE_TRY(read);
  return RouteWent(Transfer{.bytes = done.bytes, .left = done.left});
}

Engine::Possibility describe_gds(Engine::Parts& parts, const RouteQuery& query) {
  const auto verdict = judge(parts, query);
  return {Route::Gds, verdict.direct, verdict.direct ? "ready" : verdict.words};
}

Engine::Possibility describe_cufile(Engine::Parts& parts, const RouteQuery& query) {
  const auto verdict = judge(parts, query);
  return {Route::CuFile, verdict.usable,
          verdict.usable ? "on request only; staged and mapped are faster" : verdict.words};
}

}  // namespace

extern const RouteWay kGdsWay = {offer_gds, read_cufile, nullptr, describe_gds};
extern const RouteWay kCuFileWay = {offer_cufile, read_cufile, nullptr, describe_cufile};

CuFiles::~CuFiles() {
  const MutexLock lock(mutex_);
  if (device_) static_cast<void>(device_->enter());  // because cuFile frees GPU memory
  files_.clear();
  cufile_.reset();
}

CuFile* CuFiles::cufile(Device& device) {
  if (!enabled_) {
    why_not_ = "cuFile is turned off in the settings: set gpu_cufile = true in [debug]";
    return nullptr;
  }
  if (tried_) return cufile_.get();
  tried_ = true;
  auto opened = CuFile::open();
  if (!opened) {
    why_not_ = opened.error().text();
    return nullptr;
  }
  cufile_ = *std::move(opened);
  device_ = &device;
  return cufile_.get();
}

void CuFiles::prepare(Device& device) {
  const MutexLock lock(mutex_);
  if (device.enter()) cufile(device);
}

std::shared_ptr<const CuFiles::File> CuFiles::file(int fd, const FileId& id, Device& device) {
  const auto now = std::chrono::steady_clock::now();
  const MutexLock lock(mutex_);
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&](const Kept& kept) { return kept.file->id == id; });
  if (found != files_.end()) {
    found->used = now;
    files_.splice(files_.begin(), files_, found);
    return files_.front().file;
  }
  auto fresh = std::make_shared<File>();
  fresh->id = id;
  Verdict& verdict = fresh->verdict;
  if (!device.enter()) {
    verdict.words = "the GPU is lost for this process: restart it";
    return fresh;
  }
  CuFile* const library = cufile(device);
  if (!library) {
    verdict.words = why_not_;
    return fresh;
  }
  verdict.direct = library->is_direct(fd, verdict.words);
  fresh->fd = reopen(fd, verdict.direct);
  if (!fresh->fd) {
    verdict = {false, false, "cannot open the file again: errno " + std::to_string(errno)};
    return fresh;
  }
  auto handle = CuFileHandle::create(*library, fresh->fd.get());
  if (handle) {
    verdict.usable = true;
    fresh->handle = *std::move(handle);
  } else {
    fresh->fd.reset();
    verdict = {
        false, false,
        "cuFile does not accept files of this filesystem (often 5027: its device has no udev "
        "entry; in a container, mount /run/udev)"};
  }
  if (files_.size() >= kOpenFiles) files_.pop_back();
  files_.push_front({fresh, now});
  sweeper_.start(idle_ / 4, [this] {
    const auto since = std::chrono::steady_clock::now() - idle_;
    drop([&](const Kept& kept) { return kept.used < since && kept.file.use_count() == 1; });
  });
  return fresh;
}

CuFiles::Verdict CuFiles::judge(int fd, const FileId& id, Device& device) {
  return file(fd, id, device)->verdict;
}

Result<Cutter::Done> CuFiles::read(WorkerPool& workers, int fd, const FileId& id, Memory& memory,
                                   Cutter& cutter, uid_t user) {
  const auto known = file(fd, id, *memory.device());
  if (!known->handle) return Error(EOPNOTSUPP, "read with cuFile");
  CuFileRead job(cutter, *known->handle, memory);
  SLUICE_TRY(workers.run(job, user));
  return cutter.done();
}

void CuFiles::forget(const std::function<bool(const FileId&)>& is_meant) {
  drop([&](const Kept& kept) { return is_meant(kept.file->id); });
}

void CuFiles::drop(const std::function<bool(const Kept&)>& is_meant) {
  std::list<Kept> dropped;  // deregistered without the lock
  Device* device = nullptr;
  {
    const MutexLock lock(mutex_);
    device = device_;
    for (auto it = files_.begin(); it != files_.end();) {
      const auto next = std::next(it);
      if (is_meant(*it)) dropped.splice(dropped.end(), files_, it);
      it = next;
    }
  }
  if (!dropped.empty() && device)
    static_cast<void>(device->enter());  // because cuFile frees GPU memory
}

}  // namespace sluice
