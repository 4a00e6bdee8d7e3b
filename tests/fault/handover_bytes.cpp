// SPDX-License-Identifier: BSD-2-Clause
// The loads that change bytes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "tests/fault/handover_loads.hpp"
#include "tests/fault/model_file.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {

void change_bytes(Load& load, std::size_t most) {
  ModelFile file(load, load.directory + "/file", most);
  for (std::uint64_t steps = 1; load.next(); ++steps) {
    file.step();
    if (steps % 50 == 0) file.compare();
  }
  file.compare();
}

namespace {

UniqueFd nameless_file(Load& load) {
  if (load.below(2) == 0) {
    UniqueFd fd(::open(load.directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    Load::check(fd.get(), "open with O_TMPFILE");
    return fd;
  }
  const std::string path = load.directory + "/deleted";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  Load::check(fd.get(), "create " + path);
  Load::check(::unlink(path.c_str()), "unlink " + path);
  return fd;
}

}  // namespace

void change_nameless_files(Load& load) {
  constexpr std::size_t kFiles = 8;
  constexpr std::size_t kMost = 300'000;
  std::vector<std::unique_ptr<ModelFile>> files(kFiles);
  while (load.next()) {
    auto& file = files[load.below(kFiles)];
    if (!file || load.below(60) == 0) {
      if (file) file->compare();
      file = std::make_unique<ModelFile>(load, nameless_file(load), kMost);
    }
    file->step();
  }
  for (const auto& file : files) {
    if (file) file->compare();
  }
  files.clear();
  Load::expect(names_in(load.directory).empty(), "a deleted file is in " + load.directory);
}

namespace {

// A record of this line is appended by one write(2).
std::string record(int writer, std::uint64_t number) {
  std::string out = std::to_string(writer) + " " + std::to_string(number) + " ";
  out += std::string(number * 7 % 90, static_cast<char>('a' + writer)) + "\n";
  return out;
}

// Each writer's records are there, once and in order, and nothing else is.
void check_records(const std::string& path, int writers) {
  std::istringstream lines(read_file(path));
  std::vector<std::uint64_t> next(static_cast<std::size_t>(writers), 0);
  std::string last;
  for (std::string line; std::getline(lines, line); last = line) {
    std::istringstream words(line);
    std::size_t writer = next.size();
    words >> writer;
    const bool is_next =
        writer < next.size() && line + "\n" == record(static_cast<int>(writer), next[writer]);
    Load::expect(is_next, "the records of " + path + " are wrong at \"" + line + "\" after \"" +
                              last + "\"");
    ++next[writer];
  }
}

}  // namespace

void append_together(Load& load) {
  constexpr int kWriters = 3;
  constexpr int kRecords = 60;
  const std::string path = load.directory + "/log";
  while (load.next()) {
    std::vector<pid_t> children;
    for (int writer = 0; writer < kWriters; ++writer) {
      children.push_back(::fork());
      if (children.back() != 0) continue;
      const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
      int failed = fd ? 0 : errno;
      for (std::uint64_t i = 0; i < kRecords && failed == 0; ++i) {
        const std::string bytes = record(writer, i);
        const ssize_t put = ::write(fd.get(), bytes.data(), bytes.size());
        if (put != static_cast<ssize_t>(bytes.size())) failed = put < 0 ? errno : EPROTO;
      }
      ::_exit(failed);
    }
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      Load::expect(status == 0, "append to " + path + " = " + errno_name(WEXITSTATUS(status)));
    }
    check_records(path, kWriters);
    Load::check(::unlink(path.c_str()), "unlink " + path);
  }
}

}  // namespace sluice::test
