// SPDX-License-Identifier: BSD-2-Clause
// A ModelFile is a file and its expected content in memory. step() makes a random call and
// compares. Threads: caller locks.
#pragma once

#include <map>
#include <string>

#include "base/unique_fd.hpp"
#include "tests/fault/load.hpp"

namespace sluice::test {

class ModelFile {
 public:
  // An empty file at `path` that grows to at most `most` bytes.
  ModelFile(Load& load, std::string path, std::size_t most);
  // A file without a name: `fd` is open for reading and writing, and the file is empty.
  ModelFile(Load& load, UniqueFd fd, std::size_t most);

  void step();
  // Compares the whole file with the model.
  void compare();

 private:
  using Action = void (ModelFile::*)();
  struct Range {
    std::size_t at, size;
  };

  // A descriptor with these flags, opened if it is not open.
  int fd(int flags);
  Range any_range();
  std::string any_bytes(std::size_t size);
  // As a write at `at` does.
  void put(std::size_t at, const std::string& bytes);
  void compare_part(const std::string& got, std::size_t at, const char* how);
  std::string where(const char* what) const;

  void read();
  void read_directly();
  void write();
  void write_only();  // with a descriptor that cannot read
  void write_directly();
  void append();
  void truncate();
  void truncate_by_open();
  void allocate();
  void map_and_read();
  void map_and_store();
  void copy_within();
  void sync();
  void look();
  void close();

  Load& load_;
  const std::string path_;  // empty: it has no name
  const std::size_t most_;
  std::string content_;
  std::map<int, UniqueFd> fds_;  // by the flags that they were opened with
  std::string history_;          // the last calls
};

}  // namespace sluice::test
