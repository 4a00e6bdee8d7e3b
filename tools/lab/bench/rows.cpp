// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/rows.hpp"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <set>
#include <sstream>
#include <vector>

#include "base/small_file.hpp"
#include "tools/lab/bench/process.hpp"
#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {
namespace {

using Answer = std::optional<Measured>;

constexpr std::size_t kBlocksARead = 256;  // 1 MiB

// A fixed sequence of block numbers: every place gets the same one (splitmix64).
class RandomBlocks {
 public:
  RandomBlocks(std::uint64_t seed, std::uint64_t count) : state_(seed), count_(count) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % count_;
  }

 private:
  std::uint64_t state_;
  std::uint64_t count_;
};

off_t offset_of(std::uint64_t block) { return static_cast<off_t>(block * sizeof(Block)); }

// Reads the file once, 1 MiB at a time, and returns the sum of its stamps.
std::uint64_t read_through(const UniqueFd& fd, std::vector<Block>& buffer,
                           const std::string& path) {
  std::uint64_t sum = 0;
  for (off_t offset = 0;;) {
    const ssize_t count = ::pread(fd.get(), buffer.data(), buffer.size() * sizeof(Block), offset);
    if (count < 0) throw_failure("pread", path);
    if (count == 0) return sum;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count) / sizeof(Block); ++i) {
      sum += buffer[i].words[0];
    }
    offset += count;
  }
}

void warm(const std::string& path) {
  std::vector<Block> buffer(kBlocksARead);
  read_through(open_file(path, O_RDONLY), buffer, path);
}

void remove_files(const std::string& directory, const std::vector<std::string>& names) {
  const UniqueFd parent = open_directory(directory);
  for (const std::string& name : names) {
    if (::unlinkat(parent.get(), name.c_str(), 0) < 0)
      throw_failure("unlink", directory + "/" + name);
  }
}

void stat_files(const UniqueFd& parent, const std::vector<std::string>& names,
                const std::string& directory) {
  for (const std::string& name : names) {
    struct stat status;
    if (::fstatat(parent.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) < 0) {
      throw_failure("stat", directory + "/" + name);
    }
    expect(S_ISREG(status.st_mode), "not a regular file", directory);
  }
}

// Lists `directory` to its end and returns how many names it holds.
unsigned count_entries(const std::string& directory, std::vector<std::byte>& buffer) {
  const UniqueFd fd = open_directory(directory);
  unsigned entries = 0;
  for (;;) {
    const long count = ::syscall(SYS_getdents64, fd.get(), buffer.data(), buffer.size());
    if (count < 0) throw_failure("getdents64", directory);
    if (count == 0) return entries - 2;  // . and ..
    for (long at = 0; at < count; ++entries) {
      at += reinterpret_cast<const dirent64*>(buffer.data() + at)->d_reclen;
    }
  }
}

// Like find(1), calls lstat for every name. Returns the number of regular files below.
unsigned walk(int parent, const char* name, const std::string& path) {
  UniqueFd fd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) throw_failure("open", path);
  const int directory_fd = fd.get();
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), ::closedir);
  if (!directory) throw_failure("opendir", path);
  fd.release();
  unsigned files = 0;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (!entry && errno != 0) throw_failure("readdir", path);
    if (!entry) return files;
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    struct stat status;
    if (::fstatat(directory_fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
      throw_failure("stat", path + "/" + entry->d_name);
    }
    if (S_ISREG(status.st_mode)) ++files;
    if (S_ISDIR(status.st_mode)) {
      files += walk(directory_fd, entry->d_name, path + "/" + entry->d_name);
    }
  }
}

Answer read_sequentially(const Sample& sample) {
  const std::string path = sample.fixtures.fresh_large_file();
  sample.fixtures.write_back();
  warm(path);
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::vector<Block> buffer(kBlocksARead);
  std::uint64_t sum = 0;
  Stopwatch watch;
  watch.start();
  for (unsigned pass = 0; pass < sample.passes; ++pass) sum += read_through(fd, buffer, path);
  watch.stop();
  const std::uint64_t blocks = sample.sizes.file_blocks;
  expect(sum == sample.passes * stamp_sum(blocks), "read wrong data", path);
  return Measured{double(sample.passes) * double(blocks) * sizeof(Block), watch.seconds()};
}

