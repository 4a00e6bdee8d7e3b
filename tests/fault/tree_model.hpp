// SPDX-License-Identifier: BSD-2-Clause
// The model of a tree of files, and the system calls that change it: what each must return, what it
// does to the model, and, after the daemon was killed in the middle of one, whether it has
// happened.
//
// Threads: caller locks. A change reads and changes the directories of its places, what they name,
// and nothing else.
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

// A file, with one name or several, a directory or a symbolic link. Its id is in its contents (or
// target), so that bytes tell whose they are.
struct TreeNode {
  NodeKind kind = NodeKind::File;
  std::uint64_t id = 0;
  mode_t mode = 0644;
  ino_t inode = 0;  // 0: not yet known, any will do
  unsigned links = 1;
  int version = 0;  // of the contents
  std::size_t size = 0;
  std::string note;  // the value of kTreeNote, "" if it has none
  std::map<std::string, std::shared_ptr<TreeNode>> children;

  std::string label() const;  // "f12", "d3", "l7"
  std::string content() const;
  std::string target() const;
};
using TreeNodePtr = std::shared_ptr<TreeNode>;

// A name in a directory. The name is free, or that of a node.
struct TreePlace {
  const UniqueFd* top = nullptr;  // the directory that `path` starts from
  TreeNodePtr directory;
  std::string path;  // with the name
  std::string name;

  TreeNodePtr node() const;     // null: the name is free
  std::string address() const;  // the whole path, by way of /proc
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
  TreePlace from;         // what is changed; the free name of Create, Mkdir and Symlink
  TreePlace to = {};      // of Link and the renames
  TreeNodePtr made = {};  // by Create, Mkdir and Symlink
  mode_t mode = 0;
  std::string note = {};
  std::size_t size = 0;

  // The errno that the call must return.
  int expected() const;
  // Makes the call. Returns its errno; fills in the inode number of what it made.
  int perform() const;
  // Changes the model. REQUIRES: expected() is 0.
  void apply() const;

  // For a call whose reply was never seen.
  enum class Outcome { Happened, NotHappened, Wrong };
  // Whether it has happened, by what is there now. A write may have happened in part: it is checked
  // and then done again.
  Outcome resolve() const;

  std::string text() const;             // "rename a/n1 (f3) over b/n2 (f9)"
  std::set<std::uint64_t> ids() const;  // of the nodes that it is about
  std::set<std::uint64_t> ids_with_parents() const;
};

// What differs, and of which nodes.
struct TreeDifference {
  std::vector<std::string> lines;
  std::set<std::uint64_t> ids;

  bool empty() const { return lines.empty(); }
  std::string text() const;
};

// Compares the tree at `path`, which is that of the directory `node`, with all that is below it:
// names, types, inode numbers, modes, links, xattrs and contents.
TreeDifference compare_tree(const std::string& path, TreeNode& node);
// One node only; of a directory its names, too.
TreeDifference compare_node(const std::string& path, TreeNode& node);
// The same of an unmounted pool, by the tiers' own directories: everything but a directory is on
// exactly one tier, and nothing else is there.
TreeDifference compare_tiers(const std::vector<std::string>& tiers, TreeNode& node);

// The ids of the files that have a part in these contents.
std::set<std::uint64_t> ids_in(const std::string& content);

}  // namespace sluice::test
