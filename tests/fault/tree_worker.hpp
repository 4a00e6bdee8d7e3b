// SPDX-License-Identifier: BSD-2-Clause
// One worker of the storm: makes random changes, checks each result and updates the model. Threads:
// caller locks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/fault/tree_storm.hpp"

namespace sluice::test {

class TreeWorker {
 public:
  using Random = TreeStorm::Random;

  TreeWorker(TreeStorm& storm, Subtree& own, std::string name, std::uint64_t seed)
      : storm_(storm), own_(own), name_(std::move(name)), random_(seed) {}

  // Makes one random change. Takes the locks that it needs.
  void step();
  // Exchanges two of `places`, or moves one to a free place. REQUIRES: own.busy.
  void shuffle(const std::vector<TreePlace>& places);
  // Creates a directory. REQUIRES: own.busy.
  TreeNodePtr make_directory(const TreePlace& place);

  // Closes its open files.
  void close_files() { removed_.clear(); }
  // Determines from the new mount whether the call that the kill interrupted has happened.
  void recover();

  // Ends the worker's thread: the daemon is dead, or a problem was reported.
  struct Ended {};

 private:
  struct Entry {
    TreePlace place;
    TreeNodePtr node;
  };
  struct OpenFile {
    UniqueFd fd;
    TreeNode node;
  };
  using Action = void (TreeWorker::*)();

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  // Makes the call, checks its result, changes the model. Returns whether it succeeded.
  bool make(const TreeChange& change, Subtree& other);
  bool make(const TreeChange& change) { return make(change, own_); }
  bool make_node(const TreePlace& place, TreeChange::Kind kind, NodeKind node, mode_t mode);

  static std::vector<Entry> entries_of(const Subtree& subtree);
  static TreePlace place_in(const Subtree& subtree, const Entry* directory,
                            const std::string& name);
  // A name in some directory, free or not.
  TreePlace any_place(const Subtree& subtree);
  // Empty if the subtree has no entry of this kind.
  std::optional<Entry> any_entry(const Subtree& subtree, std::optional<NodeKind> kind = {});
  std::size_t any_size();

  void create();
  void save();  // like an editor: writes a new file and renames it over the old one
  void rewrite();
  void mkdir();
  void symlink();
  void link();
  void unlink();
  void rmdir();
  void rename();
  void exchange_directories();
  void replace_directory();
  void chmod();
  void note();
  void look();
  void remove_open_file();
  void read_removed_file();
  void remove_directory();
  void move_across(Subtree& other);

  void remove_below(const Entry& entry);
  void compare_open_file(const OpenFile& file, const std::string& what);

  TreeStorm& storm_;
  Subtree& own_;
  std::string name_;
  Random random_;
  std::optional<TreeChange> under_way_;
  std::vector<OpenFile> removed_;  // open files that have no name any more
};

}  // namespace sluice::test
