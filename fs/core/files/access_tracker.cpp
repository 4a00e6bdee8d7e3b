// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/files/access_tracker.hpp"

#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/log.hpp"
#include "metadata/decay.hpp"

namespace sluice {

namespace {
constexpr std::size_t kBurst = 10'000;
constexpr std::size_t kMostOpened = 1024;
constexpr std::uint32_t kStillOpen = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kAfterMaking = 2;  // seconds
}  // namespace

AccessTracker::AccessTracker(Store& store, InodeTable& table, DirectoryTree& tree,
                             const Clock& clock, Settings settings)
    : table_(table),
      tree_(tree),
      clock_(clock),
      settings_(std::move(settings)),
      heat_(store, settings_.half_life),
      hot_files_(settings_.half_life),
      scans_({.ignored = settings_.ignored}) {}

void AccessTracker::note_made(const InodePtr& inode, pid_t maker) {
  note_open(inode, maker);
  inode->accesses.made_until.store(kStillOpen, std::memory_order_relaxed);
}

void AccessTracker::note_written(const InodePtr& inode) {
  std::uint32_t expected = kStillOpen;
  inode->accesses.made_until.compare_exchange_strong(
      expected, static_cast<std::uint32_t>(clock_.seconds()) + kAfterMaking,
      std::memory_order_relaxed);
}

bool AccessTracker::belongs_to_making(const InodePtr& inode, bool by_maker) {
  auto& until = inode->accesses.made_until;
  if (until.load(std::memory_order_relaxed) == 0) return false;
  // Only the first open: a program that reads its own files again and again uses them.
  const std::uint32_t end = until.exchange(0, std::memory_order_relaxed);
  return by_maker && static_cast<std::uint32_t>(clock_.seconds()) <= end;
}

void AccessTracker::note_open(const InodePtr& inode, pid_t opener) {
  opens_.fetch_add(1, std::memory_order_relaxed);
  if (tracing_.load(std::memory_order_relaxed)) record_trace(inode);
  opener = scans_.process_of(opener);
  const bool again =
      inode->accesses.last_opener.exchange(opener, std::memory_order_relaxed) == opener;
  if (belongs_to_making(inode, again) || !scans_.counts(opener, again)) return;
  if (inode->accesses.new_opens.fetch_add(1) > 0) return;
  std::vector<InodePtr> many;
  {
    MutexLock lock(opened_mutex_);
    opened_.push_back(inode);
    if (opened_.size() >= kMostOpened) many.swap(opened_);
  }
  pass_on(many);
}

// What was counted of a file that is gone has no meaning.
void AccessTracker::pass_on(const std::vector<InodePtr>& opened) {
  for (const InodePtr& inode : opened) {
    const std::uint32_t opens = inode->accesses.new_opens.exchange(0);
    if (!inode->is_gone) record(inode->id(), {.opens = opens});
  }
  passed_on_.fetch_add(opened.size(), std::memory_order_relaxed);
}

void AccessTracker::record(InodeId file, const Access& access) {
  heat_.record(file, access);
  if (settings_.accessed)
    settings_.accessed(file, access.opens + (access.gpu_bytes > 0 ? 1.0 : 0.0));
}

void AccessTracker::note_gpu_read(const InodePtr& file, const SharedFd& fd, std::uint64_t bytes) {
  const std::uint64_t sum =
      file->accesses.gpu_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  {
    Inode::Locked state(*file);
    if (sum < state->size_hint) return;
  }
  struct stat st {};
  if (sum == 0 || ::fstat(fd->get(), &st) < 0) return;
  {
    Inode::Locked state(*file);
    state->size_hint = static_cast<std::uint64_t>(st.st_size);
    if (sum < state->size_hint) return;
  }
  if (const std::uint64_t counted = file->accesses.gpu_bytes.exchange(0); counted > 0) {
    record(file->id(), {.gpu_bytes = counted});
    if (tracing_.load(std::memory_order_relaxed)) record_trace(file);
  }
}

Result<Heat> AccessTracker::heat(const InodePtr& inode) {
  Heat heat = SLUICE_TRY(heat_.heat(inode->id()));
  // Those since the last collection, which was seconds ago.
  const auto opens = inode->accesses.new_opens.load();
  if (opens == 0) return heat;
  const std::int64_t now = clock_.seconds();
  const Heat latest{.score = static_cast<double>(opens),
                    .last_access = now,
                    .opens = opens,
                    .recent = static_cast<double>(opens),
                    .since = now};
  return sum(heat, latest, settings_.half_life);
}

Result<double> AccessTracker::score(const InodePtr& inode) {
  const Heat heat = SLUICE_TRY(this->heat(inode));
  return decayed(heat.score, heat.last_access, clock_.seconds(), settings_.half_life);
}

void AccessTracker::record_trace(const InodePtr& inode) {
  constexpr std::size_t kMost = 100'000;  // a limit, in case traced() is not called
  TracedAccess access;
  access.time = static_cast<double>(std::chrono::system_clock::now().time_since_epoch() /
                                    std::chrono::microseconds(1)) /
                1e6;
  access.id = inode->id();
  access.path = tree_.path_of(inode);
  {
    Inode::Locked state(*inode);
    access.size = state->size_hint;
  }
  MutexLock lock(trace_mutex_);
  if (traced_.size() < kMost) traced_.push_back(std::move(access));
}

void AccessTracker::trace(bool on) {
  MutexLock lock(trace_mutex_);
  tracing_ = on;
  traced_.clear();
}

std::vector<TracedAccess> AccessTracker::traced() {
  MutexLock lock(trace_mutex_);
  return std::exchange(traced_, {});
}

Result<void> AccessTracker::flush() {
  std::vector<InodePtr> opened;
  {
    MutexLock lock(opened_mutex_);
    opened.swap(opened_);
  }
  pass_on(opened);
  const auto flushed = heat_.flush();
  offer_hot_files();
  // After a burst of many opens, the C library would keep the memory for the next one, which may
  // never come.
  if (passed_on_.exchange(0) > kBurst) ::malloc_trim(0);
  return flushed;
}

void AccessTracker::offer_hot_files() {
  const std::int64_t now = clock_.seconds();
  std::vector<HotList::File> files;
  for (const InodeId id : heat_.busiest()) {
    const InodePtr inode = table_.find(id);
    const std::string path = inode ? tree_.path_of(inode) : "";
    const auto now_hot = path.empty() ? Result<double>(0.0) : score(inode);
    if (now_hot && *now_hot > 0) files.push_back({id, path, *now_hot, now});
  }
  hot_files_.offer(std::move(files));
}

std::vector<AccessTracker::HotFile> AccessTracker::hottest(std::size_t most) {
  std::vector<HotFile> out;
  for (const HotList::File& file : hot_files_.hottest(HotList::kMost, clock_.seconds())) {
    if (out.size() == most) break;
    InodePtr inode = table_.find(file.id);
    std::string path = inode ? tree_.path_of(inode) : "";
    if (path.empty()) {
      // The kernel has forgotten the file. Check whether it still has this path.
      std::vector<InodeId> references;
      const auto found = tree_.walk(file.path, references);
      for (const InodeId each : references) table_.forget(each, 1);
      if (!found || (*found)->id() != file.id) {
        // If its tier is offline, the file may come back. Otherwise it was deleted, or the next
        // census finds its new path.
        const bool is_away = !found && found.error().code == EIO;
        if (!is_away) hot_files_.forget(file.id);
        continue;
      }
      inode = *found;
      path = file.path;
    }
    const auto now_hot = score(inode);
    Inode::Locked state(*inode);
    out.push_back({std::move(path), state->place().tier, now_hot ? *now_hot : file.score});
  }
  // score() includes the opens of the last seconds, so the order may have changed.
  std::stable_sort(out.begin(), out.end(),
                   [](const HotFile& a, const HotFile& b) { return a.score > b.score; });
  return out;
}

// Counts accesses of files that stay open.
void AccessTracker::tick() {
  if (settings_.sample_interval.count() == 0) return;
  if (sampler_) {
    for (const InodeId id : sampler_->used()) record(id, {.opens = 1});
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_sample_) return;
  next_sample_ = now + settings_.sample_interval;
  if (!sampler_) {
    auto created = AccessSampler::create();
    if (!created) {
      log::get().warn("cannot sample files that stay open, counting only opens: why={}",
                      std::strerror(created.error().code));
      next_sample_ = std::chrono::steady_clock::time_point::max();
      return;
    }
    sampler_ = *std::move(created);
  }
  std::vector<std::pair<InodeId, SharedFd>> open;
  table_.for_each_awake([&](Inode& inode) {
    Inode::Locked state(inode);
    if (state->open && state->open->passthrough && state->open->reader)
      open.emplace_back(inode.id(), state->open->reader);
  });
  sampler_->watch(open);
}

}  // namespace sluice
