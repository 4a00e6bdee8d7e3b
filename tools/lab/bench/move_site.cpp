// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/move_site.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "base/small_file.hpp"
#include "base/unix_socket.hpp"
#include "tools/lab/bench/process.hpp"

namespace sluice::tools::lab::bench {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCommandLimit{120};
constexpr std::chrono::seconds kPassLimit{600};
constexpr const char* kDropCaches = "/proc/sys/vm/drop_caches";

// Makes a filesystem in a file. Its loop device is removed when it is unmounted.
std::unique_ptr<Mount> mount_disk(const std::string& directory, std::uint64_t bytes,
                                  bool direct_io) {
  const std::string image = directory + ".img";
  make_directory(directory);
  close_file(open_file(image, O_RDWR | O_CREAT | O_EXCL, 0600), image);
  if (::truncate(image.c_str(), static_cast<off_t>(bytes)) < 0) throw_failure("resize", image);
  // Initialize everything now: lazy initialization would write during the measurement.
  run_within(
      {"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image},
      kCommandLimit);
  std::string device =
      run_within({"losetup", std::string("--direct-io=") + (direct_io ? "on" : "off"), "--find",
                  "--show", image},
                 kCommandLimit);
  device.erase(device.find_last_not_of('\n') + 1);
  std::unique_ptr<Mount> mount;
  try {
    mount = std::make_unique<Mount>(Command{"mount", device, directory},
                                    Command{"umount", directory}, directory);
  } catch (...) {
    run_within({"losetup", "-d", device}, kCommandLimit);
    throw;
  }
  run_within({"losetup", "-d", device}, kCommandLimit);  // takes effect when it is no longer in use
  return mount;
}

// The first number in a file that the kernel keeps about the disk of `directory`.
std::uint64_t disk_fact(const std::string& directory, const std::string& name) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) < 0) throw_failure("stat", directory);
  const std::string path = "/sys/dev/block/" + std::to_string(major(status.st_dev)) + ":" +
                           std::to_string(minor(status.st_dev)) + "/" + name;
  std::uint64_t number = 0;
  if (!(std::istringstream(text_of_file(path)) >> number))
    throw Failure("read " + path + ": not a number");
  return number;
}

}  // namespace

MoveSite::MoveSite(const std::string& workdir, std::uint64_t disk_bytes, bool direct_io)
    : area_(workdir),
      fast_disk_(mount_disk(fast(), disk_bytes, direct_io)),
      slow_disk_(mount_disk(slow(), disk_bytes, direct_io)) {}

PoolPlace MoveSite::add_pool(const std::string& sluice_binary, const std::string& name,
                             const std::vector<std::string>& flags) {
  PoolPlace pool{area() + "/mnt-" + name, area() + "/state-" + name, fast() + "/" + name,
                 slow() + "/" + name};
  for (const std::string& each : {pool.mount_point, pool.fast, pool.slow}) make_directory(each);
  const std::string fast_tier = "fast=" + pool.fast + ",high_watermark=95";
  const std::string slow_tier = "slow=" + pool.slow + ",high_watermark=95";
  Command command{sluice_binary, "mount"};
  command.insert(command.end(), {"--tier", fast_tier, "--tier", slow_tier});
  command.insert(command.end(), {"--state", pool.state, "--no-migrate", "--min-stay", "0s"});
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back(pool.mount_point);
  pools_.push_back(std::make_unique<Mount>(
      command, Command{sluice_binary, "umount", pool.mount_point}, pool.mount_point));
  return pool;
}

bool MoveSite::has_direct_io() const {
  return disk_fact(fast(), "loop/dio") == 1 && disk_fact(slow(), "loop/dio") == 1;
}

std::uint64_t MoveSite::fast_disk_reads() const { return disk_fact(fast(), "stat"); }

void MoveSite::start_cold() const {
  // Twice: a FUSE daemon closes its files on the tiers only after the kernel has dropped the inodes
  // of the mount.
  for (int i = 0; i < 2; ++i) {
    for (const std::string& each : {fast(), slow(), area()}) sync_filesystem(each);
    const UniqueFd fd = open_file(kDropCaches, O_WRONLY);
    if (::write(fd.get(), "3", 1) != 1) throw_failure("write", kDropCaches);
    std::this_thread::sleep_for(milliseconds(200));
  }
}

Pass::Pass(const PoolPlace& pool) : path_(pool.state + "/control.sock") {
  auto socket = connect_unix(path_);
  if (!socket) throw Failure(path_ + ": " + socket.error().text());
  socket_ = *std::move(socket);
  const std::string request = "{\"verb\":\"run\"}\n";
  write_all(socket_, std::as_bytes(std::span(request)), path_);
}

bool Pass::is_over(milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (last_.is_null()) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    pollfd entry{socket_.get(), POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(std::max<long>(left.count(), 0))) <= 0) return false;
    char piece[65536];
    const ssize_t got = ::read(socket_.get(), piece, sizeof piece);
    if (got <= 0) throw Failure(path_ + ": the daemon closed the connection");
    text_.append(piece, static_cast<std::size_t>(got));
    take_lines();
  }
  return true;
}

void Pass::wait() {
  if (!is_over(kPassLimit)) throw Failure(path_ + ": the pass takes too long");
}

void Pass::take_lines() {
  for (std::size_t end; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1)) {
    json line = json::parse(text_.substr(0, end), nullptr, false);
    if (!line.is_object() || !line.value("done", false)) continue;
    if (line.contains("error")) throw Failure("the pass failed: " + line["error"].dump());
    if (line.value("failed", 0) > 0 || line.value("pending", 0) > 0) {
      throw Failure("the pass did not move all files: " + line.dump());
    }
    last_ = std::move(line);
  }
}

void pin(const std::string& path, const std::string& tier) {
  if (::setxattr(path.c_str(), "user.sluice.pin", tier.data(), tier.size(), 0) < 0) {
    throw_failure("pin", path);
  }
}

}  // namespace sluice::tools::lab::bench
