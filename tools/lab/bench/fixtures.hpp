// SPDX-License-Identifier: BSD-2-Clause
// The files and trees that are measured. They are created once in each place, outside of timed
// parts, and are the same everywhere. Threads: caller locks.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::tools::lab::bench {

// A directory under measurement.
struct Place {
  std::string name;
  std::string directory;        // as given; only `scratch` below it is touched
  std::string scratch;          // ours
  std::optional<pid_t> daemon;  // who serves it, where known
  std::string command;          // what mounted it, where we did
};

struct Sizes {
  std::uint64_t file_blocks = 512 * 256;  // of the large files; a block is 4 KiB
  unsigned random_operations = 100'000;   // a pass
  unsigned files = 10'000;                // in the flat directory; also created and unlinked a pass
  unsigned small_files = 2'000;
  unsigned walk_directories = 100;
  unsigned walk_files = 1'000;  // in each
  unsigned list_directories = 20;
  double least_seconds =
      0.4;  // a sample on the reference takes at least this long, where work can be repeated
  std::string untar_source = "/usr/include";

  static Sizes quick();
};

// 4 KiB that contain their own position, so that checking a read costs almost nothing.
struct alignas(4096) Block {
  std::array<std::uint64_t, 512> words;

  // A block's words[0] is its stamp; words[1] is free for a writer's own mark; the rest is the same
  // in all blocks.
  static std::uint64_t stamp(std::uint64_t index) { return (index + 1) * 0x9E3779B97F4A7C15; }
  static Block make(std::uint64_t index);
};
static_assert(sizeof(Block) == 4096);

// The sum of the stamps, or of all words, of blocks 0 .. count-1 (modulo 2^64).
std::uint64_t stamp_sum(std::uint64_t count);
std::uint64_t word_sum(std::uint64_t count);

// Creates `path` from the blocks 0 .. count-1. Fails with EEXIST.
void write_blocks(const std::string& path, std::uint64_t count);

// "f00000", "f00001", ...
std::vector<std::string> file_names(unsigned count);

// Creates each name in `directory` as an empty file. Fails with EEXIST.
void create_empty(const std::string& directory, const std::vector<std::string>& names);

// What Fixtures::write_back() writes back: all filesystems of the machine, or only the filesystem
// of the reference if all places keep their files there. That is disturbed less by other processes.
enum class SyncScope { Machine, ReferenceFilesystem };

// Each function named after a fixture returns its path and creates it on the first call.
class Fixtures {
 public:
  // `shared` is a directory on the reference filesystem for what all places read.
  Fixtures(const Place& place, const Sizes& sizes, std::string shared, SyncScope scope)
      : place_(place), sizes_(sizes), shared_(std::move(shared)), scope_(scope) {}

  std::string flat_directory();  // Sizes::files empty files
  std::string small_files();     // Sizes::small_files files of one block
  std::string walk_tree();       // walk_directories x walk_files empty files
  std::string list_tree();       // a part of walk_tree()
  std::string tarball();         // of Sizes::untar_source; one for all places

  // A large file of blocks, written again for each call: the placement of its pages and blocks is
  // partly chance, and a file kept for the whole run would bias every sample.
  std::string fresh_large_file() const;

  // A path for `name` in the scratch directory of the place. Creates nothing.
  std::string path(const std::string& name) const { return place_.scratch + "/" + name; }

  // Writes back dirty pages, so that one measurement does not pay for the one before.
  void write_back() const;

  // Makes the kernel, and so a FUSE daemon, forget names and inodes.
  void forget_names() const;

 private:
  bool first_use(const std::string& path) { return made_.insert(path).second; }

  const Place& place_;
  const Sizes& sizes_;
  std::string shared_;
  SyncScope scope_;
  std::set<std::string> made_;
};

}  // namespace sluice::tools::lab::bench
