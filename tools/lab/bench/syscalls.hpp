// SPDX-License-Identifier: BSD-2-Clause
// The system calls of the benchmark. Each either succeeds or ends the run.
//
// Failures are exceptions here, unlike in the daemon: no C code calls these functions, failures are
// not expected, and the timed loops contain no code for error handling.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "base/unique_fd.hpp"

namespace sluice::tools::lab::bench {

// A failure with a message for the user: "open /mnt/x: No space left on device (ENOSPC)".
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws a Failure that names `operation`, `path` and the current errno.
[[noreturn]] void throw_failure(const char* operation, const std::string& path);

// Throws a Failure if `correct` is false: the filesystem answered, but wrongly.
void expect(bool correct, const char* what, const std::string& path);

UniqueFd open_file(const std::string& path, int flags, mode_t mode = 0644);
UniqueFd open_directory(const std::string& path);
UniqueFd open_at(const UniqueFd& directory, const std::string& name, int flags, mode_t mode = 0644);
void close_file(UniqueFd fd,
                const std::string& path);  // unlike the destructor, reports what close() says
void make_directory(const std::string& path);
std::string make_temp_directory(const std::string& parent, const char* prefix);

// All of the span or a Failure; `path` is only for the message.
void write_all(const UniqueFd& fd, std::span<const std::byte> data, const std::string& path);
void write_at(const UniqueFd& fd, std::span<const std::byte> data, off_t offset,
              const std::string& path);
void read_at(const UniqueFd& fd, std::span<std::byte> out, off_t offset, const std::string& path);

// Write back all that is dirty: on the machine, or on the filesystem that holds `path`.
void sync_machine();
void sync_filesystem(const std::string& path);

// True if this process may drop the kernel's caches (in practice: root, outside of most
// containers).
bool can_drop_caches();

// Makes the kernel forget the clean names and inodes it has cached, everywhere on the machine; page
// contents stay.
void drop_names();

// Adds up the time between each start() and stop().
class Stopwatch {
 public:
  void start() { started_ = Clock::now(); }
  void stop() { total_ += Clock::now() - started_; }
  double seconds() const { return std::chrono::duration<double>(total_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point started_{};
  Clock::duration total_{};
};

}  // namespace sluice::tools::lab::bench
