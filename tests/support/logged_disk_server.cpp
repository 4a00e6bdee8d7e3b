// SPDX-License-Identifier: BSD-2-Clause
// logged_disk_server DIRECTORY MOUNTPOINT IMAGE...
//
// Provides each IMAGE (a file name in DIRECTORY) as a file of that name below MOUNTPOINT, and
// appends every write and flush to DIRECTORY/log. A single thread serves all requests, so that the
// log has one order over all disks. A record is complete before the kernel gets the reply. The
// server ends when it is unmounted.
#define FUSE_USE_VERSION 318
#include <fcntl.h>
#include <fuse.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/logged_disk_log.hpp"

namespace sluice::test {
namespace {

struct Disk {
  std::string name;
  int fd;
  off_t size;
};

struct Server {
  std::vector<Disk> disks;
  int log = -1;
  LogControl* control = nullptr;
};

Server& server() { return *static_cast<Server*>(::fuse_get_context()->private_data); }

// The index of the disk, or -1.
int disk_named(const char* path) {
  const std::vector<Disk>& disks = server().disks;
  for (std::size_t i = 0; i < disks.size(); ++i) {
    if (disks[i].name == path + 1) return static_cast<int>(i);
  }
  return -1;
}

std::size_t disk_of(const fuse_file_info* file) { return static_cast<std::size_t>(file->fh); }

bool fails(std::size_t disk, bool writes) {
  const DiskMode mode = server().control->modes[disk];
  return mode == DiskMode::Fails || (writes && mode == DiskMode::FailsWrites);
}

void append(LogRecord::Kind kind, std::size_t disk, off_t offset, std::size_t length,
            const char* data) {
  LogRecord record{kind, static_cast<std::uint32_t>(disk), static_cast<std::uint64_t>(offset),
                   length};
  const std::size_t bytes = data ? length : 0;
  std::array<iovec, 2> parts{{{&record, sizeof record}, {const_cast<char*>(data), bytes}}};
  if (::writev(server().log, parts.data(), parts.size()) !=
      static_cast<ssize_t>(sizeof record + bytes)) {
    std::perror("logged_disk_server: log");
    std::abort();  // a log with a gap would be worthless
  }
  ++server().control->records;
}

int do_getattr(const char* path, struct stat* out, fuse_file_info*) {
  *out = {};
  out->st_nlink = 1;
  if (std::strcmp(path, "/") == 0) {
    out->st_mode = S_IFDIR | 0700;
    return 0;
  }
  const int disk = disk_named(path);
  if (disk < 0) return -ENOENT;
  out->st_mode = S_IFREG | 0600;
  out->st_size = server().disks[static_cast<std::size_t>(disk)].size;
  out->st_blocks = out->st_size / 512;
  return 0;
}

int do_open(const char* path, fuse_file_info* file) {
  const int disk = disk_named(path);
  if (disk < 0) return -ENOENT;
  file->fh = static_cast<std::uint64_t>(disk);
  file->direct_io = 1;  // no cache between the loop device and the log
  return 0;
}

int do_read(const char*, char* out, size_t size, off_t offset, fuse_file_info* file) {
  const std::size_t disk = disk_of(file);
  if (fails(disk, false)) return -EIO;
  const ssize_t got = ::pread(server().disks[disk].fd, out, size, offset);
  return got < 0 ? -errno : static_cast<int>(got);
}

int do_write(const char*, const char* data, size_t size, off_t offset, fuse_file_info* file) {
  const std::size_t disk = disk_of(file);
  if (fails(disk, true)) return -EIO;
  if (::pwrite(server().disks[disk].fd, data, size, offset) != static_cast<ssize_t>(size)) {
    return -EIO;
  }
  append(LogRecord::Kind::Write, disk, offset, size, data);
  return static_cast<int>(size);
}

int do_fallocate(const char*, int mode, off_t offset, off_t length, fuse_file_info* file) {
  const std::size_t disk = disk_of(file);
  if ((mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) == 0) return -EOPNOTSUPP;
  if (fails(disk, true)) return -EIO;
  if (::fallocate(server().disks[disk].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                  length) < 0) {
    return -errno;
  }
  append(LogRecord::Kind::Zero, disk, offset, static_cast<std::size_t>(length), nullptr);
  return 0;
}

// The image itself is not synced: this machine does not lose its power.
int do_fsync(const char*, int, fuse_file_info* file) {
  const std::size_t disk = disk_of(file);
  if (fails(disk, true)) return -EIO;
  append(LogRecord::Kind::Flush, disk, 0, 0, nullptr);
  ++server().control->flushes[disk];
  return 0;
}

LogControl* map_control(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* memory =
      fd < 0 ? MAP_FAILED
             : ::mmap(nullptr, sizeof(LogControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<LogControl*>(memory);
}

int serve(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Server state;
  const std::string directory = argv[1];
  state.control = map_control(directory + "/control");
  state.log = ::open((directory + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (state.control == nullptr || state.log < 0) {
    std::perror("logged_disk_server");
    return 1;
  }
  for (int i = 3; i < argc; ++i) {
    const int fd = ::open((directory + "/" + argv[i]).c_str(), O_RDWR | O_CLOEXEC);
    struct stat st {};
    if (fd < 0 || ::fstat(fd, &st) < 0) {
      std::perror(argv[i]);
      return 1;
    }
    state.disks.push_back({argv[i], fd, st.st_size});
  }
  fuse_operations operations{};
  operations.getattr = do_getattr;
  operations.open = do_open;
  operations.read = do_read;
  operations.write = do_write;
  operations.fallocate = do_fallocate;
  operations.fsync = do_fsync;
  std::array<const char*, 4> arguments{argv[0], "-f", "-s", argv[2]};
  return fuse_main(static_cast<int>(arguments.size()), const_cast<char**>(arguments.data()),
                   &operations, &state);
}

}  // namespace
}  // namespace sluice::test

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: logged_disk_server DIRECTORY MOUNTPOINT IMAGE...\n");
    return 2;
  }
  return sluice::test::serve(argc, argv);
}
