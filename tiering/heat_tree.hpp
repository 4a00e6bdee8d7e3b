// SPDX-License-Identifier: BSD-2-Clause
// HeatTree remembers how large and how hot each part of the tree was at the last census, for people
// who look for what takes the room. A census itself is too large to keep: of its files and
// directories the kMost largest stay, and the others are counted in the directory that they are in.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"

namespace sluice {

class Census;

class HeatTree {
 public:
  static constexpr std::size_t kMost = 50'000;  // some 150 bytes each

  // A file, or all below a directory.
  struct Sums {
    std::uint64_t files = 0;
    std::uint64_t bytes = 0;                     // that they take on their tiers
    double heat_bytes = 0;                       // each file's score times its bytes
    std::vector<std::uint64_t> tier_bytes = {};  // by tier

    // The mean of their scores, each byte having its file's.
    double heat() const { return bytes == 0 ? 0 : heat_bytes / static_cast<double>(bytes); }
    void add(const Sums& other);
    void subtract(const Sums& part);
  };
  struct Child {
    std::string name;
    bool is_directory = false;
    Sums sums = {};
  };
  struct Level {
    std::int64_t time = 0;  // of the census, in seconds since the epoch
    Sums all = {};
    std::vector<Child> children = {};  // the largest first
    Sums rest = {};                    // what is in none of them
  };

  void take(const Census& census, std::int64_t time) { take(census, time, kMost); }
  // Keeps fewer; for tests.
  void take(const Census& census, std::int64_t time, std::size_t most);

  // The directory `path` ("" or "/" is the root) with its `most` largest children. Nothing if it
  // is none, or too small to be remembered; or if there has been no census.
  std::optional<Level> level(std::string_view path, std::size_t most) const;
  // When the census was; 0: there has been none.
  std::int64_t time() const;

 private:
  struct Snapshot;

  mutable Mutex mutex_;
  std::shared_ptr<const Snapshot> snapshot_ GUARDED_BY(mutex_);
};

}  // namespace sluice
