// SPDX-License-Identifier: BSD-2-Clause
// AccessTracker counts the accesses of files. It owns their heat, the list of the hottest files,
// and a trace of accesses if one is being recorded. Opens by programs that walk over many files do
// not count as accesses. Files that stay open are sampled.
//
// Threads: thread-safe, except that only one thread may call tick().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "metadata/store.hpp"
#include "tiering/heat/heat.hpp"
#include "tiering/heat/hot_list.hpp"
#include "tiering/heat/scan_detector.hpp"
#include "tiering/pool/access_sampler.hpp"

namespace sluice {

// One access of a file, for a trace.
struct TracedAccess {
  double time = 0;  // seconds since the epoch
  InodeId id{};
  std::uint64_t size = 0;
  std::string path;
};

class AccessTracker {
 public:
  struct Settings {
    std::chrono::seconds half_life{};
    std::vector<std::string> ignored = {};   // programs whose opens do not count
    std::chrono::seconds sample_interval{};  // for files that stay open; 0: they are not sampled
    std::function<void(InodeId file, double uses)> accessed = {};  // called some seconds later
  };
  AccessTracker(Store& store, InodeTable& table, DirectoryTree& tree, const Clock& clock,
                Settings settings);

  void note_open(const InodePtr& inode, pid_t opener);
  // The process made the file. What it does to finish it counts as the same access: rsync opens a
  // new file once more before it gives it its name.
  void note_made(const InodePtr& inode, pid_t maker);
  // A writer closed the file.
  void note_written(const InodePtr& inode);
  // Reading as many bytes as the file has counts as one access, however many requests that takes.
  void note_gpu_read(const InodePtr& file, const SharedFd& fd, std::uint64_t bytes);
  std::uint64_t opens() const { return opens_.load(std::memory_order_relaxed); }

  Result<Heat> heat(const InodePtr& inode);
  Result<double> score(const InodePtr& inode);

  // The hottest files that exist now, hottest first. The cost does not depend on the number of
  // files in the pool.
  struct HotFile {
    std::string path;
    TierIndex tier = kNoTier;
    double score = 0;
  };
  std::vector<HotFile> hottest(std::size_t most);
  HotList& hot_files() { return hot_files_; }

  // A trace is recorded between trace(true) and trace(false). traced() returns the accesses since
  // its last call; beyond 100,000, accesses are dropped.
  void trace(bool on);
  std::vector<TracedAccess> traced();

  // Samples files that stay open. Called every second.
  void tick();
  // Writes the counts to the store.
  Result<void> flush();

 private:
  bool belongs_to_making(const InodePtr& inode, bool by_maker);
  void record(InodeId file, const Access& access);
  void record_trace(const InodePtr& inode);
  void offer_hot_files();
  void pass_on(const std::vector<InodePtr>& opened);

  InodeTable& table_;
  DirectoryTree& tree_;
  const Clock& clock_;
  const Settings settings_;
  HeatRecorder heat_;
  HotList hot_files_;
  ScanDetector scans_;
  std::unique_ptr<AccessSampler> sampler_;  // used by tick() only
  std::chrono::steady_clock::time_point next_sample_{};
  std::atomic<std::uint64_t> opens_{0};  // a statistic
  Mutex opened_mutex_;
  // Inodes with new_opens. They are passed on when there are many, because the kernel may have
  // forgotten them, and the files may be gone.
  std::vector<InodePtr> opened_ GUARDED_BY(opened_mutex_);
  std::atomic<std::size_t> passed_on_{0};  // inodes since the last flush(); a hint
  std::atomic<bool> tracing_{false};
  Mutex trace_mutex_;
  std::vector<TracedAccess> traced_ GUARDED_BY(trace_mutex_);
};

}  // namespace sluice
