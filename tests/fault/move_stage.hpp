// SPDX-License-Identifier: BSD-2-Clause
// The environment of the mover's fault tests: three tiers with files of every kind, the tier to
// which each file should move, and the check that all tests make afterwards: every file is intact
// and exists once.
//
// Threads: caller locks; different stages may be used in different threads.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/mount.hpp"

namespace sluice::test {

constexpr const char* kMoverThread = "sluice-move";

// A file by one of its names, the tier that it starts on and the tier that it is moved to.
struct Journey {
  std::string name;
  std::string from;
  std::string to;
};

class MoveStage {
 public:
  // The tiers are the directories nvme, ssd and hdd below `base`. They, the state directory and the
  // mount point are created if missing.
  explicit MoveStage(std::string base);

  // Creates small and large files, empty and sparse ones, with xattrs, an ACL, several names, and
  // some that are not moved. REQUIRES: called before the mount.
  void lay_out();
  // Creates fewer files: a small file with attributes, and a pair of hard links.
  void lay_out_few();
  // Adds one file of `bytes` that moves from `from` to `to`.
  void add(const Journey& journey, std::size_t bytes);

  const std::vector<Journey>& journeys() const { return journeys_; }
  static const std::vector<std::string>& tiers();
  std::string on(const std::string& tier, const std::string& name = "") const;
  std::string in_mount(const std::string& name) const { return base_ + "/mnt/" + name; }
  // Automatic migration is off: files move only if the test requests it.
  Pool pool() const;

  // Remembers what the mount shows now. Call once, after the first mount.
  void remember();

  // Compares every remembered file with its present state: bytes, attributes, inode number and
  // names, in the mount and on exactly one tier; nothing else may exist. Returns the differences.
  // REQUIRES: the pool is mounted and no move is in progress.
  std::string problems() const;
  // Compares mtime, ctime and time of birth of all files and directories with those remembered. A
  // power cut, or a disk that fails in the middle of a move, may change those of directories.
  std::string changed_times() const;
  // The same as problems(), once the requested moves that go on after a mount have ended.
  std::string problems_at_rest(const Mount& mount) const;
  // The same for an unmounted pool: there must be no temporaries, and fsck must find nothing.
  std::string problems_unmounted() const;
  // What a dead daemon left unfinished: temporaries, and files on two tiers.
  std::string debris() const;
  // The files that are not on the tier to which they should move.
  std::string not_arrived() const;

  // Requests the move of each file, or the move back. Errors because the daemon is dead are
  // ignored.
  void send_all() const;
  void send_all_back() const;
  // Waits until no file is moving. Returns false if the daemon ended or the moves did not end in
  // time.
  bool wait_for_moves(const Mount& mount) const;
  bool wait_for_moves(const Mount& mount, const std::vector<std::string>& names) const;

 private:
  struct Seen {
    std::string line;  // from digest()
    ino_t inode;
    std::string times;
  };
  using View = std::map<std::string, Seen>;

  void put(const Journey& journey, const std::string& content, mode_t mode);
  View look_at_mount() const;
  // Compares the regular files on the tiers with the remembered ones.
  std::string compare_tiers() const;

  std::string base_;
  std::vector<Journey> journeys_;
  View expected_;
};

// Requests a move. Returns 0 or the errno.
int send_to(const std::string& path, const std::string& tier);

// `user.sluice.explain` of a file; empty if the mount does not answer.
std::optional<nlohmann::json> explain(const std::string& path);

// The tier of a file, or "" if the mount does not answer.
std::string tier_of(const std::string& path);

}  // namespace sluice::test
