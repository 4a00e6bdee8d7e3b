// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/loop_fs.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "tests/support/command.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t kSmallestXfs = 300u << 20;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Attaches `image` to a free loop device. Another process may take the device first (EBUSY): then
// the next one.
std::pair<UniqueFd, std::string> attach(int image) {
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control) fail("open /dev/loop-control");
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) fail("find a free loop device");
    std::string name = "/dev/loop" + std::to_string(number);
    UniqueFd loop;
    // The node appears a moment after the device.
    eventually([&] {
      loop.reset(::open(name.c_str(), O_RDWR | O_CLOEXEC));
      return static_cast<bool>(loop);
    });
    if (!loop) fail("open " + name);
    loop_config config{};
    config.fd = static_cast<__u32>(image);
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (::ioctl(loop.get(), LOOP_CONFIGURE, &config) == 0) return {std::move(loop), name};
    if (errno != EBUSY) fail("attach " + name);
  }
  fail("attach a loop device");
}

}  // namespace

LoopFs::LoopFs(const std::string& directory, const std::string& type, std::uint64_t bytes)
    : path_(directory), type_(type) {
  if (::mkdir(path_.c_str(), 0755) < 0 && errno != EEXIST) fail("mkdir " + path_);
  const std::string image = path_ + ".img";
  const UniqueFd fd(::open(image.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) fail("create " + image);
  const std::uint64_t size = type_ == "xfs" ? std::max(bytes, kSmallestXfs) : bytes;
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) < 0) fail("resize " + image);
  const CommandResult made = type_ == "ext4"
                                 ? run_command({"mkfs.ext4", "-q", "-F", "-m", "0", image})
                                 : run_command({"mkfs." + type_, "-q", "-f", image});
  if (!made.ok()) throw std::runtime_error("mkfs." + type_ + ": " + made.err);
  std::tie(loop_, device_) = attach(fd.get());
  janitor::watch_mount(path_);
  mount(0);
  ::rmdir((path_ + "/lost+found").c_str());  // so that a tier starts as empty as a directory does
}

LoopFs::~LoopFs() {
  vanish();
  janitor::forget(path_);
}

void LoopFs::mount(unsigned long flags) {
  if (::mount(device_.c_str(), path_.c_str(), type_.c_str(), flags, nullptr) < 0) {
    fail("mount " + device_ + " on " + path_);
  }
}

void LoopFs::vanish() { ::umount2(path_.c_str(), MNT_DETACH); }
void LoopFs::come_back() { mount(0); }
void LoopFs::remount_read_only() { mount(MS_REMOUNT | MS_RDONLY); }

}  // namespace sluice::test
