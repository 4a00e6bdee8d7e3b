// SPDX-License-Identifier: BSD-2-Clause
// LoggedDisks are filesystems on disks that remember every write and every flush, in one order over
// all of them, so that a power cut at any instant can be played afterwards, as often as wanted.
//
// Each disk is a file that a server process offers through FUSE, under a loop device. A disk after
// a cut holds every write up to the last flush before it, and of the later ones what the cut chose,
// in units of 4 KiB.
//
// Verified by logged_disk_test: on this way (ext4 or xfs, loop device, FUSE file with direct_io)
// each fsync(2) on the filesystem is at least one flush in the log before it returns, journal
// commits are, too, and nothing is cached in between: what is logged when an fsync has returned is
// all that it made durable. A write that was in flight beside a flush may count as flushed, which
// is one of the things a disk may do.
//
// Nothing stays behind: the server dies with its parent, which ends its mount, which fails the
// loop devices; the janitor unmounts. Threads: position() and set_mode() from any; else caller
// locks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/logged_disk_log.hpp"
#include "tests/support/loop_fs.hpp"

namespace sluice::test {

struct PowerCut {
  enum class Survivors {
    None,    // of the writes after a disk's last flush: what a disk with a large cache does
    All,     // a disk that writes at once, in order
    Random,  // any, in 4 KiB pieces, by `seed`
  };
  std::uint64_t at = 0;  // a position(): what was logged later never happened
  Survivors survivors = Survivors::None;
  std::uint64_t seed = 0;
};

class LoggedDisks {
 public:
  struct Disk {
    std::string name;
    std::string type;  // "ext4", "xfs"
    std::uint64_t bytes;
  };

  // Makes `directory`/NAME for each disk, an empty filesystem, mounted. Throws std::runtime_error.
  LoggedDisks(const std::string& directory, std::vector<Disk> disks);
  ~LoggedDisks();
  LoggedDisks(const LoggedDisks&) = delete;
  LoggedDisks& operator=(const LoggedDisks&) = delete;

  LoopFs& disk(const std::string& name) { return *mounted_.at(name); }

  // How many records the log has now. What a caller saw happen before is before it.
  std::uint64_t position() const { return control_->records; }
  std::uint64_t flushes(const std::string& name) const;
  void set_mode(const std::string& name, DiskMode mode);

  // Unmounts all, ends the server and reads the log: from now on there can be cuts. Throws if
  // somebody still uses a disk.
  void stop();

  // The positions right after each flush, in order.
  std::vector<std::uint64_t> flush_positions() const;

  // Mounts each disk, as `cut` leaves it, where it was; the next mount_after() or the destructor
  // unmounts. REQUIRES: stop().
  void mount_after(const PowerCut& cut);
  void unmount() { mounted_.clear(); }
  // The image file of a disk after the last cut.
  std::string image_after_cut(const std::string& name) const;

 private:
  struct Entry {
    LogRecord record;
    std::uint64_t data;  // where its bytes lie in the log
  };

  std::size_t number_of(const std::string& name) const;
  void read_log();
  void write_image(std::size_t disk, const PowerCut& cut) const;
  void end_server();

  std::string directory_;  // of images, log and server; hidden beside the disks
  std::string parent_;
  std::vector<Disk> disks_;
  LogControl* control_ = nullptr;
  pid_t server_ = -1;
  std::map<std::string, std::unique_ptr<LoopFs>> mounted_;
  std::vector<Entry> log_;
};

}  // namespace sluice::test
