// SPDX-License-Identifier: BSD-2-Clause
#include "fs/directory_stream.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>

#include "fs/options.hpp"

namespace sluice {
namespace {

constexpr std::size_t kBuffer = 32 << 10;
// After its last call, if nobody ends it: whoever lists may do something long with each name.
constexpr std::chrono::seconds kListingLasts{60};

// An offset of ours: the tier being read in the highest bits, then what the tier calls the place.
// ext4's places are hashes of 63 bits; those lose their lowest bits, which costs nothing: going
// back to one leads to the first name whose hash is not smaller, and two that are so near each
// other don't occur in practice. Other filesystems count names or bytes, in numbers that fit.
struct Offset {
  static constexpr unsigned kPlaceBits = 57, kLost = 6, kTierBits = 5;
  static constexpr std::uint64_t kHashed = std::uint64_t{1} << kPlaceBits;
  static constexpr std::uint64_t kMoved = (1 << kTierBits) - 1;  // no tier: the names that moved
  static_assert(kMostTiers <= kMoved);

  std::uint64_t tier = 0;
  std::uint64_t place = 0;

  off_t encoded() const {
    const std::uint64_t low = place < kHashed ? place : kHashed | place >> kLost;
    return static_cast<off_t>(tier << (kPlaceBits + 1) | low);
  }
  static Offset decoded(off_t offset) {
    const auto bits = static_cast<std::uint64_t>(offset);
    const std::uint64_t low = bits & (2 * kHashed - 1);
    return {bits >> (kPlaceBits + 1), low < kHashed ? low : (low & (kHashed - 1)) << kLost};
  }
};

// One getdents64. Calls `found(name, type, next)` for each entry; false at the end of the
// directory.
template <typename Found>
Result<bool> read_some(int fd, Found found) {
  struct Entry {
    std::uint64_t inode;
    std::int64_t next;
    std::uint16_t size;
    std::uint8_t type;
    char name[];
  };
  alignas(Entry) static thread_local std::array<char, kBuffer> buffer;
  const long got = ::syscall(SYS_getdents64, fd, buffer.data(), buffer.size());
  if (got < 0) return Error::last("read directory");
  for (long at = 0; at < got;) {
    const auto* entry = reinterpret_cast<const Entry*>(buffer.data() + at);
    found(entry->name, entry->type, static_cast<off_t>(entry->next));
    at += entry->size;
  }
  return got > 0;
}

}  // namespace

DirectoryStream::~DirectoryStream() {
  MutexLock lock(mutex_);
  set_listing(false);
}

void DirectoryStream::set_listing(bool listing) {
  if (listing) {
    const auto until = std::chrono::steady_clock::now().time_since_epoch() + kListingLasts;
    directory_->listed_until = std::chrono::nanoseconds(until).count();
  }
  if (std::exchange(listing_, listing) == listing) return;
  directory_->listings.fetch_add(listing ? 1 : -1);
  if (!listing) drop_moved_names(*directory_);
}

Result<void> DirectoryStream::load(off_t offset) {
  if (!loaded_ || offset == 0) {
    // Before the tiers are looked at: what begins to move later waits for us.
    watched_.clear();
    old_moves_ = 0;
    if (offset == 0) watch_moves(Phase::Beginning);
    auto open = SLUICE_TRY(filesystem_.open_copies(directory_));
    copies_ = std::move(open.reachable);
    complete_ = open.complete;
    SLUICE_TRY(seek(0));
    loaded_ = true;
  }
  return offset == position_ ? Result<void>() : seek(offset);
}

Result<void> DirectoryStream::seek(off_t offset) {
  items_.clear();
  at_ = 0;
  fd_.reset();
  position_ = offset;
  const Offset to = Offset::decoded(offset);
  const auto at = std::find_if(copies_.begin(), copies_.end(),
                               [&](const auto& copy) { return copy.tier->index() >= to.tier; });
  copy_ = static_cast<std::size_t>(at - copies_.begin());
  for (auto& [name, watched] : watched_) {
    if (watched.shown_at > offset) watched.is_shown = false;
  }
  if (at == copies_.end()) {
    add_moved(to.tier == Offset::kMoved ? to.place : 0);
    return {};
  }
  if (at->tier->index() != to.tier || to.place == 0) return {};
  fd_.reset(::openat(at->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd_) return Error::last("open directory");
  if (::lseek(fd_.get(), static_cast<off_t>(to.place), SEEK_SET) < 0)
    return Error::last("seek directory");
  return {};
}

// Takes notice of names that change their tier.
void DirectoryStream::watch_moves(Phase phase) {
  MutexLock lock(directory_->mutex);
  if (!directory_->moved_names) return;
  for (const MovedName& each : *directory_->moved_names) {
    const bool begins = phase == Phase::Beginning;
    if (begins ? each.is_over : !each.is_going || each.number <= old_moves_) continue;
    Watched watched;
    if (each.stays) {
      watched.only_on = each.from;
    } else {
      // Where it came from has been read already: then it was shown.
      watched.is_shown =
          !begins && (copy_ == copies_.size() || each.from < copies_[copy_].tier->index());
    }
    watched_.try_emplace(each.name, watched);
  }
  if (phase == Phase::Beginning && !directory_->moved_names->empty())
    old_moves_ = directory_->moved_names->back().number;
}

// What one getdents of the current copy gives. False at its end.
Result<bool> DirectoryStream::read_copy() {
  if (!fd_) {
    fd_.reset(::openat(copies_[copy_].get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd_) return Error::last("open directory");
  }
  const std::uint64_t tier = copies_[copy_].tier->index();
  const bool any =
      SLUICE_TRY(read_some(fd_.get(), [&](const char* name, unsigned char type, off_t next) {
        const Offset behind{tier, static_cast<std::uint64_t>(next)};
        items_.push_back({name, type, behind.encoded(), 0});
      }));
  // Afterwards: who has put a name there has told of it before.
  watch_moves(Phase::UnderWay);
  return any;
}

// The moved names that were not met on any tier, when all have been read.
void DirectoryStream::add_moved(std::uint64_t place) {
  watch_moves(Phase::UnderWay);
  const auto is_missing = [](const auto& each) {
    return each.second.only_on == kNoTier && !each.second.is_shown;
  };
  if (std::none_of(watched_.begin(), watched_.end(), is_missing)) return;
  const auto copies = filesystem_.open_copies(directory_);
  if (!copies) return;
  for (const auto& each : watched_) {
    if (!is_missing(each)) continue;
    const auto found = filesystem_.locate(*copies, each.first.c_str(), Filesystem::NamesLock::Free);
    if (!found || found->empty()) continue;
    const Located& there = found->front();
    items_.push_back({each.first, static_cast<unsigned char>(IFTODT(there.st.st_mode)),
                      Offset{Offset::kMoved, ++place}.encoded(), to_number(there.identity.id)});
  }
}

// Whether items_[at_] exists, after reading on if that is possible.
Result<bool> DirectoryStream::more() {
  while (at_ == items_.size()) {
    if (copy_ == copies_.size()) return false;
    items_.clear();
    at_ = 0;
    if (SLUICE_TRY(read_copy())) continue;
    fd_.reset();
    if (++copy_ == copies_.size()) add_moved(0);
  }
  return true;
}

// Whether the name is shown for another copy than the one being read.
bool DirectoryStream::is_elsewhere(const Raw& raw) {
  const auto is_watched_and_elsewhere = [&]() -> std::optional<bool> {
    const auto watched = watched_.find(raw.name);
    if (watched == watched_.end()) return std::nullopt;
    if (watched->second.only_on == kNoTier) return watched->second.is_shown;
    return copies_[copy_].tier->index() != watched->second.only_on;
  };
  if (const auto known = is_watched_and_elsewhere()) return *known;
  if (copy_ == 0 || copy_ == copies_.size()) return false;
  if (raw.name == "." || raw.name == "..") return true;
  const auto has_it = [&](const auto& faster) {
    return ::faccessat(faster.get(), raw.name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  };
  const auto faster_end = copies_.begin() + static_cast<std::ptrdiff_t>(copy_);
  if (std::none_of(copies_.begin(), faster_end, has_it)) return false;
  // It was there when we read that tier, or it has come since; then we have been told.
  watch_moves(Phase::UnderWay);
  return is_watched_and_elsewhere().value_or(true);
}

std::uint64_t DirectoryStream::number_of(const Raw& raw) {
  if (raw.name == ".") return to_number(directory_->id());
  if (raw.name == "..") {
    MutexLock lock(directory_->mutex);
    return to_number(directory_->parent);
  }
  if (raw.number != 0) return raw.number;
  const auto& copy = copies_[copy_];
  if (const auto identity = copy.tier->identity_of(copy.get(), raw.name.c_str()))
    return to_number(identity->id);
  // Deleted, or moved to another tier since its name was read.
  const auto now = filesystem_.open_copies(directory_);
  const auto found =
      now ? filesystem_.locate(*now, raw.name.c_str(), Filesystem::NamesLock::Free) : now.error();
  return found && !found->empty() ? to_number((*found)[0].identity.id) : 0;
}

Result<void> DirectoryStream::read(off_t offset, Numbers numbers,
                                   const std::function<bool(const Item&)>& take) {
  MutexLock lock(mutex_);
  set_listing(true);
  SLUICE_TRY(load(offset));
  while (SLUICE_TRY(more())) {
    const Raw& raw = items_[at_];
    const bool hidden = directory_->id() == kRootId && raw.name == kPrivateDirectory;
    if (!hidden && !is_elsewhere(raw)) {
      const bool own = raw.name == "." || raw.name == "..";
      const std::uint64_t number = numbers == Numbers::Wanted || own ? number_of(raw) : 1;
      // No number: it was deleted since we read its name.
      if (number != 0 && !take({raw.name, raw.type, raw.next, number})) return {};
      if (const auto watched = watched_.find(raw.name); watched != watched_.end()) {
        watched->second.is_shown = true;
        watched->second.shown_at = raw.next;
      }
    }
    position_ = raw.next;
    ++at_;
  }
  set_listing(false);
  if (!complete_) return Error(EIO, "part of the directory is on a tier that is offline");
  return {};
}

}  // namespace sluice
