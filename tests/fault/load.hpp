// SPDX-License-Identifier: BSD-2-Clause
// Loads are processes that use a mount while something happens to it. Each checks its own results.
// A LoadGroup starts them, and notices one that fails, dies or makes no progress.
//
// Threads: caller locks. REQUIRES: no other thread while loads are added.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/shared.hpp"

namespace sluice::test {

// What a load shares with the process that started it.
struct LoadReport {
  std::atomic<std::uint64_t> steps{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> ended{false};    // without a problem
  std::array<char, 8000> problem{};  // text; empty: none
};

// What a load gets. All its members are for the load's process alone.
class Load {
 public:
  Load(std::string own_directory, std::uint64_t seed, LoadReport& report)
      : directory(std::move(own_directory)), random(seed), report_(report) {}

  const std::string directory;  // empty at first; no other load uses it
  std::mt19937_64 random;

  std::uint64_t below(std::uint64_t limit) { return random() % limit; }
  // Counts a step of progress. False if the load should end.
  bool next() {
    ++report_.steps;
    return !report_.stop;
  }
  // Throws std::runtime_error with `what`, and with errno if `result` is negative.
  static long check(long result, const std::string& what);
  static void expect(bool condition, const std::string& what);

 private:
  LoadReport& report_;
};

class LoadGroup {
 public:
  // Each load gets a directory in `root`.
  LoadGroup(std::string root, std::uint64_t seed) : root_(std::move(root)), seed_(seed) {}
  ~LoadGroup();
  LoadGroup(const LoadGroup&) = delete;
  LoadGroup& operator=(const LoadGroup&) = delete;

  // Starts a process that runs `work`.
  void add(const std::string& name, const std::function<void(Load&)>& work);

  // The first load that failed, died or made no progress for `longest`; empty if there is none. For
  // a load that hangs, the text says where its processes wait.
  std::string problem(std::chrono::seconds longest = std::chrono::seconds(60));
  // Whether a load has made no progress for two seconds, as far as problem() has seen.
  bool is_held_up() const;
  // Tells the loads to end, waits for them and returns problem().
  std::string stop();
  // "bytes 123, names 456": how many steps each load has made.
  std::string progress() const;
  // The load that has made the fewest steps.
  std::uint64_t least_steps() const;

 private:
  struct Member {
    std::string name;
    pid_t pid = 0;
    std::unique_ptr<Shared<LoadReport>> report;
    std::uint64_t last_steps = 0;
    std::chrono::steady_clock::time_point last_progress;
  };
  static std::string problem_of(Member& member, std::chrono::seconds longest);

  const std::string root_;
  const std::uint64_t seed_;
  std::vector<Member> members_;
};

}  // namespace sluice::test
