// SPDX-License-Identifier: BSD-2-Clause
// The race that shows whether an open sees what was closed on another machine before it: RaceWriter
// changes two files in a directory, RaceReader, on another mount of it, keeps copies of them and
// judges one by its version and the other by stat alone. They take turns, a round each.
//
// Threads: caller locks.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "tiering/origin/version.hpp"

namespace sluice {

// What was seen in one round, or in all.
struct RaceSight {
  std::uint64_t rounds = 0;
  std::uint64_t stale = 0;          // opens that used an old copy, judged by the version
  std::uint64_t stale_by_stat = 0;  // the same, judged by stat alone
  std::uint64_t hits = 0;           // second opens in a round that used the copy of the first

  void add(const RaceSight& other);
  bool operator==(const RaceSight&) const = default;
};

class RaceWriter {
 public:
  // Makes the files. `dirfd` is borrowed.
  static Result<RaceWriter> create(int dirfd, AttributeSpace space);

  // Changes both files as round 1, 2, ... does, and closes them.
  Result<void> write(std::uint64_t round);

 private:
  RaceWriter(int dirfd, AttributeSpace space, BootId boot)
      : dirfd_(dirfd), space_(space), boot_(boot) {}

  Result<void> write_stamped(std::uint64_t round) const;

  int dirfd_;
  AttributeSpace space_;
  BootId boot_;
};

class RaceReader {
 public:
  // `dirfd` is borrowed.
  RaceReader(int dirfd, AttributeSpace space) : dirfd_(dirfd), space_(space) {}

  // What opens see after round `round` was written.
  Result<RaceSight> read(std::uint64_t round);

 private:
  enum class Judge { Version, StatAlone };
  struct Copy {
    OriginVersion version;  // not settled: there is none
    std::string bytes;
  };
  struct Opened {
    bool is_hit = false;
    bool is_stale = false;
  };

  Result<Opened> open(Judge judge, std::uint64_t round);
  Result<Copy> fetch(const OriginFd& file, Judge judge, int fd) const;
  static Result<OriginVersion> version_of(const OriginFd& file, Judge judge);
  Copy& copy_of(Judge judge) { return copies_[judge == Judge::Version ? 0 : 1]; }

  int dirfd_;
  AttributeSpace space_;
  std::array<Copy, 2> copies_;
};

}  // namespace sluice