Answer write_sequentially(const Sample& sample) {
  const std::string path = sample.fixtures.path("written");
  const std::uint64_t blocks = sample.sizes.file_blocks;
  Stopwatch watch;
  for (unsigned pass = 0; pass < sample.passes; ++pass) {
    sample.fixtures.write_back();
    watch.start();
    write_blocks(path, blocks);
    watch.stop();
    std::vector<Block> buffer(kBlocksARead);
    const UniqueFd fd = open_file(path, O_RDONLY);
    expect(read_through(fd, buffer, path) == stamp_sum(blocks), "wrote wrong data", path);
    if (::unlink(path.c_str()) < 0) throw_failure("unlink", path);
  }
  return Measured{double(sample.passes) * double(blocks) * sizeof(Block), watch.seconds()};
}

Answer read_randomly(const Sample& sample) {
  const std::string path = sample.fixtures.fresh_large_file();
  sample.fixtures.write_back();
  warm(path);
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::vector<Block> buffer(1);
  RandomBlocks random(1, sample.sizes.file_blocks);
  const std::uint64_t operations = std::uint64_t{sample.passes} * sample.sizes.random_operations;
  std::uint64_t wrong = 0;
  Stopwatch watch;
  watch.start();
  for (std::uint64_t i = 0; i < operations; ++i) {
    const std::uint64_t block = random.next();
    read_at(fd, std::as_writable_bytes(std::span(buffer)), offset_of(block), path);
    wrong += buffer[0].words[0] != Block::stamp(block);
  }
  watch.stop();
  expect(wrong == 0, "read wrong data", path);
  return Measured{double(operations), watch.seconds()};
}

Answer write_randomly(const Sample& sample) {
  const std::string path = sample.fixtures.fresh_large_file();
  const std::uint64_t operations = sample.sizes.random_operations;
  const UniqueFd fd = open_file(path, O_RDWR);
  std::vector<Block> buffer(1, Block::make(0));
  Stopwatch watch;
  for (unsigned pass = 0; pass < sample.passes; ++pass) {
    sample.fixtures.write_back();  // in each pass, or the kernel would throttle the writer
    warm(path);
    std::vector<std::uint64_t> written(operations);
    RandomBlocks random(sample.round * 1000 + pass, sample.sizes.file_blocks);
    watch.start();
    for (std::uint64_t i = 0; i < operations; ++i) {
      written[i] = random.next();
      buffer[0].words[0] = Block::stamp(written[i]);
      buffer[0].words[1] = i;
      write_at(fd, std::as_bytes(std::span(buffer)), offset_of(written[i]), path);
    }
    watch.stop();
    // The last write to a block determines its content, so the writes are checked from the end.
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = operations; i > operations - std::min<std::uint64_t>(operations, 1000);
         --i) {
      if (!seen.insert(written[i - 1]).second) continue;
      read_at(fd, std::as_writable_bytes(std::span(buffer)), offset_of(written[i - 1]), path);
      expect(buffer[0].words[1] == i - 1, "wrote wrong data", path);
    }
  }
  return Measured{double(sample.passes) * double(operations), watch.seconds()};
}

Answer read_mapped(const Sample& sample) {
  const std::string path = sample.fixtures.fresh_large_file();
  sample.fixtures.write_back();
  warm(path);
  const UniqueFd fd = open_file(path, O_RDONLY);
  const std::uint64_t length = sample.sizes.file_blocks * sizeof(Block);
  std::uint64_t sum = 0;
  Stopwatch watch;
  watch.start();
  for (unsigned pass = 0; pass < sample.passes; ++pass) {
    void* mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) throw_failure("mmap", path);
    const auto* words = static_cast<const std::uint64_t*>(mapped);
    for (std::uint64_t i = 0; i < length / sizeof *words; ++i) sum += words[i];
    if (::munmap(mapped, length) < 0) throw_failure("munmap", path);
  }
  watch.stop();
  expect(sum == sample.passes * word_sum(sample.sizes.file_blocks), "mapped wrong data", path);
  return Measured{double(sample.passes) * double(length), watch.seconds()};
}

