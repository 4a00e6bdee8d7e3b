// SPDX-License-Identifier: BSD-2-Clause
// BudgetFiles holds the regular files below one directory that has a budget: their names, what they
// take, and what their value is judged by. A file with several names counts once. It remembers only
// what exists: a directory as long as a file below it is remembered, and only by its own name.
// Threads: caller locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
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
    void end_spare() {
      is_spared = false;
      spared_until = {};
    }
  };
  // A directory below ours, by the names on the way up to ours: "b", "a" for "a/b". Empty for ours.
  using Below = std::span<const std::string>;

  BudgetFiles() { directories_.emplace_back(); }
  BudgetFiles(BudgetFiles&&) = default;
  BudgetFiles& operator=(BudgetFiles&&) = default;
  BudgetFiles(const BudgetFiles&) = delete;
  BudgetFiles& operator=(const BudgetFiles&) = delete;

  // Returns the file, which is new and was used and written at `now` unless another name is known.
  File& add_name(InodeId id, Below directory, const std::string& name, std::int64_t now);
  void remove_name(InodeId id, Below directory, const std::string& name);
  void erase(InodeId id);
  void set_bytes(File& file, std::uint64_t bytes);
  void end_spares();  // of all files

  // What is below a directory gets another path, or is not below ours any more.
  void directory_renamed(Below from, Below to);
  void directory_left(Below path);

  File* find(InodeId id);
  const File* find(InodeId id) const { return const_cast<BudgetFiles*>(this)->find(id); }
  bool contains(InodeId id) const { return files_.contains(id); }
  const std::unordered_map<InodeId, File>& all() const { return files_; }
  std::uint64_t used() const { return used_; }
  // Every known path of the file, below ours: "/a/b/file".
  std::vector<std::string> paths(InodeId id) const;
  // Each known name of the file, with the directory that it is in.
  struct Place {
    std::vector<std::string> directory;  // as in Below
    std::string name;
  };
  std::vector<Place> names(InodeId id) const;
  std::size_t directories() const { return by_name_.size(); }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  using Key = std::pair<std::uint32_t, std::string>;  // the directory that it is in, and its name
  struct Directory {
    const Key* key = nullptr;  // in by_name_; nullptr for ours, and for an unused index
    std::uint32_t holds = 0;   // names of files in it, and directories
  };

  std::uint32_t find_directory(Below path) const;
  std::uint32_t child(std::uint32_t parent, const std::string& name) const;
  // Makes the directories that are missing.
  std::uint32_t number_of(Below path);
  void release(std::uint32_t directory);
  std::vector<bool> those_below(std::uint32_t top) const;
  std::vector<std::string> path_of(std::uint32_t directory) const;

  std::vector<Directory> directories_;  // the first one is ours
  std::vector<std::uint32_t> unused_;   // indexes of directories_
  std::map<Key, std::uint32_t> by_name_;
  std::unordered_map<InodeId, File> files_;
  std::unordered_map<InodeId, std::vector<Name>> more_names_;  // of files with hard links
  std::uint64_t used_ = 0;
};

}  // namespace sluice
