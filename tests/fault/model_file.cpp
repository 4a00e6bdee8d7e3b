// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/model_file.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kLongest = 96 << 10;  // of one call
constexpr std::size_t kHistory = 1500;

// Memory for direct I/O.
struct Aligned {
  explicit Aligned(std::size_t size)
      : memory(static_cast<char*>(std::aligned_alloc(kBlock, size)), &std::free) {}
  std::unique_ptr<char, decltype(&std::free)> memory;
};

std::size_t down(std::size_t number) { return number / kBlock * kBlock; }

}  // namespace

ModelFile::ModelFile(Load& load, std::string path, std::size_t most)
    : load_(load), path_(std::move(path)), most_(most) {
  fds_[O_RDWR] = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  Load::check(fds_[O_RDWR].get(), "create " + path_);
}

ModelFile::ModelFile(Load& load, UniqueFd fd, std::size_t most) : load_(load), most_(most) {
  fds_[O_RDWR] = std::move(fd);
}

int ModelFile::fd(int flags) {
  // A file without a name is opened again through /proc.
  const std::string path =
      path_.empty() ? "/proc/self/fd/" + std::to_string(fds_.at(O_RDWR).get()) : path_;
  UniqueFd& found = fds_[flags];
  if (!found) {
    found.reset(::open(path.c_str(), flags | O_CLOEXEC));
    Load::check(found.get(), where("open"));
  }
  return found.get();
}

ModelFile::Range ModelFile::any_range() {
  const std::size_t at = load_.below(most_);
  return {at, 1 + load_.below(std::min(kLongest, most_ - at))};
}

std::string ModelFile::any_bytes(std::size_t size) { return pattern(size, load_.random()); }

void ModelFile::put(std::size_t at, const std::string& bytes) {
  if (content_.size() < at + bytes.size()) content_.resize(at + bytes.size(), '\0');
  content_.replace(at, bytes.size(), bytes);
}

std::string ModelFile::where(const char* what) const {
  return std::string(what) + " of " + (path_.empty() ? "a file without a name" : path_) + " with " +
         std::to_string(content_.size()) + " bytes, after:" + history_ + "\n ";
}

void ModelFile::compare_part(const std::string& got, std::size_t at, const char* how) {
  const std::size_t end = std::min(content_.size(), at + got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (at + i < end && got[i] == content_[at + i]) continue;
    std::size_t wrong = 0;
    for (std::size_t j = i; j < got.size(); ++j)
      wrong += at + j >= end || got[j] != content_[at + j];
    throw std::runtime_error(where(how) + "byte " + std::to_string(at + i) + " is wrong, and " +
                             std::to_string(wrong) + " bytes up to " +
                             std::to_string(at + got.size()));
  }
}

void ModelFile::step() {
  struct Choice {
    const char* name;
    Action action;
    unsigned weight;
    bool needs_name;
  };
  static constexpr Choice kChoices[] = {
      {"read", &ModelFile::read, 8, false},
      {"read directly", &ModelFile::read_directly, 4, false},
      {"write", &ModelFile::write, 10, false},
      {"write only", &ModelFile::write_only, 3, false},
      {"write directly", &ModelFile::write_directly, 4, false},
      {"append", &ModelFile::append, 8, false},
      {"truncate", &ModelFile::truncate, 4, false},
      {"truncate by open", &ModelFile::truncate_by_open, 1, false},
      {"allocate", &ModelFile::allocate, 4, false},
      {"map and read", &ModelFile::map_and_read, 4, false},
      {"map and store", &ModelFile::map_and_store, 4, false},
      {"copy within", &ModelFile::copy_within, 2, false},
      {"sync", &ModelFile::sync, 1, false},
      {"look", &ModelFile::look, 4, false},
      {"close", &ModelFile::close, 4, true},
  };
  unsigned all = 0;
  for (const Choice& each : kChoices) all += each.weight;
  auto chosen = static_cast<unsigned>(load_.below(all));
  for (const Choice& each : kChoices) {
    if (chosen >= each.weight) {
      chosen -= each.weight;
      continue;
    }
    if (each.needs_name && path_.empty()) return;
    history_ += std::string("\n  ") + each.name;
    if (history_.size() > kHistory) history_.erase(0, history_.size() - kHistory);
    (this->*each.action)();
    return;
  }
}

