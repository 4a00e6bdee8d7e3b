// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/logged_disk.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <new>
#include <random>
#include <stdexcept>
#include <system_error>

#include "base/unique_fd.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t kPiece = 4096;  // unit that a disk writes atomically

void copy_sparse(const std::string& from, const std::string& to) {
  const CommandResult result = run_command({"cp", "--sparse=always", from, to});
  if (!result.ok()) throw std::runtime_error("cp " + from + ": " + result.err);
}

pid_t start_server(const std::vector<std::string>& argv) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return child;
}

}  // namespace

LoggedDisks::LoggedDisks(const std::string& directory, std::vector<Disk> disks)
    : directory_(directory + "/.disks"), parent_(directory), disks_(std::move(disks)) {
  if (disks_.size() > kMostDisks) throw std::invalid_argument("too many disks");
  const std::string offered = directory_ + "/offered";
  if (::mkdir(directory_.c_str(), 0700) < 0 || ::mkdir(offered.c_str(), 0700) < 0) {
    fail("mkdir " + offered);
  }
  const UniqueFd fd(
      ::open((directory_ + "/control").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  void* memory = MAP_FAILED;
  if (fd && ::ftruncate(fd.get(), sizeof(LogControl)) == 0) {
    memory = ::mmap(nullptr, sizeof(LogControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  }
  if (memory == MAP_FAILED) fail("make " + directory_ + "/control");
  control_ = new (memory) LogControl();

  std::vector<std::string> argv{SLUICE_LOGGED_DISK_SERVER, directory_, offered};
  for (const Disk& each : disks_) {
    make_image(directory_ + "/" + each.name + ".base", each.type, each.bytes);
    copy_sparse(directory_ + "/" + each.name + ".base", directory_ + "/" + each.name);
    argv.push_back(each.name);
  }
  janitor::watch_mount(offered);
  server_ = start_server(argv);
  const std::string first = offered + "/" + disks_.front().name;
  if (!eventually([&] { return exists(first); })) {
    end_server();
    throw std::runtime_error("logged_disk_server does not start");
  }
  for (const Disk& each : disks_) {
    mounted_[each.name] =
        std::make_unique<LoopFs>(parent_ + "/" + each.name, each.type, offered + "/" + each.name);
    ::rmdir((parent_ + "/" + each.name + "/lost+found").c_str());
  }
}

LoggedDisks::~LoggedDisks() {
  mounted_.clear();
  if (server_ > 0) end_server();
  ::munmap(control_, sizeof(LogControl));
}

// Ends the server by unmounting, which the last loop device may delay; otherwise by force.
void LoggedDisks::end_server() {
  const std::string offered = directory_ + "/offered";
  if (!eventually([&] { return ::umount2(offered.c_str(), 0) == 0 || errno == EINVAL; })) {
    ::umount2(offered.c_str(), MNT_FORCE);
    ::umount2(offered.c_str(), MNT_DETACH);
    ::kill(server_, SIGKILL);
  }
  ::waitpid(server_, nullptr, 0);
  server_ = -1;
  janitor::forget(offered);
}

std::size_t LoggedDisks::number_of(const std::string& name) const {
  const auto found = std::ranges::find(disks_, name, &Disk::name);
  if (found == disks_.end()) throw std::invalid_argument(name);
  return static_cast<std::size_t>(found - disks_.begin());
}

std::uint64_t LoggedDisks::flushes(const std::string& name) const {
  return control_->flushes[number_of(name)];
}

void LoggedDisks::set_mode(const std::string& name, DiskMode mode) {
  control_->modes[number_of(name)] = mode;
}

void LoggedDisks::stop() {
  for (const auto& [name, disk] : mounted_) {
    if (::umount2(disk->path().c_str(), 0) < 0) fail("unmount " + disk->path());
  }
  mounted_.clear();
  end_server();
  read_log();
}

void LoggedDisks::read_log() {
  const UniqueFd fd(::open((directory_ + "/log").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail("open log");
  log_.clear();
  for (std::uint64_t at = 0;;) {
    Entry entry{};
    const ssize_t got =
        ::pread(fd.get(), &entry.record, sizeof entry.record, static_cast<off_t>(at));
    if (got == 0) break;
    if (got != sizeof entry.record)
      throw std::runtime_error("the log ends in the middle of a record");
    at += sizeof entry.record;
    entry.data = at;
    if (entry.record.kind == LogRecord::Kind::Write) at += entry.record.length;
    log_.push_back(entry);
  }
  if (log_.size() != control_->records) throw std::runtime_error("the log has gaps");
}

std::vector<std::uint64_t> LoggedDisks::flush_positions() const {
  std::vector<std::uint64_t> found;
  for (std::size_t i = 0; i < log_.size(); ++i) {
    if (log_[i].record.kind == LogRecord::Kind::Flush) found.push_back(i + 1);
  }
  return found;
}

std::string LoggedDisks::image_after_cut(const std::string& name) const {
  return directory_ + "/" + name + ".cut";
}

void LoggedDisks::write_image(std::size_t disk, const PowerCut& cut) const {
  const std::string image = image_after_cut(disks_[disk].name);
  ::unlink(image.c_str());
  copy_sparse(directory_ + "/" + disks_[disk].name + ".base", image);
  const UniqueFd out(::open(image.c_str(), O_WRONLY | O_CLOEXEC));
  const UniqueFd in(::open((directory_ + "/log").c_str(), O_RDONLY | O_CLOEXEC));
  if (!out || !in) fail("write " + image);

  const std::size_t end = std::min<std::size_t>(cut.at, log_.size());
  std::size_t durable = 0;  // records before this index are durable
  for (std::size_t i = 0; i < end; ++i) {
    const LogRecord& record = log_[i].record;
    if (record.disk == disk && record.kind == LogRecord::Kind::Flush) durable = i;
  }
  std::mt19937_64 random(cut.seed * kMostDisks + disk);
  // A share for each cut: from nearly nothing to nearly everything.
  const std::uint64_t percent = 5 + random() % 91;
  const auto survives = [&](std::size_t i) {
    if (i < durable || cut.survivors == PowerCut::Survivors::All) return true;
    return cut.survivors == PowerCut::Survivors::Random && random() % 100 < percent;
  };
  std::string data;
  for (std::size_t i = 0; i < end; ++i) {
    const LogRecord& record = log_[i].record;
    if (record.disk != disk || record.kind == LogRecord::Kind::Flush) continue;
    data.assign(record.length, '\0');
    if (record.kind == LogRecord::Kind::Write &&
        ::pread(in.get(), data.data(), data.size(), static_cast<off_t>(log_[i].data)) !=
            static_cast<ssize_t>(data.size())) {
      fail("read log");
    }
    for (std::uint64_t done = 0; done < record.length; done += kPiece) {
      const std::uint64_t size = std::min(kPiece, record.length - done);
      if (!survives(i)) continue;
      if (::pwrite(out.get(), data.data() + done, size, static_cast<off_t>(record.offset + done)) !=
          static_cast<ssize_t>(size)) {
        fail("write " + image);
      }
    }
  }
}

void LoggedDisks::mount_after(const PowerCut& cut) {
  mounted_.clear();
  for (std::size_t i = 0; i < disks_.size(); ++i) write_image(i, cut);
  for (const Disk& each : disks_) {
    mounted_[each.name] =
        std::make_unique<LoopFs>(parent_ + "/" + each.name, each.type, image_after_cut(each.name));
  }
}

}  // namespace sluice::test
