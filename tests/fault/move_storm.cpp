// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/move_storm.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/fault/move_stage.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

constexpr int kLoud = 24;
constexpr int kQuiet = 8;
constexpr int kDirectories = 3;
constexpr std::size_t kLargest = 700'000;
constexpr std::size_t kBlock = 4096;

std::string bytes(std::mt19937_64& random, std::size_t most) {
  return pattern(1 + random() % most, random());
}

void put(std::string& content, std::size_t offset, const std::string& data) {
  if (content.size() < offset + data.size()) content.resize(offset + data.size(), '\0');
  content.replace(offset, data.size(), data);
}

}  // namespace

MoveStorm::MoveStorm(std::string root, std::vector<std::string> tiers, std::uint64_t seed)
    : root_(std::move(root)), tiers_(std::move(tiers)), seed_(seed) {
  Random random(seed_);
  for (int d = 0; d < kDirectories; ++d) {
    ::mkdir(path("d" + std::to_string(d)).c_str(), 0755);
  }
  for (int i = 0; i < kLoud + kQuiet; ++i) {
    auto subject = std::make_unique<Subject>();
    subject->quiet = i >= kLoud;
    create(*subject, random);
    subjects_.push_back(std::move(subject));
  }
}

MoveStorm::~MoveStorm() = default;

