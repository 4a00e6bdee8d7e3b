// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/tree/page_watch.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

constexpr std::size_t kLeastCleaning = 1024;

}  // namespace

void PageWatch::watch(const InodePtr& inode, InodeState& state) {
  state.pages.maybe_mapped = true;
  inode->record_mapped(true);
  if (std::exchange(state.pages.is_watched, true)) return;
  MutexLock lock(mutex_);
  mapped_.push_back(inode);
  if (mapped_.size() < next_cleaning_) return;
  std::erase_if(mapped_, [](const auto& each) { return each.expired(); });
  next_cleaning_ = std::max(kLeastCleaning, 2 * mapped_.size());
}

// The kernel grants a read lease only if no mapping and no descriptor can write to the file.
bool PageWatch::is_still_mapped(const InodePtr& inode) {
  const auto fd = descriptors_.open(inode, O_RDONLY);
  if (!fd) return false;
  Inode::Locked state(*inode);
  // Without leases (no CAP_LEASE, or no support on the tier), assume that it is mapped.
  if (::fcntl((*fd)->get(), F_SETLEASE, F_RDLCK) < 0) return true;
  ::fcntl((*fd)->get(), F_SETLEASE, F_UNLCK);
  if (!state->open || state->open->mappers == 0) {
    state->pages.maybe_mapped = false;
    inode->record_mapped(false);
  }
  return false;
}

void PageWatch::notice_change(const InodePtr& inode, const SharedFd& fd, bool by_mapping) {
  struct stat st {};
  if (::fstat(fd->get(), &st) < 0) return;
  const std::int64_t mtime = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec;
  {
    pool_.note_file_size(static_cast<std::uint64_t>(st.st_blocks) * 512);
    Inode::Locked state(*inode);
    state->size_hint = static_cast<std::uint64_t>(st.st_size);
    if (!by_mapping || state->pages.kernel_mtime == 0 || state->pages.kernel_mtime == mtime) return;
    state->pages.kernel_mtime = 0;
  }
  kernel_.drop_attributes(inode->id());
}

void PageWatch::drop_pages_later(InodeId id) {
  MutexLock lock(mutex_);
  written_.insert(id);
}

// Without cached attributes, the next read asks for the size and times, and drops the cached pages
// if they have changed. Mapped pages are dropped by the next tick(): dropping them here could wait
// for a read that waits for this thread.
void PageWatch::drop_cached(const InodePtr& file) {
  bool has_pages = false;
  {
    Inode::Locked state(*file);
    state->pages.kernel_mtime = 0;
    has_pages = state->open && !state->open->passthrough;
  }
  kernel_.drop_attributes(file->id());
  if (!has_pages) return;
  MutexLock lock(mutex_);
  written_.insert(file->id());
}

void PageWatch::tick() {
  notice_mapped_changes();
  drop_written_pages();
}

// Whether the file need not be checked any more. If so, it is no longer marked as watched.
bool PageWatch::is_no_longer_mapped(const InodePtr& inode) {
  bool maybe = false;
  {
    Inode::Locked state(*inode);
    if (state->open && state->open->mappers > 0) return false;
    maybe = state->pages.maybe_mapped;
  }
  if (maybe && is_still_mapped(inode)) return false;
  Inode::Locked state(*inode);
  // The file was opened meanwhile, and watch() did not add it again because it was still marked.
  if (state->open && state->open->mappers > 0) return false;
  state->pages.is_watched = false;
  return true;
}

// Stores through a mapping change a file's times without a request, so files that may be mapped are
// checked every second.
void PageWatch::notice_mapped_changes() {
  std::vector<std::weak_ptr<Inode>> candidates;
  {
    MutexLock lock(mutex_);
    candidates.swap(mapped_);
  }
  for (auto& candidate : candidates) {
    const InodePtr inode = candidate.lock();
    if (!inode) continue;
    if (is_no_longer_mapped(inode)) continue;
    if (const auto fd = descriptors_.any(inode)) notice_change(inode, *fd, true);
    MutexLock lock(mutex_);
    mapped_.push_back(std::move(candidate));
  }
}

void PageWatch::drop_written_pages() {
  std::set<InodeId> written;
  {
    MutexLock lock(mutex_);
    written.swap(written_);
  }
  for (const InodeId id : written) kernel_.drop_pages(id);
}

}  // namespace sluice
