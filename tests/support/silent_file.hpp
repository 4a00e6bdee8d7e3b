// SPDX-License-Identifier: BSD-2-Clause
// A file on a FUSE mount whose server answers the open and nothing else: every later operation on
// the file, including close, blocks until end(). A process that has it open cannot even exit, so
// open it in a Child. Threads: caller locks.
#pragma once

#include <string>
#include <thread>

#include "base/unique_fd.hpp"

namespace sluice::test {

class SilentFile {
 public:
  // Creates the file at `path`, which every user may open. Throws std::system_error. REQUIRES:
  // root.
  explicit SilentFile(const std::string& path);
  ~SilentFile() { end(); }

  // Makes all blocked operations fail.
  void end();

 private:
  void serve() const;

  const std::string path_;
  UniqueFd fuse_;
  std::thread server_;
};

}  // namespace sluice::test
