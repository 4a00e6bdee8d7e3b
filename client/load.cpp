// SPDX-License-Identifier: BSD-2-Clause
#include "client/load.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "client/sentence.hpp"

namespace sluice {
namespace {

// One read takes about a millisecond on the bus; the next ones are started in the meantime. Pinned
// memory on its way to a GPU may be as much as three of them, and others must fill more.
constexpr std::uint64_t kReadBytes = 64 << 20;
constexpr unsigned kInFlight = 8;

constexpr const char* kCancelled = "the load was cancelled";

// One request.
struct Read {
  sluice_file* file;
  std::vector<Segment> segments;
  std::uint64_t bytes = 0;
};

// Collects the reads of one file, in file order. Tensors that are adjacent both in the file and in
// the arena, as most are, become one segment.
class Cutter {
 public:
  Cutter(sluice_file* file, std::uint64_t offset) : file_(file), offset_(offset) {}

  void add(const struct sluice_tensor& tensor) {
    Segment left{offset_ + tensor.arena_offset, tensor.file_offset, tensor.bytes};
    while (left.length > 0) {
      if (reads_.empty() || is_full(reads_.back())) reads_.push_back({file_, {}, 0});
      Read& read = reads_.back();
      const std::uint64_t here = std::min(left.length, kReadBytes - read.bytes);
      if (!read.segments.empty() && goes_on(read.segments.back(), left)) {
        read.segments.back().length += here;
      } else {
        read.segments.push_back({left.memory_offset, left.file_offset, here});
      }
      read.bytes += here;
      left = {left.memory_offset + here, left.file_offset + here, left.length - here};
    }
  }

  std::vector<Read>& reads() { return reads_; }

 private:
  static bool is_full(const Read& read) {
    return read.bytes == kReadBytes || read.segments.size() == SLUICE_MAX_SEGMENTS;
  }
  static bool goes_on(const Segment& segment, const Segment& next) {
    return segment.memory_offset + segment.length == next.memory_offset &&
           segment.file_offset + segment.length == next.file_offset;
  }

  sluice_file* const file_;
  const std::uint64_t offset_;
  std::vector<Read> reads_;
};

// All reads, alternating between files.
std::vector<Read> reads_of(std::span<const struct sluice_tensor> tensors, std::uint64_t offset) {
  std::vector<Cutter> files;
  const sluice_file* last = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.file != last) files.emplace_back(tensor.file, offset);
    last = tensor.file;
    files.back().add(tensor);
  }
  std::vector<Read> reads;
  for (std::size_t i = 0;; ++i) {
    const std::size_t before = reads.size();
    for (auto& file : files) {
      if (i < file.reads().size()) reads.push_back(std::move(file.reads()[i]));
    }
    if (reads.size() == before) return reads;
  }
}

// A load in progress. Helpers that start after the end find no read left, and access nothing else.
class Load {
 public:
  Load(Library& library, Buffer& buffer, std::vector<Read> reads)
      : library_(library), buffer_(buffer), reads_(std::move(reads)) {}

  std::size_t count() const { return reads_.size(); }

  // Executes one read. False if none is left or the load has failed or was stopped.
  bool step() noexcept {
    const Read* read = nullptr;
    {
      const MutexLock lock(mutex_);
      if (error_ || next_ == reads_.size()) return false;
      read = &reads_[next_++];
      ++under_way_;
    }
    const auto outcome = execute_read(*read);
    const MutexLock lock(mutex_);
    if (!outcome && !error_) {
      error_ = outcome.error();
      failed_ = read;
    }
    if (outcome) {
      sum_.transfer.add(outcome->transfer);
      sum_.in_process = outcome->in_process;
    }
    if (--under_way_ == 0) idle_.notify_all();
    return true;
  }

  void stop() {
    const MutexLock lock(mutex_);
    if (!error_) error_ = Error{ECANCELED, "load a model"};
  }

  std::uint64_t done() {
    const MutexLock lock(mutex_);
    return sum_.transfer.bytes;
  }

  // Waits for reads in other threads.
  Result<Outcome> finish() {
    const MutexLock lock(mutex_);
    while (under_way_ > 0) idle_.wait(mutex_);
    if (!error_) return sum_;
    const std::string where = failed_ != nullptr ? failed_->file->file->path() : "";
    if (error_->code == EUCLEAN) {
      return Error{EUCLEAN, "load a model", where + ": the file became shorter while it was read"};
    }
    if (error_->code == ECANCELED) return Error{ECANCELED, "load a model", kCancelled};
    return explained("load", where, *error_);
  }

 private:
  Result<Outcome> execute_read(const Read& read) const noexcept {
    try {
      const Request request{*read.file->file, buffer_, Direction::Read, read.segments};
      auto outcome = execute(library_, request);
      if (outcome && outcome->transfer.bytes != read.bytes) return Error{EUCLEAN, "read"};
      return outcome;
    } catch (const std::bad_alloc&) {
      return Error{ENOMEM, "allocate"};
    } catch (...) {
      return Error{EIO, "an unexpected exception"};
    }
  }

  Library& library_;
  Buffer& buffer_;
  const std::vector<Read> reads_;
  Mutex mutex_;
  CondVar idle_;
  std::size_t next_ GUARDED_BY(mutex_) = 0;
  unsigned under_way_ GUARDED_BY(mutex_) = 0;
  Outcome sum_ GUARDED_BY(mutex_);
  std::optional<Error> error_ GUARDED_BY(mutex_);
  const Read* failed_ GUARDED_BY(mutex_) = nullptr;
};

class Helper final : public IoPool::Job {
 public:
  explicit Helper(std::shared_ptr<Load> load) : load_(std::move(load)) {}

  void run() noexcept override {
    const std::unique_ptr<Helper> self(this);
    while (load_->step()) {
    }
  }

 private:
  const std::shared_ptr<Load> load_;
};

}  // namespace

Result<Outcome> load_tensors(Library& library, std::span<const struct sluice_tensor> tensors,
                             Buffer& buffer, std::uint64_t offset,
                             const std::function<bool(std::uint64_t)>& progress) {
  const auto load = std::make_shared<Load>(library, buffer, reads_of(tensors, offset));
  for (unsigned i = 1; i < std::min<std::size_t>(kInFlight, load->count()); ++i) {
    // From here on nothing may throw, because helpers may be using the caller's memory. Without
    // memory or threads for helpers, this thread does all reads.
    auto* const helper = new (std::nothrow) Helper(load);
    if (helper == nullptr) break;
    if (!library.pool().expect()) {
      delete helper;
      break;
    }
    library.pool().submit(*helper);
  }
  std::uint64_t told = 0;
  const auto tell = [&](std::uint64_t done) {
    if (!progress || done == told) return true;
    told = done;
    return progress(done);
  };
  while (load->step()) {
    if (!tell(load->done())) load->stop();
  }
  auto outcome = load->finish();
  if (outcome && !tell(outcome->transfer.bytes))
    return Error{ECANCELED, "load a model", kCancelled};
  return outcome;
}

}  // namespace sluice
