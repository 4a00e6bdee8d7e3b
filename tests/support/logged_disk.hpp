// SPDX-License-Identifier: BSD-2-Clause
// LoggedDisks are filesystems on disks that log every write and every flush, in one order over all
// disks. So a power cut at any instant can be simulated afterwards, any number of times.
//
// Each disk is a file that a server process provides through FUSE, under a loop device. After a
// cut, a disk contains every write before its last flush, and of the later writes a selection, in
// units of 4 KiB.
//
// logged_disk_test verifies that in this setup (ext4 or xfs, loop device, FUSE file with direct_io)
// each fsync(2) causes at least one flush in the log before it returns, that journal commits do so,
// too, and that nothing is cached in between. A write that was concurrent with a flush may count as
// flushed, as on a real disk.
//
// Nothing is left behind: the server dies with its parent, which ends its mount, which fails the
// loop devices; the janitor unmounts. Threads: position() and set_mode() from any thread; for the
// rest the caller locks.
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
    None,    // no write after a disk's last flush survives, as with a large cache
    All,     // all writes survive, as on a disk that writes at once and in order
    Random,  // a random selection of 4 KiB pieces, by `seed`
  };
  std::uint64_t at = 0;  // a position(): later records never happened
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

  // Creates an empty, mounted filesystem at `directory`/NAME for each disk. Throws
  // std::runtime_error.
  LoggedDisks(const std::string& directory, std::vector<Disk> disks);
  ~LoggedDisks();
  LoggedDisks(const LoggedDisks&) = delete;
  LoggedDisks& operator=(const LoggedDisks&) = delete;

  LoopFs& disk(const std::string& name) { return *mounted_.at(name); }

  // The number of records in the log. Everything that the caller saw complete is before this
  // position.
  std::uint64_t position() const { return control_->records; }
  std::uint64_t flushes(const std::string& name) const;
  void set_mode(const std::string& name, DiskMode mode);

  // Unmounts all disks, ends the server and reads the log. Cuts are possible after this. Throws if
  // a disk is still in use.
  void stop();

  // The positions right after each flush, in order.
  std::vector<std::uint64_t> flush_positions() const;

  // Mounts each disk at its old place, as `cut` leaves it. The next mount_after() or the destructor
  // unmounts them. REQUIRES: stop().
  void mount_after(const PowerCut& cut);
  void unmount() { mounted_.clear(); }
  // The image file of a disk after the last cut.
  std::string image_after_cut(const std::string& name) const;

 private:
  struct Entry {
    LogRecord record;
    std::uint64_t data;  // offset of its bytes in the log
  };

  std::size_t number_of(const std::string& name) const;
  void read_log();
  void write_image(std::size_t disk, const PowerCut& cut) const;
  void end_server();

  std::string directory_;  // hidden directory for images, log and server
  std::string parent_;
  std::vector<Disk> disks_;
  LogControl* control_ = nullptr;
  pid_t server_ = -1;
  std::map<std::string, std::unique_ptr<LoopFs>> mounted_;
  std::vector<Entry> log_;
};

}  // namespace sluice::test
