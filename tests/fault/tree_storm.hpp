// SPDX-License-Identifier: BSD-2-Clause
// A storm on a whole tree while its files are moved from tier to tier. Each worker makes, changes,
// renames, exchanges and removes files and directories in a subtree of its own, and at times
// carries something to another's; a shuffler exchanges and renames the subtrees themselves under
// the workers' feet; movers send files to other tiers; a walker opens and lists whatever it finds.
//
// Each call's result is known beforehand, and so is the tree afterwards: who changes a subtree
// holds its lock during the call. Movers, the walker and the shuffler work beside the calls.
//
// Threads: start() makes its own; the rest caller locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/tree_model.hpp"

namespace sluice::test {

class TreeWorker;

// A directory of the tree with all that is below it. The model of it is changed with both locks
// held, so either is enough to read it. `busy` is held during the call, `names` only while the
// model changes.
struct Subtree {
  UniqueFd fd;
  TreeNodePtr root;
  std::mutex busy;
  std::mutex names;
};

class TreeStorm {
 public:
  // Fills the empty directory `root`; its files are moved between `tiers`, none if that is empty.
  TreeStorm(std::string root, std::vector<std::string> tiers, std::uint64_t seed);
  ~TreeStorm();
  TreeStorm(const TreeStorm&) = delete;
  TreeStorm& operator=(const TreeStorm&) = delete;

  // Lets everybody work. pause() returns when all but the movers have ended their calls; stop()
  // when the movers have, too, and nothing of the tree is open.
  void start();
  void pause();
  void stop();

  // From now on, until recover(), an error of a mount whose daemon is dead ends the thread that
  // meets it and is no problem.
  void expect_death();
  // After the next mount: finds out which of the calls under way at the death have happened.
  void recover();

  // What went wrong, with the history of the files concerned; empty if nothing did. The first
  // problem stops the storm.
  std::string problems() const;
  // Whether the tree is as it must be, in the mount or, unmounted, on the tiers' directories.
  std::string compare_mount();
  std::string compare_with_tiers(const std::vector<std::string>& directories);
  // rm -rf. Returns what could not be removed.
  std::string remove_everything();

  std::uint64_t operations() const { return operations_; }
  std::uint64_t moves() const { return moves_; }            // seen to have happened
  std::uint64_t unfinished() const { return unfinished_; }  // calls that a death interrupted
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
  // A file or directory somewhere in `subtree`; by now it may have gone.
  Target any_target(Subtree& subtree, Random& random);
  std::string slot_of(const Subtree& subtree);

  // True if this result means that the daemon is dead, as expected.
  bool is_death(int code) const;
  void record(const std::string& text, const std::set<std::uint64_t>& ids);
  void complain(const std::string& text, const std::set<std::uint64_t>& ids);
  std::string history(std::set<std::uint64_t> ids) const;
  std::string with_history(const TreeDifference& difference) const;
  template <typename Work>
  void run_thread(std::vector<std::jthread>& threads, Work work);

  std::string root_;
  std::vector<std::string> tiers_;
  Subtree top_;  // the slots, which the shuffler changes
  std::vector<std::unique_ptr<Subtree>> subtrees_;
  std::vector<std::unique_ptr<TreeWorker>> workers_;
  std::unique_ptr<TreeWorker> shuffler_;
  std::vector<Random> mover_randoms_;
  Random walker_random_;
  std::vector<std::jthread> threads_, movers_;
  std::uint64_t first_id_ = 0;  // after those of the subtrees
  std::atomic<std::uint64_t> next_id_{1}, operations_{0}, moves_{0}, unfinished_{0};
  std::atomic<bool> stop_{false}, pausing_{false}, dying_{false};
  mutable std::mutex history_mutex_;
  std::deque<Line> history_;
  std::map<std::uint64_t, std::string> last_tiers_;  // by id, as a mover last saw them
  std::vector<std::string> problems_;
};

}  // namespace sluice::test
