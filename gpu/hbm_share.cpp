// SPDX-License-Identifier: BSD-2-Clause
// Sharing of copies in GPU memory with other processes.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "base/log.hpp"
#include "gpu/checksum.hpp"
#include "gpu/engine.hpp"
#include "gpu/engine_parts.hpp"

namespace sluice {
namespace {

// Others may come between two calls of share() that fill so much each.
constexpr std::uint64_t kSharePart = 64 << 20;
// A request that touches more separate places than this is faster by another route than checking
// each of them.
constexpr std::size_t kMostPlaces = 16;

// The parts of the file that have the checksums of the blocks that the segments touch, joined.
std::vector<HbmCopy::Range> places_of(std::span<const Segment> segments, std::uint64_t size) {
  std::vector<HbmCopy::Range> all;
  for (const Segment& segment : segments) {
    if (segment.length == 0) continue;
    const std::uint64_t end = segment.file_offset + segment.length;
    all.push_back({segment.file_offset / kChecksumBlock * kChecksumBlock,
                   std::min(checksum_count(end) * kChecksumBlock, size)});
  }
  std::sort(all.begin(), all.end(),
            [](const auto& one, const auto& other) { return one.begin < other.begin; });
  std::vector<HbmCopy::Range> joined;
  for (const HbmCopy::Range& each : all) {
    if (!joined.empty() && each.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, each.end);
    } else {
      joined.push_back(each);
    }
  }
  return joined;
}

}  // namespace

bool HbmCopy::is_one_piece() const {
  const MutexLock lock(mutex_);
  return pieces_.size() == 1 && pieces_[0].range.end - pieces_[0].range.begin == reserved_;
}

std::optional<uid_t> HbmCopy::user() const {
  const std::int64_t user = user_;
  if (user < 0) return std::nullopt;
  return static_cast<uid_t>(user);
}

bool HbmCopy::may_serve(uid_t user) const {
  const auto only = this->user();
  return !only || *only == user;
}

bool HbmCopy::share_with(uid_t user) {
  std::int64_t nobody = -1;
  user_.compare_exchange_strong(nobody, user);
  return may_serve(user);
}

Result<std::uint64_t> HbmCopy::changed_blocks(Lane& lane) {
  SLUICE_CHECK(user().has_value(), "checksums are taken of a copy that is shared");
  const MutexLock lock(sums_mutex_);
  if (sums_ready_) {
    return SLUICE_TRY(verify_blocks(lane, address(), version_.size, sums_)).blocks;
  }
  const std::uint64_t bytes = checksum_count(version_.size) * sizeof(std::uint64_t);
  if (sums_ == 0) {
    const CUresult code = device_.api().cuMemAlloc(&sums_, bytes);
    if (code != CUDA_SUCCESS) return device_.failed(code, "allocate GPU memory for checksums");
  }
  // Who maps it also sees what is behind the file: bytes of whoever had this memory before.
  const CudaApi& api = device_.api();
  CUresult code = CUDA_SUCCESS;
  if (this->bytes() > version_.size) {
    code =
        api.cuMemsetD8Async(address() + version_.size, 0, this->bytes() - version_.size, nullptr);
  }
  if (code == CUDA_SUCCESS) code = api.cuStreamSynchronize(nullptr);
  if (code != CUDA_SUCCESS) return device_.failed(code, "clear GPU memory");
  const auto begun = checksum_blocks(lane, address(), version_.size, sums_);
  SLUICE_TRY(lane.synchronize());
  SLUICE_TRY(begun);
  sums_ready_ = true;
  return 0;
}

Result<std::uint64_t> HbmCopy::changed_blocks(Lane& lane, std::span<const Segment> segments) {
  SLUICE_CHECK(has_sums(), "the checksums of a shared copy were taken");
  std::uint64_t changed = 0;
  for (const auto& [begin, end] : places_of(segments, version_.size)) {
    const CUdeviceptr sums = sums_ + begin / kChecksumBlock * sizeof(std::uint64_t);
    changed += SLUICE_TRY(verify_blocks(lane, address() + begin, end - begin, sums)).blocks;
  }
  return changed;
}