void MoveStorm::create(Subject& subject, Random& random) {
  subject.names = {new_name(random)};
  // Sizes below and above the limit up to which files stay in the page cache.
  subject.content = bytes(random, random() % 2 ? 60'000 : kLargest);
  subject.mode = 0644;
  write_file(path(subject.names[0]), subject.content, subject.mode);
  subject.inode = lstat_of(path(subject.names[0])).st_ino;
}

std::string MoveStorm::new_name(Random& random) {
  return "d" + std::to_string(random() % kDirectories) + "/n" + std::to_string(next_name_++);
}

MoveStorm::Subject& MoveStorm::any_loud(Random& random) { return *subjects_[random() % kLoud]; }

std::string MoveStorm::path(const Subject& subject, Random& random) const {
  return path(subject.names[random() % subject.names.size()]);
}

void MoveStorm::report(const std::string& text) {
  const MutexLock lock(problems_mutex_);
  if (problems_.size() < 8) problems_.push_back(text);
  stop_ = true;
}

std::string MoveStorm::problems() const {
  const MutexLock lock(problems_mutex_);
  std::string out;
  for (const std::string& each : problems_) out += each + "\n";
  return out;
}

bool MoveStorm::check(long result, const char* what, const Subject& subject) {
  if (result >= 0) return true;
  report(std::string(what) + " of " + subject.names[0] + ": " + errno_name(errno));
  return false;
}

void MoveStorm::compare(const Subject& subject, const std::string& found, std::size_t offset,
                        const char* who) {
  const std::string expected =
      offset < subject.content.size() ? subject.content.substr(offset, found.size()) : "";
  if (found == expected) return;
  std::size_t at = 0;
  while (at < std::min(found.size(), expected.size()) && found[at] == expected[at]) ++at;
  std::size_t zeros = 0;
  while (at + zeros < found.size() && found[at + zeros] == '\0') ++zeros;
  report(std::string(who) + ": " + subject.names[0] + " (" +
         std::to_string(subject.content.size()) + " bytes, on " + tier_of(path(subject.names[0])) +
         ") differs at offset " + std::to_string(offset + at) + "; " +
         std::to_string(found.size()) + " bytes read of " + std::to_string(expected.size()) + ", " +
         std::to_string(zeros) + " zeros at that offset; " +
         past_the_page_cache(subject, offset + at));
}

// Tells whether the wrong byte is only in the kernel's page cache or also in the file.
std::string MoveStorm::past_the_page_cache(const Subject& subject, std::size_t offset) const {
  const UniqueFd fd(::open(path(subject.names[0]).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  const std::unique_ptr<void, void (*)(void*)> buffer(std::aligned_alloc(kBlock, kBlock),
                                                      std::free);
  const std::size_t start = offset / kBlock * kBlock;
  const ssize_t got = ::pread(fd.get(), buffer.get(), kBlock, static_cast<off_t>(start));
  if (got <= static_cast<ssize_t>(offset - start)) return "O_DIRECT cannot read it";
  const char found = static_cast<const char*>(buffer.get())[offset - start];
  return found == subject.content[offset] ? "O_DIRECT reads the right byte"
                                          : "O_DIRECT reads the wrong byte, too";
}

void MoveStorm::check_identity(const Subject& subject, int fd) {
  struct stat st {};
  if (!check(::fstat(fd, &st), "fstat", subject)) return;
  if (st.st_ino != subject.inode) report(subject.names[0] + " has changed its inode number");
  if (st.st_size != static_cast<off_t>(subject.content.size())) {
    report(subject.names[0] + " has " + std::to_string(st.st_size) + " bytes by fstat, not " +
           std::to_string(subject.content.size()));
  }
  if (st.st_nlink != subject.names.size()) {
    report(subject.names[0] + " has " + std::to_string(st.st_nlink) + " links, not " +
           std::to_string(subject.names.size()));
  }
  if ((st.st_mode & 07777) != subject.mode) report(subject.names[0] + " has a wrong mode");
}

// Writes, truncates, punches holes, extends and reads back, as fsx does.
void MoveStorm::write(Random& random) {
  Subject& subject = any_loud(random);
  UniqueFd fd;
  for (int act = 0; act < 3; ++act) {  // the lock is released between them, the file stays open
    const MutexLock lock(subject.mutex);
    if (!fd) fd.reset(::open(path(subject, random).c_str(), O_RDWR | O_CLOEXEC));
    if (!check(fd.get(), "open to write", subject)) return;
    struct stat st {};
    // If the file was unlinked since it was opened, the model is about another file.
    if (::fstat(fd.get(), &st) < 0 || st.st_ino != subject.inode || st.st_nlink == 0) return;
    const std::size_t offset = random() % kLargest;
    const std::size_t length = 1 + random() % 100'000;
    switch (random() % 6) {
      case 0: {
        const auto size = static_cast<off_t>(offset);
        if (!check(::ftruncate(fd.get(), size), "ftruncate", subject)) return;
        subject.content.resize(offset, '\0');
        break;
      }
      case 1: {
        constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        if (!check(::fallocate(fd.get(), kPunch, static_cast<off_t>(offset),
                               static_cast<off_t>(length)),
                   "punch", subject)) {
          return;
        }
        if (offset < subject.content.size()) {
          const std::size_t count = std::min(length, subject.content.size() - offset);
          subject.content.replace(offset, count, count, '\0');
        }
        break;
      }
      case 2: {
        std::string found(length, '\0');
        const ssize_t got =
            ::pread(fd.get(), found.data(), found.size(), static_cast<off_t>(offset));
        if (!check(got, "read", subject)) return;
        found.resize(static_cast<std::size_t>(got));
        const std::size_t left =
            offset < subject.content.size() ? subject.content.size() - offset : 0;
        if (found.size() != std::min(length, left)) report("a short read");
        compare(subject, found, offset, "a writer");
        break;
      }
      default: {
        const std::string data = bytes(random, 100'000);
        const ssize_t done =
            ::pwrite(fd.get(), data.data(), data.size(), static_cast<off_t>(offset));
        if (!check(done, "pwrite", subject)) return;
        put(subject.content, offset, data.substr(0, static_cast<std::size_t>(done)));
        // The mtime does not tell then that the file was written.
        const std::array<timespec, 2> times{st.st_atim, st.st_mtim};
        if (random() % 4 == 0) check(::futimens(fd.get(), times.data()), "futimens", subject);
      }
    }
    if (random() % 8 == 0) check(::fsync(fd.get()), "fsync", subject);
  }
}

// Opens the file for each write, as fsx -c does, and has it moved in between: moves and writers
// meet.
void MoveStorm::write_and_close(Random& random) {
  Subject& subject = any_loud(random);
  for (int act = 0; act < 8; ++act) {
    std::string name;
    {
      const MutexLock lock(subject.mutex);
      name = subject.names[random() % subject.names.size()];
      const UniqueFd fd(::open(path(name).c_str(), O_RDWR | O_CLOEXEC));
      if (!check(fd.get(), "open to write once", subject)) return;
      const std::size_t offset = random() % kLargest;
      const std::string data = bytes(random, 20'000);
      const ssize_t done = ::pwrite(fd.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (!check(done, "pwrite", subject)) return;
      put(subject.content, offset, data.substr(0, static_cast<std::size_t>(done)));
    }
    send_to(path(name), tiers_[random() % tiers_.size()]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
  }
}

void MoveStorm::append(Random& random) {
  Subject& subject = any_loud(random);
  const MutexLock lock(subject.mutex);
  const UniqueFd fd(::open(path(subject, random).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!check(fd.get(), "open to append", subject)) return;
  if (subject.content.size() > 2 * kLargest) {
    if (!check(::ftruncate(fd.get(), 1000), "ftruncate", subject)) return;
    subject.content.resize(1000);
  }
  for (int i = 0; i < 4; ++i) {
    const std::string data = bytes(random, 20'000);
    const ssize_t done = ::write(fd.get(), data.data(), data.size());
    if (!check(done, "append", subject)) return;
    subject.content += data.substr(0, static_cast<std::size_t>(done));
  }
}

void MoveStorm::write_direct(Random& random) {
  Subject& subject = any_loud(random);
  const MutexLock lock(subject.mutex);
  const UniqueFd fd(::open(path(subject, random).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!check(fd.get(), "open with O_DIRECT", subject)) return;
  const std::size_t size = kBlock * (1 + random() % 16);
  const std::size_t offset = random() % (kLargest / kBlock) * kBlock;
  const std::unique_ptr<void, void (*)(void*)> buffer(std::aligned_alloc(kBlock, size), std::free);
  const std::string data = pattern(size, random());
  std::memcpy(buffer.get(), data.data(), size);
  const ssize_t done = ::pwrite(fd.get(), buffer.get(), size, static_cast<off_t>(offset));
  if (!check(done, "direct write", subject)) return;
  put(subject.content, offset, data.substr(0, static_cast<std::size_t>(done)));
}

// Stores through a mapping after its descriptor was closed. The daemon cannot notice such a writer.
// munmap, which writes the pages back, is done under the lock: Linux 6.18 loses data that is
// appended at the same time to a file that the daemon serves (docs/testing.md, "Kernel defects").
void MoveStorm::map_and_store(Random& random) {
  Subject& subject = any_loud(random);
  std::size_t size = 0;
  void* map = MAP_FAILED;
  ino_t inode = 0;
  {
    const MutexLock lock(subject.mutex);
    if (subject.content.empty()) return;
    const UniqueFd fd(::open(path(subject, random).c_str(), O_RDWR | O_CLOEXEC));
    if (!check(fd.get(), "open to map", subject)) return;
    size = subject.content.size();
    map = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (!check(map == MAP_FAILED ? -1 : 0, "mmap", subject)) return;
    inode = subject.inode;
  }
  for (int act = 0; act < 4; ++act) {
    {
      const MutexLock lock(subject.mutex);
      if (subject.inode != inode) break;
      const std::size_t end = std::min(size, subject.content.size());
      for (int i = 0; i < 8 && end > 0; ++i) {
        const std::size_t at = random() % end;
        const char value = static_cast<char>(random());
        static_cast<volatile char*>(map)[at] = value;
        subject.content[at] = value;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
  }
  const MutexLock lock(subject.mutex);
  ::munmap(map, size);
}

// Linux 6.18 may count no names of a file that has one, until it is asked for the file's attributes
// (docs/testing.md, "Kernel defects").
int MoveStorm::link(const std::string& name, const std::string& other) const {
  const std::string from = path(name), to = path(other);
  if (::link(from.c_str(), to.c_str()) == 0) return 0;
  const int code = errno;
  struct statx known {};
  const bool is_miscounted =
      code == ENOENT &&
      ::statx(AT_FDCWD, from.c_str(), AT_STATX_DONT_SYNC, STATX_NLINK, &known) == 0 &&
      known.stx_nlink == 0;
  struct stat asked {};
  if (is_miscounted && ::lstat(from.c_str(), &asked) == 0) return ::link(from.c_str(), to.c_str());
  errno = code;
  return -1;
}

void MoveStorm::churn(Random& random) {
  Subject& subject = *subjects_[random() % subjects_.size()];
  const MutexLock lock(subject.mutex);
  std::string& name = subject.names[random() % subject.names.size()];
  const std::string other = new_name(random);
  switch (random() % 6) {
    case 0:
    case 1:
      if (check(::rename(path(name).c_str(), path(other).c_str()), "rename", subject)) name = other;
      break;
    case 2:
      if (subject.names.size() < 3 && check(link(name, other), "link", subject))
        subject.names.push_back(other);
      break;
    case 3: {
      if (!check(::unlink(path(name).c_str()), "unlink", subject)) break;
      std::erase(subject.names, std::string(name));
      if (subject.names.empty()) create(subject, random);
      break;
    }
    case 4: {
      const mode_t mode = 0600 + random() % 64;
      if (check(::chmod(path(name).c_str(), mode), "chmod", subject)) subject.mode = mode;
      break;
    }
    default: {
      const std::string value = bytes(random, 100);
      check(::setxattr(path(name).c_str(), "user.storm", value.data(), value.size(), 0), "setxattr",
            subject);
    }
  }
}

void MoveStorm::read_and_compare(Random& random) {
  Subject& subject = *subjects_[random() % subjects_.size()];
  const MutexLock lock(subject.mutex);
  const UniqueFd fd(::open(path(subject, random).c_str(), O_RDONLY | O_CLOEXEC));
  if (!check(fd.get(), "open to read", subject)) return;
  check_identity(subject, fd.get());
  std::string found(subject.content.size() + 100, '\0');
  std::size_t size = 0;
  for (ssize_t got; (got = ::read(fd.get(), found.data() + size, found.size() - size)) != 0;) {
    if (!check(got, "read", subject)) return;
    size += static_cast<std::size_t>(got);
    if (size == found.size()) break;
  }
  found.resize(size);
  if (size != subject.content.size()) report(subject.names[0] + " has a wrong size by lseek");
  compare(subject, found, 0, "a reader");
}

// Keeps a file open for long and reads it in small pieces, while it may be moved more than once.
void MoveStorm::stream_quietly(Random& random) {
  Subject& subject = *subjects_[kLoud + random() % kQuiet];
  UniqueFd fd;
  std::string content;
  std::string name;
  {
    const MutexLock lock(subject.mutex);
    fd.reset(::open(path(subject, random).c_str(), O_RDONLY | O_CLOEXEC));
    if (!check(fd.get(), "open to stream", subject)) return;
    content = subject.content;
    name = subject.names[0];
  }
  std::string piece(8192, '\0');
  for (std::size_t at = 0; at < content.size() && !stop_;) {
    const ssize_t got = ::pread(fd.get(), piece.data(), piece.size(), static_cast<off_t>(at));
    if (got <= 0) {
      report("a stream of " + name + " ends at " + std::to_string(at) + ": " +
             (got < 0 ? errno_name(errno) : "end of file"));
      return;
    }
    if (content.compare(at, static_cast<std::size_t>(got), piece, 0,
                        static_cast<std::size_t>(got)) != 0) {
      report("a stream of " + name + " differs after " + std::to_string(at));
      return;
    }
    at += static_cast<std::size_t>(got);
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void MoveStorm::send(Random& random) {
  Subject& subject = *subjects_[random() % subjects_.size()];
  std::string name;
  {
    const MutexLock lock(subject.mutex);
    name = subject.names[random() % subject.names.size()];
  }
  const std::string tier = tier_of(path(name));
  std::string to = tiers_[random() % tiers_.size()];
  {
    // Often back to where it was, perhaps with its twin.
    const MutexLock lock(subject.mutex);
    if (random() % 2 && !subject.before.empty()) to = subject.before;
  }
  const int error = send_to(path(name), to);
  // ENOENT: renamed or unlinked meanwhile. EBUSY: open in a way that prevents a move.
  if (error != 0 && error != ENOENT && error != EBUSY) {
    report("moving " + name + ": " + errno_name(error));
  }
  const MutexLock lock(subject.mutex);
  if (tier.empty()) return;
  if (subject.tier == tier) return;
  moves_ += !subject.tier.empty();
  subject.before = subject.tier;
  subject.tier = tier;
}

void MoveStorm::run(std::chrono::seconds duration) {
  constexpr std::array<Actor, 11> kActors{&MoveStorm::write,
                                          &MoveStorm::write_and_close,
                                          &MoveStorm::append,
                                          &MoveStorm::write_direct,
                                          &MoveStorm::map_and_store,
                                          &MoveStorm::churn,
                                          &MoveStorm::read_and_compare,
                                          &MoveStorm::read_and_compare,
                                          &MoveStorm::stream_quietly,
                                          &MoveStorm::send,
                                          &MoveStorm::send};
  const auto end = std::chrono::steady_clock::now() + duration;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kActors.size(); ++i) {
    threads.emplace_back([&, i] {
      Random random(seed_ * 100 + i);
      while (!stop_ && std::chrono::steady_clock::now() < end) {
        try {
          (this->*kActors[i])(random);
        } catch (const std::exception& error) {
          report(error.what());
        }
        ++operations_;
        // Files must be unused at times, or none could move.
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
      }
    });
  }
}

std::string MoveStorm::compare_mount() const {
  std::string out;
  std::set<std::string> expected, found;
  for (const auto& subject : subjects_) {
    for (const std::string& name : subject->names) {
      expected.insert(name);
      if (!exists(path(name))) {
        out += name + " is lost\n";
      } else if (read_file(path(name)) != subject->content) {
        out += name + " has wrong bytes\n";
      } else if (lstat_of(path(name)).st_ino != subject->inode) {
        out += name + " has changed its inode number\n";
      }
    }
  }
  for (int d = 0; d < kDirectories; ++d) {
    const std::string directory = "d" + std::to_string(d);
    for (const std::string& name : names_in(path(directory))) found.insert(directory + "/" + name);
  }
  for (const std::string& name : found) {
    if (!expected.contains(name)) out += name + " should not exist\n";
  }
  return out;
}

std::string MoveStorm::compare_tiers(const std::vector<std::string>& directories) const {
  std::string out;
  std::map<std::string, const Subject*> expected;
  for (const auto& subject : subjects_) {
    for (const std::string& name : subject->names) expected[name] = subject.get();
  }
  std::map<std::string, int> count;
  for (const std::string& directory : directories) {
    for (int d = 0; d < kDirectories; ++d) {
      const std::string below = "d" + std::to_string(d);
      if (!exists(directory + "/" + below)) continue;
      for (const std::string& entry : names_in(directory + "/" + below)) {
        const std::string name = below + "/" + entry;
        ++count[name];
        const auto subject = expected.find(name);
        if (subject == expected.end()) {
          out += name + " should not be in " + directory + "\n";
        } else if (read_file(directory + "/" + name) != subject->second->content) {
          out += name + " has wrong bytes in " + directory + "\n";
        }
      }
    }
  }
  for (const auto& [name, subject] : expected) {
    if (count[name] != 1) out += name + " is on " + std::to_string(count[name]) + " tiers\n";
  }
  return out;
}

}  // namespace sluice::test
