// SPDX-License-Identifier: BSD-2-Clause
// HeatTree stores how large and how hot each part of the tree was at the last census, for users who
// want to know what takes the space. A whole census is too large to keep: only its kMost largest
// files and directories are kept, and all others are counted in their directory.
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
  static constexpr std::size_t kMost = 50'000;  // about 150 bytes each

  // The sums over a file, or over everything below a directory.
  struct Sums {
    std::uint64_t files = 0;
    std::uint64_t bytes = 0;  // allocated on the tiers
    double heat_bytes = 0;    // each file's score times its bytes
    struct OnTier {
      std::uint64_t files = 0, bytes = 0;
      bool operator==(const OnTier&) const = default;
    };
    std::vector<OnTier> on = {};  // by tier

    // The mean score, weighted by bytes.
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
    std::vector<Child> children = {};  // largest first
    Sums rest = {};                    // everything that is in none of them
  };

  void take(const Census& census, std::int64_t time) { take(census, time, kMost); }
  // The same with another limit; for tests.
  void take(const Census& census, std::int64_t time, std::size_t most);

  // The directory `path` ("" or "/" is the root) with its `most` largest children. Empty if there
  // is no such directory, if it was too small to keep, or if there was no census yet.
  std::optional<Level> level(std::string_view path, std::size_t most) const;
  // The time of the census; 0 if there was none yet.
  std::int64_t time() const;

 private:
  struct Snapshot;

  mutable Mutex mutex_;
  std::shared_ptr<const Snapshot> snapshot_ GUARDED_BY(mutex_);
};

}  // namespace sluice
