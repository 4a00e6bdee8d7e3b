// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/files/gpu_files.hpp"

#include <sys/stat.h>

#include "base/units.hpp"
#include "fs/core/inodes/guards.hpp"

namespace sluice {

Result<InodePtr> GpuFiles::regular_file(InodeId id) {
  if (parts_.engine.engine() == nullptr) return Error(EOPNOTSUPP, "no engine");
  InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (!S_ISREG(file->type)) return Error(ENOTTY, "ioctl");
  return file;
}

Result<Transfer> GpuFiles::read(InodeId id, Memory& memory, std::span<const Segment> segments,
                                Route wanted, uid_t user, std::function<bool()> is_cancelled) {
  const InodePtr file = SLUICE_TRY(regular_file(id));
  const UseGuard guard(file);
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  const EngineFile from{.fd = fd->get(), .user = user, .is_cancelled = std::move(is_cancelled)};
  const auto done = parts_.engine.use().read(from, memory, segments, wanted);
  if (done) parts_.accesses.note_gpu_read(file, fd, done->bytes);
  return done;
}

Result<Transfer> GpuFiles::gather_from_hbm(InodeId id, Memory& memory, std::uint64_t memory_offset,
                                           const Engine::Records& records, const RecordIndex& index,
                                           uid_t user) {
  const InodePtr file = SLUICE_TRY(regular_file(id));
  const UseGuard guard(file);
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  const auto done = parts_.engine.use().gather({.fd = fd->get(), .user = user}, memory,
                                               memory_offset, records, index, nullptr, Route::Hbm);
  if (done) parts_.accesses.note_gpu_read(file, fd, done->bytes);
  return done;
}

Result<Transfer> GpuFiles::write(InodeId id, Memory& memory, const Segment& segment, Route wanted,
                                 const Caller& writer) {
  const InodePtr file = SLUICE_TRY(regular_file(id));
  const auto strip_suid = writer.uid == 0 ? std::nullopt : std::optional(writer);
  // No guard: the mover does not move a file that is open for writing, and a write to a full tier
  // must be able to spill the file.
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  EngineFile to{.fd = fd->get()};
  to.write = [&](const std::byte* data, std::size_t size, std::uint64_t offset) -> Result<void> {
    const CurrentCaller now(writer);  // the engine writes in a thread of its own
    while (size > 0) {
      const std::size_t put = SLUICE_TRY(parts_.files.write(
          id, reinterpret_cast<const char*>(data), size, static_cast<off_t>(offset), strip_suid));
      data += put;
      size -= put;
      offset += put;
    }
    return {};
  };
  const auto done = parts_.engine.use().write(to, memory, segment, wanted);
  parts_.pages.drop_cached(file);
  return done;
}

Result<SharedCopy> GpuFiles::share(InodeId id, Device& device, uid_t user) {
  const InodePtr file = SLUICE_TRY(regular_file(id));
  const UseGuard guard(file);
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  auto shared = parts_.engine.use().share({.fd = fd->get(), .user = user}, device);
  if (shared && shared->memory) parts_.accesses.note_gpu_read(file, fd, shared->size);
  return shared;
}

Result<GpuFiles::Preview> GpuFiles::preview(InodeId id, Device* device, uid_t user) {
  const InodePtr file = SLUICE_TRY(regular_file(id));
  const UseGuard guard(file);
  Preview out;
  out.size = static_cast<std::uint64_t>(SLUICE_TRY(parts_.attributes.stat_of(file)).st_size);
  out.tier = parts_.pool[file->tier()].name();
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  out.preview = parts_.engine.use().preview({.fd = fd->get(), .user = user}, out.size, device);
  return out;
}

Result<void> GpuFiles::warm(InodeId id, std::uint64_t offset, std::uint64_t length, uid_t user) {
  const InodePtr file = SLUICE_TRY(regular_file(id));
  const UseGuard guard(file);
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  return parts_.engine.use().warm({.fd = fd->get()}, offset, length, user);
}

Result<void> GpuFiles::prefetch(const InodePtr& file, std::string_view how, uid_t user) {
  if (!S_ISREG(file->type)) return Error(EISDIR, "prefetch");
  if (how == "promote") return parts_.moves.promote(file->id(), user);
  if (how == "hbm") return hbm_pins_.prefetch(file->id(), GpuUuid{}, user);
  if (how.starts_with("hbm:")) {
    return hbm_pins_.prefetch(file->id(), SLUICE_TRY(gpu_named(how.substr(4))), user);
  }
  if (how.empty() || how == "warm") return warm(file->id(), 0, 0, user);
  const auto dash = how.find('-');
  if (dash == std::string_view::npos) return Error(EINVAL, "prefetch");
  const auto begin = parse_size(how.substr(0, dash)), end = parse_size(how.substr(dash + 1));
  if (!begin || !end || *begin >= *end) return Error(EINVAL, "prefetch");
  return warm(file->id(), *begin, *end - *begin, user);
}

Result<GpuUuid> GpuFiles::gpu_named(std::string_view name) {
  Engine* const engine = parts_.engine.engine();
  if (engine == nullptr || !engine->is_enabled()) return Error(EOPNOTSUPP, "no engine");
  for (const auto& gpu : engine->devices().all()) {
    if (to_string(gpu->uuid()) == name) return gpu->uuid();
  }
  return Error(ENODEV, "there is no such GPU");
}

Result<std::string> GpuFiles::describe_route(const InodePtr& file) {
  Engine* const engine = parts_.engine.engine();
  if (engine == nullptr) return Error(ENODATA, "getxattr");
  const bool enabled = engine->is_enabled();
  const Result<Device*> gpu = enabled ? engine->devices().by_uuid({}) : Error(EOPNOTSUPP, "gpu");
  const Preview found = SLUICE_TRY(preview(file->id(), gpu ? *gpu : nullptr));
  std::string text = found.preview.words;
  if (!gpu)
    text += "; no GPU can be used: " +
            (enabled ? engine->devices().why_none() : "turned off by gpu = false");
  for (const auto& held : in_hbm(file)) {
    text += "; " + format_size(held.bytes) + " of it in the memory of " +
            to_string(held.device->uuid()) + (held.kept ? " (pinned)" : "");
  }
  return text;
}

std::vector<HbmTier::Held> GpuFiles::in_hbm(const InodePtr& file) {
  Engine* const engine = parts_.engine.engine();
  struct stat stat {};
  if (engine == nullptr || !engine->hbm().has_copies()) return {};
  const auto fd = parts_.descriptors.reader(file);
  if (!fd || ::fstat((*fd)->get(), &stat) != 0) return {};
  return engine->hbm().held(FileVersion::of(stat));
}

}  // namespace sluice
