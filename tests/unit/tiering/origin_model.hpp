// SPDX-License-Identifier: BSD-2-Clause
// A model of one file of an origin and of the machines that use it: writers and readers run the
// real code of tiering/origin/version.hpp, one call of one of them at a time, in an order that the
// test chooses. After each call the invariant of that header is checked.
//
// Threads: each machine is a thread; only the one whose turn it is runs.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tiering/origin/version.hpp"

namespace sluice::test {

// What the model leaves out, so that the test can show that it would be noticed.
enum class LeftOut { Nothing, Flags, Mark, Stamp };

class OriginModel {
 public:
  using Work = std::function<void(OriginModel&, int machine)>;

  OriginModel(std::vector<Work> machines, LeftOut left_out);
  ~OriginModel();
  OriginModel(const OriginModel&) = delete;
  OriginModel& operator=(const OriginModel&) = delete;

  // What a machine does; each ends by itself.
  static void write(OriginModel& model, int machine);
  static void read_twice(OriginModel& model, int machine);
  static void scan(OriginModel& model, int machine);

  bool is_over(int machine) const { return machines_[static_cast<std::size_t>(machine)].over; }
  bool are_all_over() const;
  // Lets a machine make its next call. `dies`: it stops for ever instead; `fails`: the call fails.
  enum class Fate { Runs, Dies, Fails };
  void step(int machine, Fate fate = Fate::Runs);
  // Two equal states have equal futures.
  std::string state() const;
  // "" or what is wrong.
  const std::string& broken() const { return broken_; }
  // Whether a copy that is read now may be kept.
  bool is_settled();
  std::uint64_t hits() const { return hits_; }

 private:
  class File;
  struct Killed {};
  struct Machine {
    std::thread thread;
    std::string history;  // what its calls have returned
    int sets = 0;
    bool over = false;
    Fate fate = Fate::Runs;
  };
  struct Copy {
    OriginVersion version;
    std::array<char, 2> halves{};
  };

  // Waits for the machine's turn. Returns false if its call must fail.
  bool wait_for_turn(int machine);
  void note(int machine, const std::string& result);
  char half(int machine, std::size_t index);
  void set_half(int machine, std::size_t index);
  void open_once(int machine, Copy& copy);
  void check();

  const LeftOut left_out_;
  std::map<std::string, std::string> attributes_;
  std::map<std::string, std::string> tags_;  // random values and names, in words that repeat
  std::array<char, 2> halves_{'0', '0'};
  std::vector<Copy> kept_;
  std::string broken_;
  std::uint64_t hits_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = -1;  // -1: the test's
  std::vector<Machine> machines_;
};

}  // namespace sluice::test
