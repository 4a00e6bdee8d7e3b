// SPDX-License-Identifier: BSD-2-Clause
// Session is the daemon's end of one FUSE mount. It mounts, answers requests until the mount is
// removed, and reports which features of the kernel are in use.
//
// Threads: run() starts its own threads; features() is thread-safe.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fs/core/directory_stream.hpp"
#include "fs/core/filesystem.hpp"
#include "fs/fuse/slow_requests.hpp"
#include "fs/gpu/gpu_service.hpp"

struct fuse_session;
struct fuse_conn_info;

namespace sluice {

struct Feature {
  bool on = false;
  std::string why;  // why not, or what it rests on
};

// The version of libfuse in use and where it is: "3.18.2, linked in".
std::string libfuse_version();

class Session final : public KernelSide {
 public:
  struct Settings {
    std::string mountpoint;
    std::string name;     // shown as the mount's source
    std::string options;  // -o
    bool passthrough = true;
    bool io_uring = true;
  };

  // Mounts. An error says what, where and what to do.
  static Result<std::unique_ptr<Session>> mount(const Settings& settings);
  ~Session() override;

  // Answers requests until the mount is unmounted. The signals TERM, INT and HUP unmount it.
  // Returns false if the session failed.
  bool run(Filesystem& filesystem, GpuService& gpu);

  Feature passthrough() const;
  Feature io_uring() const;
  // The number of requests that wait for an answer, including those in progress; 0 if the kernel
  // does not report it.
  unsigned waiting() const;
  // The number of requests so far, by the kernel's name of their kind.
  std::vector<std::pair<std::string, std::uint64_t>> request_counts() const;

  // KernelSide.
  Result<std::int32_t> add_backing(int fd) override;
  void remove_backing(std::int32_t id) override;
  void drop_attributes(InodeId id) override;
  void drop_pages(InodeId id) override;
  bool drop_all_names() override;
  void drop_name(InodeId parent, const std::string& name) override;

  // For operations.cpp.
  Filesystem& filesystem() { return *filesystem_; }
  GpuService& gpu() { return *gpu_; }
  void negotiate(fuse_conn_info& connection);
  const cpu_set_t& allowed_cores() const { return allowed_cores_; }
  void count(std::size_t request) { counts_[request].fetch_add(1, std::memory_order_relaxed); }
  DirectoryStreams& directories() { return directories_; }
  SlowRequests& slow_requests() { return *slow_requests_; }
  // How many requests of one io_uring queue other threads may answer at a time. The remaining
  // entries of the queue are for requests that are answered quickly.
  unsigned most_lent() const { return most_lent_; }
  // Returns the value of the status xattr; set by the daemon.
  std::function<std::string()> status;

 private:
  explicit Session(Settings settings) : settings_(std::move(settings)) {}

  const Settings settings_;
  cpu_set_t allowed_cores_{};  // of this process, when it mounted
  fuse_session* session_ = nullptr;
  bool mounted_ = false;
  UniqueFd connection_;  // a directory of the kernel's
  Filesystem* filesystem_ = nullptr;
  GpuService* gpu_ = nullptr;
  DirectoryStreams directories_;
  std::unique_ptr<SlowRequests> slow_requests_;  // while run() lasts
  unsigned most_lent_ = 0;
  mutable Mutex mutex_;
  Feature passthrough_ GUARDED_BY(mutex_);
  Feature io_uring_ GUARDED_BY(mutex_);
  std::array<std::atomic<std::uint64_t>, 64> counts_{};  // statistics
};

}  // namespace sluice