Answer stat_known(const Sample& sample) {
  const std::string directory = sample.fixtures.flat_directory();
  const auto names = file_names(sample.sizes.files);
  sample.fixtures.write_back();
  const UniqueFd parent = open_directory(directory);
  stat_files(parent, names, directory);
  Stopwatch watch;
  watch.start();
  for (unsigned pass = 0; pass < sample.passes; ++pass) stat_files(parent, names, directory);
  watch.stop();
  return Measured{double(sample.passes) * double(names.size()), watch.seconds()};
}

Answer stat_cold(const Sample& sample) {
  const std::string directory = sample.fixtures.flat_directory();
  const auto names = file_names(sample.sizes.files);
  Stopwatch watch;
  for (unsigned pass = 0; pass < sample.passes; ++pass) {
    sample.fixtures.forget_names();
    const UniqueFd parent = open_directory(directory);
    watch.start();
    stat_files(parent, names, directory);
    watch.stop();
  }
  return Measured{double(sample.passes) * double(names.size()), watch.seconds()};
}

enum class Timed { Create, Unlink };

Answer create_and_unlink(const Sample& sample, Timed timed) {
  const std::string directory = sample.fixtures.path("created");
  const auto names = file_names(sample.sizes.files);
  Stopwatch create;
  Stopwatch unlink;
  for (unsigned pass = 0; pass < sample.passes; ++pass) {
    make_directory(directory);
    sample.fixtures.write_back();
    create.start();
    create_empty(directory, names);
    create.stop();
    sample.fixtures.write_back();
    unlink.start();
    remove_files(directory, names);
    unlink.stop();
    if (::rmdir(directory.c_str()) < 0) throw_failure("rmdir", directory);
  }
  const Stopwatch& watch = timed == Timed::Create ? create : unlink;
  return Measured{double(sample.passes) * double(names.size()), watch.seconds()};
}

Answer create_files(const Sample& sample) { return create_and_unlink(sample, Timed::Create); }

Answer unlink_files(const Sample& sample) { return create_and_unlink(sample, Timed::Unlink); }

Answer list_cold(const Sample& sample) {
  const std::string tree = sample.fixtures.list_tree();
  Stopwatch watch;
  for (unsigned pass = 0; pass < sample.passes; ++pass) {
    sample.fixtures.forget_names();
    watch.start();
    run({"/bin/ls", "-lR", tree});
    watch.stop();
  }
  return Measured{double(sample.passes), watch.seconds()};
}

Answer read_directory(const Sample& sample) {
  const std::string directory = sample.fixtures.flat_directory();
  std::vector<std::byte> buffer(32 * 1024);  // as glibc's readdir
  sample.fixtures.write_back();
  unsigned entries = count_entries(directory, buffer);
  expect(entries == sample.sizes.files, "listed a wrong number of names", directory);
  entries = 0;
  Stopwatch watch;
  watch.start();
  for (unsigned pass = 0; pass < sample.passes; ++pass) entries += count_entries(directory, buffer);
  watch.stop();
  expect(entries == sample.passes * sample.sizes.files, "listed a wrong number of names",
         directory);
  return Measured{double(entries), watch.seconds()};
}

Answer read_small_files(const Sample& sample) {
  const std::string directory = sample.fixtures.small_files();
  const auto names = file_names(sample.sizes.small_files);
  const UniqueFd parent = open_directory(directory);
  std::vector<Block> buffer(1);
  const auto read_each = [&] {
    for (const std::string& name : names) {
      buffer[0].words[0] = 0;
      UniqueFd fd = open_at(parent, name, O_RDONLY);
      read_at(fd, std::as_writable_bytes(std::span(buffer)), 0, directory);
      close_file(std::move(fd), directory);
      expect(buffer[0].words[0] == Block::stamp(0), "read wrong data", directory);
    }
  };
  sample.fixtures.write_back();
  read_each();
  Stopwatch watch;
  watch.start();
  for (unsigned pass = 0; pass < sample.passes; ++pass) read_each();
  watch.stop();
  return Measured{double(sample.passes) * double(names.size()), watch.seconds()};
}

std::string untar_target(const Sample& sample) {
  return sample.fixtures.path("untar" + std::to_string(sample.round));
}

Answer untar(const Sample& sample) {
  const std::string tarball = sample.fixtures.tarball();
  const std::string target = untar_target(sample);
  make_directory(target);
  sample.fixtures.write_back();
  warm(tarball);
  Stopwatch watch;
  watch.start();
  run({"/bin/tar", "-C", target, "-xf", tarball});
  watch.stop();
  return Measured{1, watch.seconds()};
}

