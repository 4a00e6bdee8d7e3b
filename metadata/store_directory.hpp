// SPDX-License-Identifier: BSD-2-Clause
// StoreDirectory is the directory that a database lives in: made if need be, locked against a
// second daemon, and able to put a broken database out of the way.
//
// Ownership: it owns the lock, which lasts as long as it does (or the process).
// Threads: caller locks.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

class StoreDirectory {
 public:
  enum class Contents {
    Nothing,   // no database, perhaps files of others
    Database,  // at least what a database starts from
    Remains,   // pieces of a database that has lost the file to start from
  };

  // Opens and locks the directory at `path`, made with mode 0700 if there is none; its parent must
  // exist. Fails with EBUSY while another StoreDirectory, in any process, has it.
  static Result<StoreDirectory> open(const std::string& path);

  const std::string& path() const { return path_; }

  Result<Contents> contents() const;

  // Renames the directory to "<path>.broken-<UTC time>" and makes and locks an empty one in its
  // place. Where it cannot be renamed (a mount point, a parent that is not ours), what it holds is
  // moved to "<path>/broken-<UTC time>" instead. Returns where the old contents are now.
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
