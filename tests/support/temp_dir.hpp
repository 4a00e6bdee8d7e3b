// SPDX-License-Identifier: BSD-2-Clause
// TempDir is a new directory under $SLUICE_TEST_DIR (default /tmp). The destructor removes it with
// its contents. Threads: caller locks.
#pragma once

#include <string>
#include <string_view>

namespace sluice::test {

class TempDir {
 public:
  TempDir();  // throws std::system_error, which gtest reports as a failure
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const;

  // Each returns the path of the created file or directory and creates missing parents.
  std::string make_file(std::string_view name, std::string_view content) const;
  std::string make_dir(std::string_view name) const;

 private:
  std::string path_;
};

}  // namespace sluice::test
