// SPDX-License-Identifier: BSD-2-Clause
// A file on a FUSE mount whose server lets it be opened and then says no more: whoever asks for
// anything of it, or closes it, waits until end(). A process that has it open can't even exit, so
// open it in a Child. Threads: caller locks.
#pragma once

#include <string>
#include <thread>

#include "base/unique_fd.hpp"

namespace sluice::test {

class SilentFile {
 public:
  // Makes the file at `path`, which everybody may open. Throws std::system_error. REQUIRES: root.
  explicit SilentFile(const std::string& path);
  ~SilentFile() { end(); }

  // Whoever waits gets an error now.
  void end();

 private:
  void serve() const;

  const std::string path_;
  UniqueFd fuse_;
  std::thread server_;
};

}  // namespace sluice::test
