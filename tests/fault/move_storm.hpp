// SPDX-License-Identifier: BSD-2-Clause
// A storm on files that are moved all the while: writers of every sort, readers, and somebody who
// renames, links and unlinks, all on the same few dozen files. What each file must hold is kept in
// memory and compared all the time.
//
// Threads: run() makes its own; the rest caller locks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace sluice::test {

class MoveStorm {
 public:
  // Files below the mounted directory `root`, moved between `tiers`.
  MoveStorm(std::string root, std::vector<std::string> tiers, std::uint64_t seed);
  ~MoveStorm();

  void run(std::chrono::seconds duration);

  // What went wrong, at most a few lines; empty if nothing did. Stops the storm when not.
  std::string problems() const;
  // Whether each file holds what it must, in the mount, in the files of the tiers (given by their
  // directories, the mount's root being that of each), and nothing else is there.
  std::string compare_mount() const;
  std::string compare_tiers(const std::vector<std::string>& directories) const;

  std::uint64_t moves() const { return moves_; }  // seen to have happened
  std::uint64_t operations() const { return operations_; }

 private:
  // A file and what it must hold. Quiet ones are read without the lock, because nobody writes them.
  struct Subject {
    mutable std::mutex mutex;
    bool quiet = false;
    std::vector<std::string> names;  // relative to root_; never empty
    std::string content;
    mode_t mode = 0644;
    ino_t inode = 0;
    std::string tier;  // last seen
  };
  using Random = std::mt19937_64;
  using Actor = void (MoveStorm::*)(Random&);

  // One act each. They lock the subject that they pick.
  void write(Random& random);
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
  // True if `result` is no error; else notes what failed, with errno.
  bool check(long result, const char* what, const Subject& subject);
  void complain(const std::string& text);
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
  mutable std::mutex problems_mutex_;
  std::vector<std::string> problems_;
};

}  // namespace sluice::test
