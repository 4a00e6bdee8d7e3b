// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/tree/directory_stream.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string_view>

namespace sluice {

std::uint64_t detail::listing_hash_bits = (std::uint64_t{1} << 62) - 1;

namespace {

constexpr std::size_t kBuffer = 32 << 10;
constexpr int kMostRounds = 8;
constexpr off_t kLarge = 128 << 10;  // st_size of a directory with some thousand names

// One getdents64. Calls `found(name, type)` for each entry; false at the end of the directory.
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
    found(entry->name, entry->type);
    at += entry->size;
  }
  return got > 0;
}

// Identifies the state of a copy of a directory. Programs cannot set the ctime.
struct Stamp {
  TierIndex tier = kNoTier;
  ino_t inode = 0;
  std::int64_t ctime = 0;  // nanoseconds

  bool operator==(const Stamp&) const = default;
};

// The position of a name in a listing: a hash, but "." and ".." are first. Successors rely
// on it, so it must not change. Fits off_t.
std::uint64_t position_of(std::string_view name) {
  if (name == ".") return 0;
  if (name == "..") return 1;
  return (XXH3_64bits(name.data(), name.size()) & detail::listing_hash_bits) + 2;
}

Result<Stamp> stamp_of(TierIndex tier, int fd) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat");
  return Stamp{tier, st.st_ino, st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec};
}

}  // namespace

// Packed: each name needs its length and 17 more bytes.
struct DirectoryNames {
  struct Entry {
    std::uint64_t position;
    std::uint32_t at;  // in text
    std::uint8_t type;
    TierIndex tier;
  };
  std::string text;            // each name is followed by a zero byte
  std::vector<Entry> entries;  // ordered by position after arrange()
  std::vector<Stamp> stamps;   // taken before the names were read

  const char* name(const Entry& entry) const { return &text[entry.at]; }
  void add(std::string_view name, unsigned char type, TierIndex tier) {
    entries.push_back({position_of(name), static_cast<std::uint32_t>(text.size()), type, tier});
    text.append(name).push_back('\0');
  }

  // Orders the entries. Of those with the same name, only the first one that was added stays.
  void arrange() {
    std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
      if (a.position != b.position) return a.position < b.position;
      const int order = std::strcmp(name(a), name(b));
      return order != 0 ? order < 0 : a.at < b.at;
    });
    const auto doubles =
        std::unique(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
          return a.position == b.position && std::strcmp(name(a), name(b)) == 0;
        });
    if (doubles == entries.end()) return;
    entries.erase(doubles, entries.end());
    std::string kept;
    for (Entry& entry : entries) {
      const std::string_view each = name(entry);
      entry.at = static_cast<std::uint32_t>(kept.size());
      kept.append(each).push_back('\0');
    }
    text = std::move(kept);
  }

  // The index of the first entry at `offset` or after it.
  std::size_t find(off_t offset) const {
    const auto found = std::partition_point(entries.begin(), entries.end(), [&](const Entry& e) {
      return e.position < static_cast<std::uint64_t>(offset);
    });
    return static_cast<std::size_t>(found - entries.begin());
  }
  // The offset of the entry after `index`. Names with the same position have the same offset, so
  // that none is lost.
  off_t next_offset(std::size_t index) const {
    const std::uint64_t here = entries[index].position;
    const bool ties = index + 1 < entries.size() && entries[index + 1].position == here;
    return static_cast<off_t>(ties ? here : here + 1);
  }

  // Whether a later change would change the stamps. A change in the same clock tick as the reading
  // may have come before it or after it, so the last change must be some ticks old.
  bool can_be_shared() const {
    constexpr std::int64_t kTicks = 50'000'000;
    const std::int64_t now =
        std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    return std::all_of(stamps.begin(), stamps.end(),
                       [&](const Stamp& each) { return each.ctime + kTicks < now; });
  }
};

bool DirectoryStream::may_take_long() {
  if (size_ == Size::Unknown) {
    const auto copies = tree_.open_copies(directory_);
    if (!copies) return false;
    const bool large = std::any_of(copies->reachable.begin(), copies->reachable.end(), [](auto& c) {
      struct stat st {};
      return ::fstat(c.get(), &st) == 0 && st.st_size > kLarge;
    });
    size_ = large ? Size::Large : Size::Small;
  }
  return size_ == Size::Large;
}

