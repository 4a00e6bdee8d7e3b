// SPDX-License-Identifier: BSD-2-Clause
// Random operations on files while they are moved: writers of every kind, readers, and a thread
// that renames, links and unlinks, all on the same few dozen files. The expected content of each
// file is kept in memory and compared all the time.
//
// Threads: run() starts its own; for everything else the caller locks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/mutex.hpp"

namespace sluice::test {

class MoveStorm {
 public:
  // Creates files below the mounted directory `root` and moves them between `tiers`.
  MoveStorm(std::string root, std::vector<std::string> tiers, std::uint64_t seed);
  ~MoveStorm();

  // Returns after `duration`, after a problem, or after stop().
  void run(std::chrono::seconds duration);
  void stop() { stop_ = true; }

  // The first few problems; empty if there were none. A problem stops the storm.
  std::string problems() const;
  // Compares all files with the model: in the mount, or in the directories of the tiers. Nothing
  // else may exist.
  std::string compare_mount() const;
  std::string compare_tiers(const std::vector<std::string>& directories) const;

  std::uint64_t moves() const { return moves_; }  // moves that were observed
  std::uint64_t operations() const { return operations_; }

 private:
  // A file and its expected content. Quiet files are read without the lock, because no thread
  // writes them.
  struct Subject {
    mutable Mutex mutex;
    bool quiet = false;
    std::vector<std::string> names;  // relative to root_; never empty
    std::string content;
    mode_t mode = 0644;
    ino_t inode = 0;
    std::string tier, before;  // as last observed
  };
  using Random = std::mt19937_64;
  using Actor = void (MoveStorm::*)(Random&);

  // One operation each. They lock the file that they choose.
  void write(Random& random);
  void write_and_close(Random& random);
  void append(Random& random);
  void write_direct(Random& random);
  void map_and_store(Random& random);
  void churn(Random& random);
  void read_and_compare(Random& random);
  void stream_quietly(Random& random);
  void send(Random& random);

  Subject& any_loud(Random& random);
  std::string path(const Subject& subject, Random& random) const;
  std::string path(const std::string& name) const { return root_ + "/" + name; }
  std::string new_name(Random& random);
  void create(Subject& subject, Random& random);
  int link(const std::string& name, const std::string& other) const;  // like link(2)
  // True if `result` is not an error; otherwise reports what failed, with errno.
  bool check(long result, const char* what, const Subject& subject);
  void report(const std::string& text);
  void compare(const Subject& subject, const std::string& found, std::size_t offset,
               const char* who);
  std::string past_the_page_cache(const Subject& subject, std::size_t offset) const;
  void check_identity(const Subject& subject, int fd);

  std::string root_;
  std::vector<std::string> tiers_;
  std::uint64_t seed_;
  std::vector<std::unique_ptr<Subject>> subjects_;
  std::atomic<std::uint64_t> next_name_{0}, moves_{0}, operations_{0};
  std::atomic<bool> stop_{false};
  mutable Mutex problems_mutex_;
  std::vector<std::string> problems_ GUARDED_BY(problems_mutex_);
};

}  // namespace sluice::test
