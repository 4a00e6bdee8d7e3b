// SPDX-License-Identifier: BSD-2-Clause
// The stage of the mover's fault tests: three tiers with files of every kind that a mover has to
// cope with, where each should go, and the one question that all tests ask afterwards: is every
// file still itself, whole, once?
//
// Threads: caller locks; stages of their own in different threads.
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

// A file by one of its names, the tier that it is born on and the one that it is sent to.
struct Journey {
  std::string name;
  std::string from;
  std::string to;
};

class MoveStage {
 public:
  // The tiers are the directories nvme, ssd and hdd below `base`, made if missing; so are the state
  // directory and the mount point.
  explicit MoveStage(std::string base);

  // Small files and large ones, empty and sparse, with xattrs, an ACL, several names, and some that
  // are not sent anywhere. To be called before the mount.
  void lay_out();
  // Fewer: a small file with attributes, and a pair of hard links.
  void lay_out_few();
  // One file of `bytes` on `from` for `to`.
  void add(const Journey& journey, std::size_t bytes);

  const std::vector<Journey>& journeys() const { return journeys_; }
  static const std::vector<std::string>& tiers();
  std::string on(const std::string& tier, const std::string& name = "") const;
  std::string in_mount(const std::string& name) const { return base_ + "/mnt/" + name; }
  // With migration by heat off: files go only where the test sends them.
  Pool pool() const;

  // Remembers what the mount shows now. To be called once, after the first mount.
  void remember();

  // Whether every remembered file is what it was: bytes, attributes, inode number, names, in the
  // mount and on exactly one tier; and nothing else is there. Returns what is wrong, empty if
  // nothing is. REQUIRES: mounted, no move under way.
  std::string problems() const;
  // The same of an unmounted pool: no temporary is left, and fsck is content.
  std::string problems_unmounted() const;
  // What a daemon that died has left half done: temporaries, files on two tiers.
  std::string debris() const;
  // Whether each journey has ended; the files that are elsewhere.
  std::string not_arrived() const;

  // Sends each file on its journey, or back. Errors of a daemon that has died are none.
  void send_all() const;
  void send_all_back() const;
  // Waits until no file is moving; false if the daemon ended, or they did not settle in time.
  bool settle(const Mount& mount) const;
  bool settle(const Mount& mount, const std::vector<std::string>& names) const;

 private:
  struct Seen {
    std::string line;  // of digest()
    ino_t inode;
  };
  using View = std::map<std::string, Seen>;

  void put(const Journey& journey, const std::string& content, mode_t mode);
  View look_at_mount() const;
  // Names of regular files on the tiers, with the tiers that have them and what is there.
  std::string compare_tiers() const;

  std::string base_;
  std::vector<Journey> journeys_;
  View expected_;
};

// Asks for a move. Returns 0 or the errno.
int send_to(const std::string& path, const std::string& tier);

// `user.sluice.explain` of a file; nothing if the mount does not answer.
std::optional<nlohmann::json> explain(const std::string& path);

// The tier that a file is on, "" if the mount does not answer.
std::string tier_of(const std::string& path);

}  // namespace sluice::test
