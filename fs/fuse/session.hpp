// SPDX-License-Identifier: BSD-2-Clause
// Session is the daemon's end of one FUSE mount. It mounts, or takes over a mount from a daemon
// that has ended, answers requests until the mount is removed, and reports which features of the
// kernel are in use.
//
// libfuse mounts, decodes requests and encodes replies. Session has its own loop that takes
// requests from the kernel (DeviceLoop), because any thread may answer, and because a request must
// not be lost if the daemon dies.
//
// Threads: run() starts its own threads; all other members are thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fs/core/filesystem.hpp"
#include "fs/core/inodes/handover.hpp"
#include "fs/core/tree/directory_stream.hpp"
#include "fs/fuse/device_loop.hpp"
#include "fs/fuse/kernel_notices.hpp"
#include "fs/fuse/open_handles.hpp"
#include "fs/fuse/request_times.hpp"
#include "fs/fuse/slow_requests.hpp"
#include "fs/gpu/gpu_service.hpp"

struct fuse_in_header;
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
  };

  // Mounts. An error says what, where and what to do.
  static Result<std::unique_ptr<Session>> mount(const Settings& settings, Handover& handover);
  // Continues the mount of a predecessor, which has ended. `device` is its /dev/fuse.
  static Result<std::unique_ptr<Session>> take_over(const Settings& settings, Handover& handover,
                                                    UniqueFd device);
  ~Session() override;

  // Sets what answers the requests. If the mount was taken over, restores what the predecessor
  // left.
  void serve(Filesystem& filesystem, GpuService& gpu);
  // Makes SIGHUP wait for run(), instead of ending the process. REQUIRES: the process has no other
  // threads.
  static void block_hangup();
  // Answers requests until the mount is unmounted or handed over. The signals TERM and INT unmount
  // it, HUP calls `hangup`. CHECKED: serve() was called.
  enum class End { Unmounted, HandedOver, Failed };
  End run();
  // Makes run() return without unmounting, once it has answered the requests that it took.
  void hand_over();

  // Whether the kernel can give a successor the requests that this daemon took and did not answer.
  static bool kernel_resends();

  // The descriptor of /dev/fuse. As long as it is open in some process, the mount exists.
  int device() const;
  Feature passthrough() const;
  // How long requests waited when the predecessor handed over; nothing if it did not, or crashed.
  std::optional<std::chrono::milliseconds> handover_pause() const { return handover_pause_; }
  // Whether no more requests are taken: those in progress should end soon.
  bool is_ending() const { return loop_->is_stopping(); }
  // The number of requests so far, by the kernel's name of their kind.
  std::vector<std::pair<std::string, std::uint64_t>> request_counts() const;
  // How long the daemon took for them.
  std::vector<std::pair<std::string, RequestTimes::Times>> request_times() const;
  // The number of requests that users caused, without those that the kernel sends to tidy up.
  std::uint64_t user_requests() const;

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
  OpenHandles& open_handles() { return open_handles_; }
  Handover& handover() { return handover_; }
  void count(std::size_t request) { counts_[request].fetch_add(1, std::memory_order_relaxed); }
  DirectoryStreams& directories() { return directories_; }
  SlowRequests& slow_requests() { return *slow_requests_; }
  // Transfers to and from GPUs have threads of their own, so that nothing else waits for them.
  SlowRequests& transfers() { return *transfers_; }
  std::atomic<unsigned>& transfers_in_place() { return transfers_in_place_; }
  // Set by the daemon, before run(). The value of the status xattr; what SIGHUP does; the xattrs
  // user.sluice.set.NAME, where no value ends the trial.
  std::function<std::string()> status;
  std::function<void()> hangup;
  std::function<Result<std::string>(const std::string& name)> option;
  std::function<Result<void>(const std::string& name, const std::optional<std::string>& value)>
      try_option;

 private:
  Session(Settings settings, Handover& handover)
      : settings_(std::move(settings)), handover_(handover), open_handles_(handover) {}

  Result<void> make_session();
  Result<void> attach(const std::string& where);
  void inherit();
  void take(std::span<std::byte> request);
  void refuse(const fuse_in_header& header);

  const Settings settings_;
  Handover& handover_;
  OpenHandles open_handles_;
  fuse_session* session_ = nullptr;
  bool unmounts_ = false;  // when it is destroyed
  std::atomic<bool> hands_over_{false};
  std::optional<std::chrono::milliseconds> handover_pause_;
  std::unique_ptr<DeviceLoop> loop_;        // from construction to destruction
  std::unique_ptr<KernelNotices> notices_;  // from serve() to the end of the mount
  Filesystem* filesystem_ = nullptr;
  GpuService* gpu_ = nullptr;
  DirectoryStreams directories_;
  std::unique_ptr<SlowRequests> slow_requests_, transfers_;
  std::atomic<unsigned> transfers_in_place_{0};  // a counter
  mutable Mutex mutex_;
  Feature passthrough_ GUARDED_BY(mutex_);
  std::array<std::atomic<std::uint64_t>, RequestTimes::kKinds> counts_{};  // statistics
  RequestTimes times_;
};

}  // namespace sluice
