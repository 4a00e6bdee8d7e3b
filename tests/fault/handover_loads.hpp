// SPDX-License-Identifier: BSD-2-Clause
// The loads of handover_test.cpp. Each works in its own directory until it is told to end, compares
// every result with what it must be, and throws at the first difference. To all of them, a mount
// whose daemon is killed must look like any other.
#pragma once

#include <string>
#include <vector>

#include "tests/fault/load.hpp"

namespace sluice::test {

// Reads, writes, truncates, maps and allocates parts of one file of at most `most` bytes.
void change_bytes(Load& load, std::size_t most);
// The same with files that have no name: deleted ones and those made with O_TMPFILE.
void change_nameless_files(Load& load);
// Several processes append records to one file with O_APPEND.
void append_together(Load& load);

// Creates, links, renames and removes names. Several processes share the directory.
void change_names(Load& load);
// The storm of tree_storm.hpp, with its own moves between `tiers`.
void storm_on_tree(Load& load, const std::vector<std::string>& tiers);
// Lists a directory while names come and go.
void list_names(Load& load);

void change_xattrs(Load& load);
// Holds locks and has another process find them held.
void hold_locks(Load& load);

// Four writers on one SQLite database in WAL mode.
void use_sqlite(Load& load);
void use_git(Load& load);

// Moves all files below `root` to other tiers, again and again.
void move_files(Load& load, const std::string& root, const std::vector<std::string>& tiers);

}  // namespace sluice::test
