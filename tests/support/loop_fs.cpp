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
#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t kSmallestXfs = 300u << 20;

// Attaches `image` to a free loop device. If another process takes the device first (EBUSY), tries
// the next one.
std::pair<UniqueFd, std::string> attach_loop(int image) {
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control) fail("open /dev/loop-control");
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) fail("find a free loop device");
    std::string name = "/dev/loop" + std::to_string(number);
    UniqueFd loop;
    // The device node may appear a little later than the device.
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

void make_image(const std::string& image, const std::string& type, std::uint64_t bytes) {
  const UniqueFd fd(::open(image.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) fail("create " + image);
  const std::uint64_t size = type == "xfs" ? std::max(bytes, kSmallestXfs) : bytes;
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) < 0) fail("resize " + image);
  // Inode tables and journal are written now, because background writes would disturb tests.
  const CommandResult made = type == "ext4"
                                 ? run_command({"mkfs.ext4", "-q", "-F", "-m", "0", "-E",
                                                "lazy_itable_init=0,lazy_journal_init=0", image})
                                 : run_command({"mkfs." + type, "-q", "-f", image});
  if (!made.ok()) throw std::runtime_error("mkfs." + type + ": " + made.err);
}

LoopFs::LoopFs(const std::string& directory, const std::string& type, std::uint64_t bytes)
    : path_(directory), type_(type) {
  make_image(path_ + ".img", type_, bytes);
  attach(path_ + ".img");
  ::rmdir((path_ + "/lost+found").c_str());  // so that a tier starts empty, like a directory
}

LoopFs::LoopFs(const std::string& directory, const std::string& type, const std::string& image)
    : path_(directory), type_(type) {
  attach(image);
}

void LoopFs::attach(const std::string& image) {
  if (::mkdir(path_.c_str(), 0755) < 0 && errno != EEXIST) fail("mkdir " + path_);
  const UniqueFd fd(::open(image.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) fail("open " + image);
  std::tie(loop_, device_) = attach_loop(fd.get());
  janitor::watch_mount(path_);
  mount(0);
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

bool LoopFs::is_free() const {
  // A mounted filesystem keeps its device open exclusively.
  return static_cast<bool>(UniqueFd(::open(device_.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC)));
}

void LoopFs::shut_down() {
  constexpr unsigned long kGoingDown = _IOR('X', 125, std::uint32_t);  // the same for ext4 and xfs
  std::uint32_t flags = 2;                                             // without flushing the log
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::ioctl(fd.get(), kGoingDown, &flags) < 0) fail("shut down " + path_);
}

void LoopFs::remount_read_only() { mount(MS_REMOUNT | MS_RDONLY); }

}  // namespace sluice::test
