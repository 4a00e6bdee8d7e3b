// SPDX-License-Identifier: BSD-2-Clause
// Bytes to and from memory that others named to us: what the engine's requests mean for a file that
// has a place, heat and readers of its own.
#include <sys/stat.h>

#include <charconv>

#include "base/units.hpp"
#include "fs/filesystem.hpp"

namespace sluice {

// A move may go on copying; it may not change hands until the request is done, because the engine
// knows the file by its descriptor.
Filesystem::UseGuard::UseGuard(InodePtr inode) : inode_(std::move(inode)) {
  for (;;) {
    std::shared_ptr<FileMove> ending;
    {
      MutexLock lock(inode_->mutex);
      if (!inode_->move || !inode_->move->is_switching) {
        ++inode_->uses;
        return;
      }
      ending = inode_->move;
    }
    ending->wait_for_end();
  }
}

Filesystem::UseGuard::~UseGuard() {
  MutexLock lock(inode_->mutex);
  --inode_->uses;
}

Result<InodePtr> Filesystem::gpu_file(InodeId id) {
  if (engine_ == nullptr) return Error(EOPNOTSUPP, "no engine");
  InodePtr file = SLUICE_TRY(inode(id));
  if (!S_ISREG(file->type)) return Error(ENOTTY, "ioctl");
  return file;
}

Result<Transfer> Filesystem::gpu_read(InodeId id, Memory& memory, std::span<const Segment> segments,
                                      Route wanted) {
  const InodePtr file = SLUICE_TRY(gpu_file(id));
  const UseGuard guard(file);
  const SharedFd fd = SLUICE_TRY(reader(file));
  engine_in_use_ = true;
  const EngineFile from{.fd = fd->get()};
  const auto done = segments.size() == 1 ? engine_->read(from, memory, segments[0], wanted)
                                         : engine_->read(from, memory, segments, wanted);
  if (done) note_gpu_read(file, fd, done->bytes);
  return done;
}

// As much as the file holds is one use of it, whatever the size of the requests.
void Filesystem::note_gpu_read(const InodePtr& file, const SharedFd& fd, std::uint64_t bytes) {
  const std::uint64_t sum = file->gpu_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  {
    MutexLock lock(file->mutex);
    if (sum < file->size_hint) return;
  }
  struct stat st {};
  if (sum == 0 || ::fstat(fd->get(), &st) < 0) return;
  {
    MutexLock lock(file->mutex);
    file->size_hint = static_cast<std::uint64_t>(st.st_size);
    if (sum < file->size_hint) return;
  }
  if (const std::uint64_t counted = file->gpu_bytes.exchange(0); counted > 0) {
    heat_.record(file->id(), {.gpu_bytes = counted});
    if (tracing_.load(std::memory_order_relaxed)) trace_access(file);
  }
}

Result<Transfer> Filesystem::gpu_write(InodeId id, Memory& memory, const Segment& segment,
                                       Route wanted, const std::optional<Caller>& strip_suid) {
  const InodePtr file = SLUICE_TRY(gpu_file(id));
  // No guard: the mover leaves a file alone that is open for writing, and a piece that finds its
  // tier full takes the file to another.
  const SharedFd fd = SLUICE_TRY(reader(file));
  engine_in_use_ = true;
  EngineFile to{.fd = fd->get()};
  to.write = [&](const std::byte* data, std::size_t size, std::uint64_t offset) -> Result<void> {
    while (size > 0) {
      const std::size_t put = SLUICE_TRY(write(id, reinterpret_cast<const char*>(data), size,
                                               static_cast<off_t>(offset), strip_suid));
      data += put;
      size -= put;
      offset += put;
    }
    return {};
  };
  const auto done = engine_->write(to, memory, segment, wanted);
  written_past_kernel(file);
  return done;
}

// The kernel learns now that size and times have changed: whoever reads next asks for them, and
// drops the pages that it kept if they differ. Pages that somebody has mapped are dropped by the
// next tick(): doing that here could wait for a read that waits for this thread.
void Filesystem::written_past_kernel(const InodePtr& file) {
  bool has_pages = false;
  {
    MutexLock lock(file->mutex);
    file->told_mtime = 0;
    has_pages = file->open && !file->open->passthrough;
  }
  kernel_.drop_attributes(file->id());
  if (!has_pages) return;
  MutexLock lock(mapped_mutex_);
  written_.insert(file->id());
}

void Filesystem::drop_written_pages() {
  std::set<InodeId> written;
  {
    MutexLock lock(mapped_mutex_);
    written.swap(written_);
  }
  for (const InodeId id : written) kernel_.drop_pages(id);
}

Result<Filesystem::GpuPreview> Filesystem::gpu_preview(InodeId id, Device* device) {
  const InodePtr file = SLUICE_TRY(gpu_file(id));
  const UseGuard guard(file);
  GpuPreview out;
  out.size = static_cast<std::uint64_t>(SLUICE_TRY(stat_of(file)).st_size);
  {
    MutexLock lock(file->mutex);
    out.tier = pool_[file->copies[0].tier].name();
  }
  const SharedFd fd = SLUICE_TRY(reader(file));
  engine_in_use_ = true;
  out.preview = engine_->preview({.fd = fd->get()}, out.size, device);
  return out;
}

Result<void> Filesystem::warm(InodeId id, std::uint64_t offset, std::uint64_t length, uid_t user) {
  const InodePtr file = SLUICE_TRY(gpu_file(id));
  const UseGuard guard(file);
  const SharedFd fd = SLUICE_TRY(reader(file));
  engine_in_use_ = true;
  return engine_->warm({.fd = fd->get()}, offset, length, user);
}

Result<bool> Filesystem::is_owner(InodeId id, const Caller& caller) {
  const InodePtr file = SLUICE_TRY(inode(id));
  return caller.uid == 0 || SLUICE_TRY(stat_of(file)).st_uid == caller.uid;
}

Result<void> Filesystem::promote(InodeId id, uid_t user) {
  const InodePtr file = SLUICE_TRY(inode(id));
  const auto bytes = static_cast<std::uint64_t>(SLUICE_TRY(stat_of(file)).st_blocks) * 512;
  TierIndex here = kNoTier;
  {
    MutexLock lock(file->mutex);
    here = file->copies[0].tier;
  }
  bool is_fastest = true;
  for (TierIndex faster = 0; faster < here; ++faster) {
    const Tier& tier = pool_[faster];
    if (!tier.online() || tier.is_draining()) continue;
    is_fastest = false;
    tier.refresh_space();
    if (tier.above_high_watermark() || tier.space().free < bytes + tier.reserve()) continue;
    return request_move(file, faster, user);
  }
  if (!is_fastest) return Error(ENOSPC, "no faster tier has room");
  return {};
}

// "warm" or nothing: the whole file; "0-1MiB": so much of it; "promote".
Result<void> Filesystem::prefetch(const InodePtr& file, std::string_view how, uid_t user) {
  if (!S_ISREG(file->type)) return Error(EISDIR, "prefetch");
  if (how == "promote") return promote(file->id(), user);
  if (how.empty() || how == "warm") return warm(file->id(), 0, 0, user);
  const auto dash = how.find('-');
  if (dash == std::string_view::npos) return Error(EINVAL, "prefetch");
  const auto begin = parse_size(how.substr(0, dash)), end = parse_size(how.substr(dash + 1));
  if (!begin || !end || *begin >= *end) return Error(EINVAL, "prefetch");
  return warm(file->id(), *begin, *end - *begin, user);
}

// For a person: where the bytes would go if somebody read the whole file now.
Result<std::string> Filesystem::describe_route(const InodePtr& file) {
  if (engine_ == nullptr) return Error(ENODATA, "getxattr");
  const bool enabled = engine_->is_enabled();
  const Result<Device*> gpu = enabled ? engine_->devices().by_uuid({}) : Error(EOPNOTSUPP, "gpu");
  const GpuPreview found = SLUICE_TRY(gpu_preview(file->id(), gpu ? *gpu : nullptr));
  std::string text = found.preview.words;
  if (!gpu)
    text += "; no GPU can be used: " +
            (enabled ? engine_->devices().why_none() : "turned off by gpu = false");
  return text;
}

// What the engine keeps of a file (mappings, handles) would keep its blocks when it is deleted, and
// keep a move from getting its lease. The engine knows by itself which files those are: the inode
// that it was asked with may be another by now, since the kernel forgets.
void Filesystem::forget_in_engine(const InodePtr& file) {
  if (!engine_in_use_) return;
  if (const auto fd = any_fd(file)) engine_->forget({.fd = (*fd)->get()});
}

}  // namespace sluice
