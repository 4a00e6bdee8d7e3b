// SPDX-License-Identifier: BSD-2-Clause
// Scratch directories and the mounts that --sluice creates; each is removed with its object.
// Threads: caller locks.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/lab/bench/fixtures.hpp"
#include "tools/lab/bench/process.hpp"

namespace sluice::tools::lab::bench {

// The type of the filesystem that holds `path`, as /proc/self/mountinfo calls it ("ext4",
// "fuse.sluice").
std::string filesystem_type(const std::string& path);

// A new directory "fsbench.XXXXXX" in an existing one, removed with its contents. It is kept, with
// a warning on stderr, if something is still mounted below.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent);
  ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One of our FUSE mounts. The destructor unmounts it and waits until its daemon has ended.
class Mount {
 public:
  // Runs `mount`, which must leave `mount_point` mounted; `unmount` is tried first when it ends.
  Mount(Command mount, Command unmount, std::string mount_point);
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount();

  const std::string& mount_point() const { return mount_point_; }
  const Command& command() const { return mount_; }
  std::optional<pid_t> daemon() const { return pid_; }
  void set_daemon(pid_t pid);

 private:
  void unmount() noexcept;

  Command mount_;
  Command unmount_;
  std::string mount_point_;
  std::optional<pid_t> pid_;
  std::optional<ProcessHandle> process_;
};

// Makes `directory`, below it three tier directories and a mount point, and mounts them with
// `binary`.
std::unique_ptr<Mount> mount_sluice(const std::string& binary, const std::string& directory,
                                    const std::vector<std::string>& flags);

}  // namespace sluice::tools::lab::bench
