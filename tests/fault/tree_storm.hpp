// SPDX-License-Identifier: BSD-2-Clause
// A storm on a whole tree while its files are moved between tiers. Each worker creates, changes,
// renames, exchanges and removes files and directories in its own subtree, and sometimes moves
// something to another subtree. A shuffler exchanges and renames the subtrees themselves. Movers
// request moves of files to other tiers. A walker opens and lists whatever it finds.
//
// The expected result of each call and the expected tree are known, because a worker locks a
// subtree during the calls that change it. Movers, the walker and the shuffler run concurrently
// with these calls.
//
// Threads: start() starts its own; for everything else the caller locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "tests/fault/tree_model.hpp"

namespace sluice::test {

class TreeWorker;

// A directory of the tree with everything below it. Its model is changed with both mutexes locked,
// so either is enough to read it. `busy` is locked during a call, `names` only while the model
// changes.
struct Subtree {
  UniqueFd fd;
  TreeNodePtr root;
  Mutex busy;
  Mutex names;
  // Whether a change was interrupted, so the model waits for recover(). `busy` is locked.
  bool is_unsure = false;
};

class TreeStorm {
 public:
  // Fills the empty directory `root`. Files are moved between `tiers`; if that is empty, there are
  // no moves.
  TreeStorm(std::string root, std::vector<std::string> tiers, std::uint64_t seed);
  ~TreeStorm();
  TreeStorm(const TreeStorm&) = delete;
  TreeStorm& operator=(const TreeStorm&) = delete;

  // Starts all threads. pause() returns when all threads except the movers have ended their calls;
  // stop() when the movers have ended, too, and no file of the tree is open.
  void start();
  void pause();
  void stop();

  // From now until recover(), an error because the daemon is dead ends the thread that gets it and
  // is not a problem.
  void expect_death();
  // Call after the next mount: determines which of the calls interrupted by the kill have happened.
  void recover();

  // The problems, with the history of the files concerned; empty if there were none. The first
  // problem stops the storm.
  std::string problems() const;
  // Compares the tree with the model, in the mount or, when unmounted, in the directories of the
  // tiers.
  std::string compare_mount();
  std::string compare_with_tiers(const std::vector<std::string>& directories);
  // Does rm -rf. Returns what could not be removed.
  std::string remove_everything();

  std::uint64_t operations() const { return operations_; }
  std::uint64_t moves() const { return moves_; }            // moves that were observed
  std::uint64_t unfinished() const { return unfinished_; }  // calls that a kill interrupted
  bool has_problem() const { return stop_; }

 private:
  friend class TreeWorker;
  using Random = std::mt19937_64;
  struct Line {
    std::set<std::uint64_t> ids;
    std::string text;
  };
  struct Target {
    std::string path;
    std::uint64_t id;
  };

  void open_subtrees();
  void shuffle(Random& random);
  void send_files(Random& random);
  void walk(Random& random);
  void note_tier(std::uint64_t id, const std::string& tier);
  // A file or directory somewhere in `subtree`; it may be gone already.
  Target any_target(Subtree& subtree, Random& random);
  std::string slot_of(const Subtree& subtree);

  // True if this result means that the daemon is dead, as expected.
  bool is_death(int code) const;
  void record(const std::string& text, const std::set<std::uint64_t>& ids);
  void report(const std::string& text, const std::set<std::uint64_t>& ids);
  std::string history(std::set<std::uint64_t> ids) const;
  std::string with_history(const TreeDifference& difference) const;
  template <typename Work>
  void run_thread(std::vector<std::jthread>& threads, Work work);

  std::string root_;
  std::vector<std::string> tiers_;
  Subtree top_;  // the subtrees' places, which the shuffler changes
  std::vector<std::unique_ptr<Subtree>> subtrees_;
  std::vector<std::unique_ptr<TreeWorker>> workers_;
  std::unique_ptr<TreeWorker> shuffler_;
  std::vector<Random> mover_randoms_;
  Random walker_random_;
  std::vector<std::jthread> threads_, movers_;
  std::uint64_t first_id_ = 0;  // the first id after those of the subtrees
  std::atomic<std::uint64_t> next_id_{1}, operations_{0}, moves_{0}, unfinished_{0};
  std::atomic<bool> stop_{false}, pausing_{false}, dying_{false};
  mutable Mutex history_mutex_;
  std::deque<Line> history_ GUARDED_BY(history_mutex_);
  // By id, as a mover last observed them
  std::map<std::uint64_t, std::string> last_tiers_ GUARDED_BY(history_mutex_);
  std::vector<std::string> problems_ GUARDED_BY(history_mutex_);
};

}  // namespace sluice::test