Result<UniqueFd> HbmCopy::export_memory() {
  SLUICE_CHECK(is_one_piece(), "memory that is exported is one piece");
  SLUICE_TRY(device_.enter());
  const MutexLock lock(mutex_);
  // Exporting takes as long as mapping.
  if (!exported_) {
    int fd = -1;
    const CUresult code = device_.api().cuMemExportToShareableHandle(
        &fd, pieces_.front().handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (code != CUDA_SUCCESS) return device_.failed(code, "export GPU memory");
    exported_.reset(fd);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  UniqueFd copy(::fcntl(exported_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Error::last("duplicate a descriptor");
  return copy;
}

Result<bool> Engine::Parts::is_intact(const HbmTier::Shared& copy,
                                      std::span<const Segment> segments) {
  std::uint64_t changed = 0;
  {
    Staging* const lent = SLUICE_TRY(staging(copy->device()));
    const LanePool::Loan lane(lent->batches());
    SLUICE_TRY(lane->enter(copy->device()));
    changed = SLUICE_TRY(segments.empty() ? copy->changed_blocks(*lane)
                                          : copy->changed_blocks(*lane, segments));
  }
  if (changed == 0) return true;
  hbm.drop(copy);
  log::get().warn(
      "a program has written to GPU memory that was shared with it; the copy of the file is "
      "dropped "
      "and made again: inode={} uid={} blocks={} gpu={}",
      copy->version().id.inode, *copy->user(), changed, to_string(copy->device().uuid()));
  return false;
}

bool Engine::Parts::may_read(const HbmTier::Shared& copy, std::span<const Segment> segments) {
  if (!copy->user()) return true;
  // Without checksums, somebody is about to share it for the first time.
  if (!copy->has_sums() || places_of(segments, copy->version().size).size() > kMostPlaces) {
    return false;
  }
  const auto intact = is_intact(copy, segments);
  return intact && *intact;
}

Result<SharedCopy> Engine::share(const EngineFile& file, Device& device) {
  struct stat stat {};
  if (::fstat(file.fd, &stat) != 0) return Error::last("stat the file");
  const auto version = FileVersion::of(stat);
  if (version.size == 0) return Error(EINVAL, "share the memory of an empty file");
  SLUICE_TRY(device.enter());
  if (device.kernels() == nullptr) return Error(EOPNOTSUPP, "share GPU memory without checksums");
  HbmTier& hbm = parts_->hbm;
  auto copy = SLUICE_TRY(hbm.request_for(file.fd, version, device, file.user));
  SharedCopy out{.size = version.size, .allocation = copy->bytes(), .changed = version.changed};
  for (std::uint64_t at = 0; at < version.size; at += kSharePart) {
    const Segment part{0, at, std::min(kSharePart, version.size - at)};
    if (copy->is_filled({&part, 1})) continue;
    Stats::Timer timer(stats_, device.uuid());
    Transfer filled;
    if (!parts_->fill(copy, file.fd, {&part, 1}, timer, filled)) {
      if (device.is_lost()) return Error(ENODEV, "use a GPU that is lost");
      return Error(EAGAIN, "the file changed while it was copied into the GPU's memory");
    }
    if (filled.bytes > 0) timer.finish(filled);
    break;
  }
  out.filled = copy->filled_bytes();
  if (out.filled < version.size) return out;
  // Before the checksums are taken, so that whoever reads from now on knows. If another user was
  // faster, the next call fills another copy.
  if (!copy->share_with(file.user)) {
    out.filled = 0;
    return out;
  }
  // They are taken before anybody can write to it.
  if (!copy->has_sums() && !SLUICE_TRY(parts_->is_intact(copy, {}))) {
    out.filled = 0;
    return out;
  }
  if (!version.is_of(file.fd)) {
    hbm.drop(copy);
    return Error(EAGAIN, "the file changed while it was shared");
  }
  out.memory = SLUICE_TRY(copy->export_memory());
  // It does not keep the copy: a caller that never asks would block its memory for others.
  out.check = [parts = parts_.get(), weak = std::weak_ptr(copy)] {
    const auto still = weak.lock();
    if (!still) return false;
    const auto intact = parts->is_intact(still, {});
    return intact && *intact;
  };
  return out;
}

}  // namespace sluice
