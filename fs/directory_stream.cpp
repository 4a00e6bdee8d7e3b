// SPDX-License-Identifier: BSD-2-Clause
#include "fs/directory_stream.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <unordered_set>

namespace sluice {
namespace {

constexpr std::size_t kBuffer = 32 << 10;
constexpr int kMostRounds = 8;
// After its last call, if nobody ends it: whoever lists may do something long with each name.
constexpr std::chrono::seconds kListingLasts{60};

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
  if (std::exchange(listing_, listing) != listing) directory_->listings.fetch_add(listing ? 1 : -1);
}

Result<void> DirectoryStream::load(off_t offset) {
  if (!loaded_ || offset == 0) {
    auto open = SLUICE_TRY(filesystem_.open_copies(directory_));
    copies_ = std::move(open.reachable);
    complete_ = open.complete;
    items_.clear();
    at_ = 0;
    position_ = 0;
    single_.reset();
    if (copies_.size() == 1) {
      single_.reset(::openat(copies_[0].get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (!single_) return Error::last("open directory");
    } else {
      SLUICE_TRY(load_merged());
    }
    loaded_ = true;
  }
  if (offset == position_) return {};
  if (!single_) {
    at_ = std::min(static_cast<std::size_t>(offset), items_.size());
  } else {
    items_.clear();
    at_ = 0;
    if (::lseek(single_.get(), offset, SEEK_SET) < 0) return Error::last("seek directory");
  }
  position_ = offset;
  return {};
}

Result<void> DirectoryStream::load_merged() {
  std::unordered_set<std::string> seen;
  std::uint64_t switches = filesystem_.switches_.load();
  int rounds = 0;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const UniqueFd fd(::openat(copies_[i].get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return Error::last("open directory");
    const auto add = [&](const char* name, unsigned char type, off_t) {
      if (!seen.emplace(name).second) return;
      items_.push_back({name, type, static_cast<off_t>(items_.size() + 1), i});
    };
    while (SLUICE_TRY(read_some(fd.get(), add))) {
    }
    if (i + 1 < copies_.size()) continue;
    // A file that moved to a tier already read, from one not yet read, is still missing.
    // Moves out of this directory wait for us; those that no longer could end during the first
    // rounds, and moves elsewhere must not keep us from coming to an end.
    const std::uint64_t now = filesystem_.switches_.load();
    if (std::exchange(switches, now) != now && rounds++ < kMostRounds)
      i = static_cast<std::size_t>(-1);
  }
  return {};
}

// Whether items_[at_] exists, after reading on if that is possible.
Result<bool> DirectoryStream::more() {
  if (at_ < items_.size()) return true;
  if (!single_) return false;
  items_.clear();
  at_ = 0;
  return read_some(single_.get(), [&](const char* name, unsigned char type, off_t next) {
    items_.push_back({name, type, next, 0});
  });
}

std::uint64_t DirectoryStream::number_of(const Raw& raw) {
  if (raw.name == ".") return to_number(directory_->id());
  if (raw.name == "..") {
    MutexLock lock(directory_->mutex);
    return to_number(directory_->parent);
  }
  const auto& copy = copies_[raw.copy];
  if (const auto identity = copy.tier->identity_of(copy.get(), raw.name.c_str()))
    return to_number(identity->id);
  // Deleted, or moved to another tier since its name was read.
  const auto now = filesystem_.open_copies(directory_);
  const auto found = now ? filesystem_.locate(*now, raw.name.c_str(), Filesystem::NamesLock::Free) : now.error();
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
    if (!hidden) {
      const bool own = raw.name == "." || raw.name == "..";
      const std::uint64_t number = numbers == Numbers::Wanted || own ? number_of(raw) : 1;
      // No number: it was deleted since we read its name.
      if (number != 0 && !take({raw.name, raw.type, raw.next, number})) return {};
    }
    position_ = raw.next;
    ++at_;
  }
  set_listing(false);
  if (!complete_) return Error(EIO, "part of the directory is on a tier that is offline");
  return {};
}

}  // namespace sluice
