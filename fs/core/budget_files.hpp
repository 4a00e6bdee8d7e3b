// SPDX-License-Identifier: BSD-2-Clause
// BudgetFiles holds the regular files below one directory that has a budget: their names, what they
// take, and what their value is judged by. A file with several names counts once. Paths are below
// the directory: "" is the directory itself, others are "/a", "/a/b". Threads: caller locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"

namespace sluice {

class BudgetFiles {
 public:
  struct Name {
    std::uint32_t directory = 0;  // index into directories_
    std::string text;
  };
  struct File {
    Name name;  // others are in more_names_
    std::uint64_t bytes = 0;
    double uses = 1;
    double last_use = 0;
    std::int64_t written = 0;  // seconds since the epoch
    bool is_spared = false;    // until the directory is listed again
    std::chrono::steady_clock::time_point spared_until{};
  };

  // Returns the file, which is new and was used and written at `now` unless another name is known.
  File& add_name(InodeId id, const std::string& directory, const std::string& name,
                 std::int64_t now);
  void remove_name(InodeId id, const std::string& directory, const std::string& name);
  void erase(InodeId id);
  void set_bytes(File& file, std::uint64_t bytes);

  // What is below a directory gets another path, or is not below ours any more.
  void directory_renamed(const std::string& from, const std::string& to);
  void directory_left(const std::string& path);

  File* find(InodeId id);
  const File* find(InodeId id) const { return const_cast<BudgetFiles*>(this)->find(id); }
  bool contains(InodeId id) const { return files_.contains(id); }
  const std::unordered_map<InodeId, File>& all() const { return files_; }
  std::uint64_t used() const { return used_; }
  // Every known path of the file.
  std::vector<std::string> paths(InodeId id) const;
  // Each known name of the file: its directory and its text.
  std::vector<std::pair<std::string, std::string>> names(InodeId id) const;

 private:
  std::uint32_t number_of(const std::string& directory);
  std::vector<bool> those_below(const std::string& path) const;

  std::vector<std::string> directories_;
  std::unordered_map<std::string, std::uint32_t> numbers_;  // of directories_
  std::unordered_map<InodeId, File> files_;
  std::unordered_map<InodeId, std::vector<Name>> more_names_;  // of files with hard links
  std::uint64_t used_ = 0;
};

}  // namespace sluice