Answer remove_tree(const Sample& sample) {
  const std::string target = untar_target(sample);
  if (::access(target.c_str(), F_OK) != 0) untar(sample);  // otherwise left by the untar row
  sample.fixtures.write_back();
  // Read it into the cache, because it may have been made long ago.
  walk(AT_FDCWD, target.c_str(), target);
  Stopwatch watch;
  watch.start();
  run({"/bin/rm", "-rf", target});
  watch.stop();
  expect(::access(target.c_str(), F_OK) != 0, "still there after rm -rf", target);
  return Measured{1, watch.seconds()};
}

Answer walk_cold(const Sample& sample) {
  const std::string tree = sample.fixtures.walk_tree();
  sample.fixtures.forget_names();
  Stopwatch watch;
  watch.start();
  const unsigned files = walk(AT_FDCWD, tree.c_str(), tree);
  watch.stop();
  expect(files == sample.sizes.walk_directories * sample.sizes.walk_files,
         "the walk saw a wrong number of files", tree);
  return Measured{double(files), watch.seconds()};
}

Answer daemon_memory(const Sample& sample) {
  if (!sample.place.daemon) return std::nullopt;
  const std::string tree = sample.fixtures.walk_tree();
  walk(AT_FDCWD, tree.c_str(), tree);
  const std::string path = "/proc/" + std::to_string(*sample.place.daemon) + "/status";
  std::istringstream status(text_of_file(path));
  for (std::string word; status >> word;) {
    double kibibytes = 0;
    if (word == "VmRSS:" && status >> kibibytes) return Measured{kibibytes * 1024, 0};
  }
  throw Failure(path + ": no VmRSS; is the daemon of " + sample.place.name + " still running?");
}

constexpr Goal at_least(double ratio) { return {Goal::Kind::RatioAtLeast, ratio}; }

constexpr Goal at_most(double ratio) { return {Goal::Kind::RatioAtMost, ratio}; }

using enum Unit;
using enum Row::Repeat;
using enum Row::Needs;

constexpr Goal kNoGoal{};
constexpr Goal kMemoryGoal{Goal::Kind::ValueAtMost, 60};

constexpr Row kRows[] = {
    {"seq-read", "sequential read 1 MiB, cached", GigabytesPerSecond, at_least(0.97),
     read_sequentially},
    {"seq-write", "sequential write 1 MiB", GigabytesPerSecond, at_least(0.90), write_sequentially},
    {"rand-read", "random read 4 KiB, cached", ThousandsPerSecond, at_least(0.95), read_randomly},
    {"rand-write", "random write 4 KiB, buffered", ThousandsPerSecond, at_least(0.95),
     write_randomly},
    {"mmap-read", "mmap read, cached", GigabytesPerSecond, at_least(0.95), read_mapped},
    {"stat-known", "stat, known files", ThousandsPerSecond, at_least(0.95), stat_known},
    {"create", "create", ThousandsPerSecond, at_least(0.18), create_files},
    {"unlink", "unlink", ThousandsPerSecond, at_least(0.28), unlink_files},
    {"stat-cold", "stat, cold", ThousandsPerSecond, at_least(0.08), stat_cold, UntilLongEnough,
     DropCaches},
    {"ls-cold", "ls -lR, cold", Seconds, at_most(3.5), list_cold, UntilLongEnough, DropCaches},
    {"readdir", "readdir, no stat", ThousandsPerSecond, at_least(0.40), read_directory},
    {"small-files", "small files: open, read 4 KiB, close", ThousandsPerSecond, at_least(0.20),
     read_small_files},
    {"untar", "untar /usr/include", Seconds, at_most(6.5), untar, Once},
    {"rm", "rm -rf of it", Seconds, at_most(2.0), remove_tree, Once},
    {"walk", "walk of 100,000 files, cold", ThousandsPerSecond, kNoGoal, walk_cold, Once,
     DropCaches},
    {"memory", "daemon memory after the walk", Megabytes, kMemoryGoal, daemon_memory, Once},
};

}  // namespace

std::span<const Row> all_rows() { return kRows; }

const Row* find_row(const std::string& name) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows),
                                [&](const Row& r) { return r.name == name; });
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace sluice::tools::lab::bench