void ModelFile::compare() {
  std::string got(content_.size() + kBlock, '\0');
  std::size_t done = 0;
  const int file = fd(O_RDWR);
  for (;;) {
    const long part =
        Load::check(::pread(file, got.data() + done, got.size() - done, static_cast<off_t>(done)),
                    where("read"));
    if (part == 0) break;
    done += static_cast<std::size_t>(part);
  }
  got.resize(done);
  Load::expect(done == content_.size(),
               where("compare") + std::to_string(done) + " bytes are there");
  compare_part(got, 0, "compare");
}

void ModelFile::read() {
  const Range range = any_range();
  history_ += " " + std::to_string(range.at) + "+" + std::to_string(range.size);
  std::string got(range.size, '\0');
  const int file = fd(load_.below(2) ? O_RDWR : O_RDONLY);
  const long size = Load::check(::pread(file, got.data(), got.size(), static_cast<off_t>(range.at)),
                                where("read"));
  got.resize(static_cast<std::size_t>(size));
  const std::size_t there = content_.size() > range.at ? content_.size() - range.at : 0;
  Load::expect(got.size() == std::min(range.size, there),
               where("read") + "got " + std::to_string(size));
  compare_part(got, range.at, "read");
}

void ModelFile::read_directly() {
  const std::size_t at = down(load_.below(most_));
  const std::size_t size = down(load_.below(kLongest)) + kBlock;
  history_ += " " + std::to_string(at) + "+" + std::to_string(size);
  const Aligned buffer(size);
  const long got =
      Load::check(::pread(fd(O_RDWR | O_DIRECT), buffer.memory.get(), size, static_cast<off_t>(at)),
                  where("read"));
  const std::size_t there = content_.size() > at ? content_.size() - at : 0;
  Load::expect(static_cast<std::size_t>(got) == std::min(size, there),
               where("read directly") + "got " + std::to_string(got));
  compare_part({buffer.memory.get(), static_cast<std::size_t>(got)}, at, "read directly");
}

void ModelFile::write() {
  const Range range = any_range();
  history_ += " " + std::to_string(range.at) + "+" + std::to_string(range.size);
  const std::string bytes = any_bytes(range.size);
  const long done =
      Load::check(::pwrite(fd(O_RDWR), bytes.data(), bytes.size(), static_cast<off_t>(range.at)),
                  where("write"));
  Load::expect(done == static_cast<long>(bytes.size()), where("write") + "it was short");
  put(range.at, bytes);
}

void ModelFile::write_only() {
  const Range range = any_range();
  history_ += " " + std::to_string(range.at) + "+" + std::to_string(range.size);
  const std::string bytes = any_bytes(range.size);
  const long done =
      Load::check(::pwrite(fd(O_WRONLY), bytes.data(), bytes.size(), static_cast<off_t>(range.at)),
                  where("write"));
  Load::expect(done == static_cast<long>(bytes.size()), where("write") + "it was short");
  put(range.at, bytes);
}

void ModelFile::write_directly() {
  const std::size_t at = down(load_.below(most_));
  const std::string bytes = any_bytes(down(load_.below(std::min(kLongest, most_))) + kBlock);
  history_ += " " + std::to_string(at) + "+" + std::to_string(bytes.size());
  const Aligned buffer(bytes.size());
  bytes.copy(buffer.memory.get(), bytes.size());
  const long done = Load::check(
      ::pwrite(fd(O_RDWR | O_DIRECT), buffer.memory.get(), bytes.size(), static_cast<off_t>(at)),
      where("write directly"));
  Load::expect(done == static_cast<long>(bytes.size()), where("write directly") + "it was short");
  put(at, bytes);
}

void ModelFile::append() {
  if (content_.size() > most_) return;
  const std::string bytes = any_bytes(1 + load_.below(load_.below(4) ? 2000 : kLongest));
  history_ += " " + std::to_string(bytes.size());
  const long done =
      Load::check(::write(fd(O_WRONLY | O_APPEND), bytes.data(), bytes.size()), where("append"));
  Load::expect(done == static_cast<long>(bytes.size()), where("append") + "it was short");
  content_ += bytes;
}

