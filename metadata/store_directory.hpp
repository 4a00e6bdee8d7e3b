// SPDX-License-Identifier: BSD-2-Clause
// StoreDirectory is the directory of a database. It creates the directory, locks it against a
// second daemon, and can move a damaged database aside.
//
// Ownership: it owns the lock, which it keeps until it is destroyed or the process ends.
// Threads: caller locks.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

class StoreDirectory {
 public:
  enum class Contents {
    Nothing,   // no database; there may be other files
    Database,  // at least the file that a database is opened from
    Remains,   // parts of a database whose first file is missing
  };

  // Opens and locks the directory at `path`, and creates it with mode 0700 if there is none; its
  // parent must exist. Fails with EBUSY while another StoreDirectory, in any process, has it.
  static Result<StoreDirectory> open(const std::string& path);

  const std::string& path() const { return path_; }

  Result<Contents> contents() const;

  // Renames the directory to "<path>.broken-<UTC time>", and creates and locks an empty one in its
  // place. If it cannot be renamed (it is a mount point, or the parent is not ours), its contents
  // are moved to "<path>/broken-<UTC time>" instead. Returns where the old contents are now.
  // REQUIRES: no database is open in it.
  Result<std::string> move_aside();

 private:
  StoreDirectory(std::string path, UniqueFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  Result<std::string> move_contents_aside(const std::string& name);

  std::string path_;
  UniqueFd lock_;
};

}  // namespace sluice
