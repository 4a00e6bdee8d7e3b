// SPDX-License-Identifier: BSD-2-Clause
// The parts of `sluice-lab gpu-bench`: a test file of known content, the memory it is read into,
// which can be checked, and the ways to read it, ours and those of other libraries.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/cufile_api.hpp"
#include "gpu/engine.hpp"
#include "gpu/pinned_memory.hpp"

namespace sluice::tools::lab::gpu_bench {

inline constexpr std::uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

// Word `index` of the test file: splitmix64, so that no two words are the same.
std::uint64_t pattern_word(std::uint64_t index);
// The number of `words` that differ from the file's content, starting with word `first`.
std::uint64_t count_wrong(const std::uint64_t* words, std::uint64_t count, std::uint64_t first);

// The test file, created if it is missing: in the directory `path`, or at `path` itself. EEXIST if
// another file is there.
struct TestFile {
  std::string path;
  std::string on_tier;  // where it really is, if that can be opened; else `path`
  std::string mount;    // of the Sluice that it is on; empty: none
  pid_t daemon = 0;     // of that mount
  std::uint64_t size = 0;
};
Result<TestFile> prepare_file(const std::string& path, std::uint64_t size);

// Drops the file from the page cache, as far as this process may. Returns the part that is still
// cached: pages mapped by the `mapped` route stay.
double drop_from_cache(const TestFile& file);

// Memory to read into: GPU memory from cuMemAlloc, or host memory in a memfd. Threads: different
// offsets may be used at once.
class Target {
 public:
  // A null `device` stands for host memory.
  static Result<std::unique_ptr<Target>> create(Device* device, std::uint64_t bytes);
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  Device* device() const { return device_; }
  std::uint64_t size() const { return size_; }
  CUdeviceptr address() const { return address_; }
  std::byte* host() const { return host_; }

  // Overwrites the memory, so that a read that does nothing is detected.
  Result<void> clear(std::uint64_t offset, std::uint64_t length);
  // The number of words that differ from the file at `file_offset`. A GPU kernel counts them; if it
  // can't be loaded, they are copied back. REQUIRES: all arguments are multiples of 8.
  Result<std::uint64_t> wrong_words(std::uint64_t offset, std::uint64_t length,
                                    std::uint64_t file_offset);
  bool checks_on_gpu() const { return kernel_ != nullptr; }

  // Copies from host memory to here, and waits.
  Result<void> copy_in(std::uint64_t offset, const std::byte* from, std::uint64_t length);

  // For SLUICE_IOC_BUFFER_REGISTER.
  Result<sluice_buffer_register> exported() const;
  // For the engine. REQUIRES: this outlives it.
  std::unique_ptr<Memory> memory() const;

 private:
  Target(Device* device, std::uint64_t size) : device_(device), size_(size) {}
  void load_kernel();

  Device* const device_;
  const std::uint64_t size_;
  CUdeviceptr address_ = 0;
  std::byte* host_ = nullptr;
  UniqueFd memfd_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUdeviceptr count_ = 0;  // the kernel's counter
};

// A way from the file to a target. Threads: read() may be called from several at once.
class Way {
 public:
  Way(std::string name, bool is_checked) : name_(std::move(name)), is_checked_(is_checked) {}
  virtual ~Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  // The name, such as "daemon staged".
  const std::string& name() const { return name_; }
  // False: it transfers bytes, but not from the file to the target.
  bool is_checked() const { return is_checked_; }
  // Reads the whole range, or fails.
  virtual Result<void> read(std::uint64_t file_offset, std::uint64_t length,
                            std::uint64_t offset) = 0;
  // Unmaps the pages of the file that it has mapped: those can't be dropped.
  virtual void rest() {}
  // The route of the last read, such as "mapped: ..."; empty if there is none.
  virtual std::string route() const { return {}; }

 private:
  const std::string name_;
  const bool is_checked_;
};
using WayPtr = std::unique_ptr<Way>;

// Shared by all ways.
struct Bench {
  TestFile file;
  std::unique_ptr<Engine> engine;  // this process's own
  Device* device = nullptr;        // null: host memory
  std::unique_ptr<CuFile> cufile;  // null: it can't be used, and why_no_cufile says why
  std::string why_no_cufile;
  std::unique_ptr<Target> target;
  std::unique_ptr<PinnedMemory> pinned;  // null without a GPU
  std::vector<std::byte> plain;          // used instead then
  unsigned threads = 8;                  // for ways with several threads

  // 64 MiB of host memory, pinned if there is a GPU, aligned for O_DIRECT.
  std::byte* staging() const;
};
inline constexpr std::uint64_t kStaging = 64 << 20;

// Ways of other libraries. Each fails if it is not possible here.
Result<WayPtr> copy_way(const Bench& bench,
                        std::uint64_t piece);  // from pinned memory: the ceiling
Result<WayPtr> mmap_way(const Bench& bench);   // mmap and a plain copy
// O_DIRECT preads to pinned memory, by several threads.
Result<WayPtr> disk_way(const Bench& bench, std::uint64_t piece);
// O_DIRECT in the flags is for uncached reads.
Result<WayPtr> cufile_way(const Bench& bench, unsigned threads, std::uint64_t piece,
                          int open_flags = 0);
// Our ways: the daemon's ioctls, and the engine in this process.
Result<WayPtr> daemon_way(const Bench& bench, Route route);
Result<WayPtr> engine_way(const Bench& bench, Route route);

// Runs `work(thread)` on `count` threads. Returns the first error.
Result<void> in_parallel(unsigned count, const std::function<Result<void>(unsigned)>& work);

}  // namespace sluice::tools::lab::gpu_bench
