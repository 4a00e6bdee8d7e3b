// SPDX-License-Identifier: BSD-2-Clause
// A model of a tree of files, and the system calls that change it: what each must return, how it
// changes the model, and, if the daemon was killed during it, whether it has happened.
//
// Threads: caller locks. A change uses the directories of its places and the nodes in them, and
// nothing else.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace sluice::test {

constexpr const char* kTreeNote = "user.note";

enum class NodeKind { File, Directory, Symlink };

// A file with one or several names, a directory or a symbolic link. Its id is part of its contents
// (or target), so that bytes show to which file they belong.
struct TreeNode {
  NodeKind kind = NodeKind::File;
  std::uint64_t id = 0;
  mode_t mode = 0644;
  ino_t inode = 0;  // 0: not known yet, any is accepted
  unsigned links = 1;
  int version = 0;  // of the contents
  std::size_t size = 0;
  std::string note;  // value of kTreeNote; "" if there is none
  std::map<std::string, std::shared_ptr<TreeNode>> children;

  std::string label() const;  // "f12", "d3", "l7"
  std::string content() const;
  std::string target() const;
};
using TreeNodePtr = std::shared_ptr<TreeNode>;

// A name in a directory. It may be free or belong to a node.
struct TreePlace {
  const UniqueFd* top = nullptr;  // the directory that `path` starts from
  TreeNodePtr directory;
  std::string path;  // with the name
  std::string name;

  TreeNodePtr node() const;     // null if the name is free
  std::string address() const;  // the whole path, through /proc/self/fd
};

struct TreeChange {
  enum class Kind {
    Create,
    Mkdir,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    RenameNoreplace,
    Exchange,
    Chmod,
    Note,   // setxattr of kTreeNote
    Write,  // new contents: truncated, then written
  };
  Kind kind = Kind::Create;
  TreePlace from;         // what is changed; for Create, Mkdir and Symlink a free name
  TreePlace to = {};      // for Link and the renames
  TreeNodePtr made = {};  // for Create, Mkdir and Symlink
  mode_t mode = 0;
  std::string note = {};
  std::size_t size = 0;

  // The errno that the call must return.
  int expected() const;
  // Makes the call and returns its errno. Sets the inode number of a new node.
  int perform() const;
  // Changes the model. REQUIRES: expected() is 0.
  void apply() const;

  // For a call whose reply was not received.
  enum class Outcome { Happened, NotHappened, Wrong };
  // Determines from the present state whether the call has happened. A write may have happened in
  // part: it is checked and then repeated.
  Outcome resolve() const;

  std::string text() const;             // "rename a/n1 (f3) over b/n2 (f9)"
  std::set<std::uint64_t> ids() const;  // ids of the nodes that it uses
  std::set<std::uint64_t> ids_with_parents() const;
};

// The differences, and the ids of the nodes concerned.
struct TreeDifference {
  std::vector<std::string> lines;
  std::set<std::uint64_t> ids;

  bool empty() const { return lines.empty(); }
  std::string text() const;
};

// Compares the tree at `path` with the directory `node` and everything below it: names, types,
// inode numbers, modes, links, xattrs and contents.
TreeDifference compare_tree(const std::string& path, TreeNode& node);
// Compares one node only; for a directory also its names.
TreeDifference compare_node(const std::string& path, TreeNode& node);
// The same for an unmounted pool, in the directories of the tiers: everything except directories is
// on exactly one tier, and nothing else exists.
TreeDifference compare_tiers(const std::vector<std::string>& tiers, TreeNode& node);

// The ids of the files whose bytes are in these contents.
std::set<std::uint64_t> ids_in(const std::string& content);

}  // namespace sluice::test
