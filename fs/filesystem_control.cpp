// SPDX-License-Identifier: BSD-2-Clause
// What Sluice says of itself through the mount: the user.sluice.* xattrs, and the housekeeping
// behind them.
#include <malloc.h>

#include <cstring>

#include "base/log.hpp"
#include "fs/filesystem.hpp"

namespace sluice {
namespace {
constexpr unsigned kTicksPerFlush = 5;
constexpr std::size_t kBurst = 10'000;
}  // namespace

// Nothing if `name` is not one of ours. They are never listed, so that cp and rsync don't carry
// them along.
std::optional<Result<std::string>> Filesystem::virtual_xattr(const InodePtr& inode,
                                                             std::string_view name) {
  constexpr std::string_view kPrefix = "user.sluice.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());

  std::vector<TierIndex> tiers;
  {
    MutexLock lock(inode->mutex);
    for (const Copy& copy : inode->copies) tiers.push_back(copy.tier);
  }
  if (name == "tier") {
    std::string names;
    for (const TierIndex tier : tiers) names += (names.empty() ? "" : ",") + pool_[tier].name();
    return Result<std::string>(names);
  }
  if (name == "location") {
    const std::string path = path_of(inode);
    if (path.empty()) return Result<std::string>(Error(ENODATA, "location"));
    const std::string& root = pool_[tiers[0]].path();
    return Result<std::string>(path == "/" ? root : root + path);
  }
  if (name == "accesses" && S_ISREG(inode->type)) {
    const auto heat = heat_.heat(inode->id());
    if (!heat) return Result<std::string>(heat.error());
    return Result<std::string>(std::to_string(heat->opens + inode->new_opens.load()));
  }
  return Result<std::string>(Error(ENODATA, "getxattr"));
}

Result<void> Filesystem::flush_heat() {
  std::vector<InodePtr> opened;
  {
    MutexLock lock(opened_mutex_);
    opened.swap(opened_);
  }
  for (const InodePtr& inode : opened) heat_.count_opens(inode->id(), inode->new_opens.exchange(0));
  const auto flushed = heat_.flush();
  // The C library keeps what a burst of a hundred thousand opens took; most daemons never see
  // another.
  if (opened.size() > kBurst) ::malloc_trim(0);
  return flushed;
}

// Intents that waited for the tier. Nothing may be under way meanwhile that has an intent of its
// own.
void Filesystem::finish_deferred() {
  ExclusiveLock lock(namespace_);
  if (const auto replayed = replay_intents(store_, pool_); !replayed) {
    log::get().error("operations that waited for a tier can't be finished: why={}",
                     std::strerror(replayed.error().code));
  }
}

void Filesystem::tick() {
  notice_mapped_changes();
  for (const auto& tier : pool_) {
    if (!tier->check_presence()) continue;
    const TierIndex index = tier->index();
    if (tier->online()) {
      rediscover_all(index);
      finish_deferred();
      continue;
    }
    // Let go of everything on it, so that its disk can be taken away.
    table_.for_each([&](Inode& inode) {
      MutexLock lock(inode.mutex);
      for (Copy& copy : inode.copies) {
        if (copy.tier == index && !copy.handle.empty()) copy.fd = nullptr;
      }
    });
  }
  if (++ticks_ % kTicksPerFlush != 0) return;
  if (const auto flushed = flush_heat(); !flushed) {
    log::get().warn("access counts could not be stored and are kept in memory: why={}",
                    std::strerror(flushed.error().code));
  }
}

}  // namespace sluice