// Goes to `offset`. Reads the names if nothing was read yet, and anew for offset 0.
Result<void> DirectoryStream::load(off_t offset) {
  if (!names_ || offset == 0) {
    // Moves wait meanwhile: a file that moved to a tier that is not read would be missing.
    struct Listing {
      explicit Listing(std::atomic<int>& running) : count(running) { ++count; }
      ~Listing() { --count; }
      std::atomic<int>& count;
    };
    const Listing listing(directory_->listings);
    names_ = nullptr;
    SLUICE_TRY(read_copies());
    at_ = 0;
    position_ = 0;
  }
  if (offset == position_) return {};
  at_ = names_->find(offset);
  position_ = offset;
  return {};
}

// Opens the directory's copies and reads their names, unless another stream has the same ones.
Result<void> DirectoryStream::read_copies() {
  auto open = SLUICE_TRY(tree_.open_copies(directory_));
  complete_ = open.complete;
  copies_ = std::move(open.reachable);
  auto names = std::make_shared<DirectoryNames>();
  for (const auto& copy : copies_)
    names->stamps.push_back(SLUICE_TRY(stamp_of(copy.tier->index(), copy.get())));
  std::shared_ptr<const DirectoryNames> shared;
  {
    Inode::Locked state(*directory_);
    shared = state->directory.listed_names.lock();
  }
  if (shared && shared->stamps == names->stamps) {
    names_ = std::move(shared);
    return {};
  }
  const bool can_be_shared = names->can_be_shared();
  SLUICE_TRY(read_names(*names));
  names->text.shrink_to_fit();
  names->entries.shrink_to_fit();
  names_ = std::move(names);
  Inode::Locked state(*directory_);
  if (can_be_shared) state->directory.listed_names = names_;
  return {};
}

Result<void> DirectoryStream::read_names(DirectoryNames& names) {
  std::uint64_t switches = names_lock_.switches();
  int rounds = 0;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const UniqueFd fd(::openat(copies_[i].get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return Error::last("open directory");
    const TierIndex tier = copies_[i].tier->index();
    const auto add = [&](const char* name, unsigned char type) { names.add(name, type, tier); };
    while (SLUICE_TRY(read_some(fd.get(), add))) {
    }
    if (i + 1 < copies_.size()) continue;
    names.arrange();
    // A file that moved from a copy not yet read to one already read is still missing, so read
    // again after each switch. New moves in this directory wait for the listing, and moves that run
    // already end during the first rounds. The number of rounds is limited because moves in other
    // directories count as well.
    const std::uint64_t now = names_lock_.switches();
    if (std::exchange(switches, now) != now && rounds++ < kMostRounds)
      i = static_cast<std::size_t>(-1);
  }
  return {};
}

std::uint64_t DirectoryStream::number_of(const char* name, TierIndex tier) {
  if (name == std::string_view(".")) return to_number(directory_->id());
  if (name == std::string_view("..")) {
    Inode::Locked state(*directory_);
    return to_number(state->name.parent);
  }
  for (const auto& copy : copies_) {
    if (copy.tier->index() != tier) continue;
    if (const auto identity = copy.tier->identity_of(copy.get(), name))
      return to_number(identity->id);
  }
  // It was deleted or moved to another tier after its name was read.
  const auto now = tree_.open_copies(directory_);
  const auto found = now ? tree_.locate(*now, name, NamesHeld::No) : now.error();
  return found && !found->empty() ? to_number((*found)[0].identity.id) : 0;
}

Result<void> DirectoryStream::read(off_t offset, Numbers numbers,
                                   const std::function<bool(const Item&)>& take) {
  MutexLock lock(mutex_);
  SLUICE_TRY(load(offset));
  for (; at_ < names_->entries.size(); ++at_) {
    const DirectoryNames::Entry& entry = names_->entries[at_];
    const std::string_view name = names_->name(entry);
    const off_t next = names_->next_offset(at_);
    const bool hidden = directory_->id() == kRootId && name == kPrivateDirectory;
    if (!hidden) {
      const bool own = name == "." || name == "..";
      const std::uint64_t number =
          numbers == Numbers::Wanted || own ? number_of(name.data(), entry.tier) : 1;
      // 0: it was deleted after its name was read.
      if (number != 0 && !take({name.data(), entry.type, next, number})) return {};
    }
    position_ = next;
  }
  if (!complete_) return Error(EIO, "part of the directory is on a tier that is offline");
  return {};
}

}  // namespace sluice