void ModelFile::truncate() {
  const std::size_t size = load_.below(most_);
  history_ += " " + std::to_string(size);
  Load::check(::ftruncate(fd(O_RDWR), static_cast<off_t>(size)), where("truncate"));
  content_.resize(size, '\0');
}

void ModelFile::truncate_by_open() {
  const std::string path =
      path_.empty() ? "/proc/self/fd/" + std::to_string(fds_.at(O_RDWR).get()) : path_;
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_TRUNC | O_CLOEXEC));
  Load::check(file.get(), where("open with O_TRUNC"));
  content_.clear();
}

void ModelFile::allocate() {
  constexpr int kModes[] = {0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                            FALLOC_FL_ZERO_RANGE, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
  const int mode = kModes[load_.below(std::size(kModes))];
  const Range range = any_range();
  history_ += " mode " + std::to_string(mode) + " " + std::to_string(range.at) + "+" +
              std::to_string(range.size);
  Load::check(
      ::fallocate(fd(O_RDWR), mode, static_cast<off_t>(range.at), static_cast<off_t>(range.size)),
      where("fallocate"));
  const std::size_t end = range.at + range.size;
  if (!(mode & FALLOC_FL_KEEP_SIZE) && content_.size() < end) content_.resize(end, '\0');
  if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) {
    for (std::size_t i = range.at; i < std::min(end, content_.size()); ++i) content_[i] = '\0';
  }
}

void ModelFile::map_and_read() {
  if (content_.empty()) return;
  void* memory = ::mmap(nullptr, content_.size(), PROT_READ, MAP_SHARED, fd(O_RDWR), 0);
  Load::check(memory == MAP_FAILED ? -1 : 0, where("mmap"));
  const std::size_t at = load_.below(content_.size());
  const std::size_t size = std::min(kLongest, content_.size() - at);
  const std::string got(static_cast<const char*>(memory) + at, size);
  ::munmap(memory, content_.size());
  compare_part(got, at, "map and read");
}

void ModelFile::map_and_store() {
  if (content_.empty()) return;
  void* memory =
      ::mmap(nullptr, content_.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd(O_RDWR), 0);
  Load::check(memory == MAP_FAILED ? -1 : 0, where("mmap"));
  const std::size_t at = load_.below(content_.size());
  const std::string bytes = any_bytes(1 + load_.below(std::min(kLongest, content_.size() - at)));
  history_ += " " + std::to_string(at) + "+" + std::to_string(bytes.size());
  bytes.copy(static_cast<char*>(memory) + at, bytes.size());
  const int synced = ::msync(memory, content_.size(), MS_SYNC);
  ::munmap(memory, content_.size());
  Load::check(synced, where("msync"));
  content_.replace(at, bytes.size(), bytes);
}

void ModelFile::copy_within() {
  if (content_.size() < 2) return;
  const std::size_t half = content_.size() / 2;
  const std::size_t size = 1 + load_.below(std::min(kLongest, half));
  const std::size_t source = load_.below(half - size + 1);
  off_t from = static_cast<off_t>(source), to = static_cast<off_t>(half);
  history_ +=
      " " + std::to_string(source) + "+" + std::to_string(size) + " to " + std::to_string(half);
  const long done = Load::check(::copy_file_range(fd(O_RDWR), &from, fd(O_RDWR), &to, size, 0),
                                where("copy_file_range"));
  put(half, content_.substr(source, static_cast<std::size_t>(done)));
}

void ModelFile::sync() {
  Load::check(load_.below(2) ? ::fsync(fd(O_RDWR)) : ::fdatasync(fd(O_RDWR)), where("sync"));
}

void ModelFile::look() {
  struct stat st {};
  Load::check(::fstat(fd(O_RDWR), &st), where("fstat"));
  Load::expect(static_cast<std::size_t>(st.st_size) == content_.size(),
               where("fstat") + "the size is " + std::to_string(st.st_size));
  Load::expect(st.st_nlink == (path_.empty() ? 0 : 1),
               where("fstat") + "it has " + std::to_string(st.st_nlink) + " names");
}

// All of them, so that the file can move to another tier.
void ModelFile::close() { fds_.clear(); }

}  // namespace sluice::test
