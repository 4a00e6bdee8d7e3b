// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/fixtures.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <span>
#include <thread>

#include "tools/lab/bench/process.hpp"
#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {
namespace {

constexpr std::uint64_t kBlocksAWrite = 256;

std::string numbered(char prefix, unsigned number) {
  char text[16];
  std::snprintf(text, sizeof text, "%c%05u", prefix, number);
  return text;
}

}  // namespace

Sizes Sizes::quick() {
  Sizes sizes;
  sizes.file_blocks = 64 * 256;
  sizes.random_operations = 20'000;
  sizes.files = 2'000;
  sizes.small_files = 500;
  sizes.walk_directories = 10;
  sizes.list_directories = 2;
  sizes.least_seconds = 0.05;
  sizes.untar_source = "/usr/include/linux";
  return sizes;
}

Block Block::make(std::uint64_t index) {
  Block block;
  for (std::uint64_t i = 0; i < block.words.size(); ++i) block.words[i] = i * 0xD6E8FEB86659FD93;
  block.words[0] = stamp(index);
  return block;
}

std::uint64_t stamp_sum(std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) sum += Block::stamp(i);
  return sum;
}

std::uint64_t word_sum(std::uint64_t count) {
  std::uint64_t same_in_all = 0;
  const Block block = Block::make(0);
  for (std::size_t i = 1; i < block.words.size(); ++i) same_in_all += block.words[i];
  return count * same_in_all + stamp_sum(count);
}

void write_blocks(const std::string& path, std::uint64_t count) {
  UniqueFd fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  std::vector<Block> buffer(std::min(count, kBlocksAWrite), Block::make(0));
  for (std::uint64_t first = 0; first < count; first += buffer.size()) {
    const std::span blocks(buffer.data(), std::min<std::uint64_t>(buffer.size(), count - first));
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].words[0] = Block::stamp(first + i);
    write_all(fd, std::as_bytes(blocks), path);
  }
  close_file(std::move(fd), path);
}

std::vector<std::string> file_names(unsigned count) {
  std::vector<std::string> names;
  for (unsigned i = 0; i < count; ++i) names.push_back(numbered('f', i));
  return names;
}

void create_empty(const std::string& directory, const std::vector<std::string>& names) {
  const UniqueFd parent = open_directory(directory);
  for (const std::string& name : names) {
    UniqueFd fd(
        ::openat(parent.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd) throw_failure("create", directory + "/" + name);
    if (::close(fd.release()) < 0) throw_failure("close", directory + "/" + name);
  }
}

std::string Fixtures::fresh_large_file() const {
  const std::string file = path("large");
  if (::unlink(file.c_str()) < 0 && errno != ENOENT) throw_failure("unlink", file);
  write_blocks(file, sizes_.file_blocks);
  return file;
}

std::string Fixtures::flat_directory() {
  const std::string directory = path("flat");
  if (first_use(directory)) {
    make_directory(directory);
    create_empty(directory, file_names(sizes_.files));
  }
  return directory;
}

std::string Fixtures::small_files() {
  const std::string directory = path("small");
  if (first_use(directory)) {
    make_directory(directory);
    for (const std::string& name : file_names(sizes_.small_files)) {
      write_blocks(directory + "/" + name, 1);
    }
  }
  return directory;
}

std::string Fixtures::walk_tree() {
  const std::string root = path("walk");
  if (first_use(root)) {
    // Two levels, so that list_tree() can be a part: walk/list/d00000/f00000,
    // walk/rest/d00020/f00000.
    make_directory(root);
    make_directory(root + "/list");
    make_directory(root + "/rest");
    const auto names = file_names(sizes_.walk_files);
    for (unsigned i = 0; i < sizes_.walk_directories; ++i) {
      const char* part = i < sizes_.list_directories ? "/list/" : "/rest/";
      const std::string directory = root + part + numbered('d', i);
      make_directory(directory);
      create_empty(directory, names);
    }
  }
  return root;
}

std::string Fixtures::list_tree() { return walk_tree() + "/list"; }

std::string Fixtures::tarball() {
  const std::string file = shared_ + "/source.tar";
  if (::access(file.c_str(), F_OK) != 0) {
    run({"/bin/tar", "-C", sizes_.untar_source, "-cf", file + ".part", "."});
    if (::rename((file + ".part").c_str(), file.c_str()) < 0) throw_failure("rename", file);
  }
  return file;
}

void Fixtures::write_back() const {
  // The underlying filesystem last: writing back pages of a FUSE mount dirties pages below it.
  if (scope_ == SyncScope::Machine) {
    sync_machine();
    sync_machine();
  } else {
    sync_filesystem(place_.scratch);
    sync_filesystem(shared_);
  }
}

void Fixtures::forget_names() const {
  write_back();
  drop_names();
  // A FUSE daemon gets FORGET requests for the dropped inodes and only then closes its files on the
  // filesystem below. Wait for it, so that those inodes are dropped, too, and the work is not
  // timed.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  drop_names();
}

}  // namespace sluice::tools::lab::bench
