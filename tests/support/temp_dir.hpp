// SPDX-License-Identifier: BSD-2-Clause
// TempDir is a fresh directory under $SLUICE_TEST_DIR (else /tmp), removed with all that is in it.
// Threads: caller locks.
#pragma once

#include <string>
#include <string_view>

namespace sluice::test {

class TempDir {
 public:
  TempDir();  // throws std::system_error: gtest reports it as the test's failure
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const;

  // Each returns the path of what it made; parents are made as needed.
  std::string make_file(std::string_view name, std::string_view content) const;
  std::string make_dir(std::string_view name) const;

 private:
  std::string path_;
};

}  // namespace sluice::test
