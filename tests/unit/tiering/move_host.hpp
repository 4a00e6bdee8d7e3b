// SPDX-License-Identifier: BSD-2-Clause
// FakeHost is a MoveHost without a mount: it moves real files of a real pool, and refuses or
// cancels moves when a test asks for it. Threads: every member may be called from any thread at
// once, but the callbacks must be set before the mover starts.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "tests/support/files.hpp"
#include "tiering/mover.hpp"

namespace sluice::test {

class FakeHost final : public MoveHost {
 public:
  FakeHost(Pool& pool, Store& store) : pool_(pool), store_(store) {}

  // begin_move() of `path` fails with `code` from now on; 0 ends that.
  void refuse(const std::string& path, int code) {
    const MutexLock lock(mutex_);
    refused_[path] = code;
  }
  // Called after a refusal, before the mover gets it.
  std::function<void()> on_refusal;
  // switch_files() fails for `path` with `code`.
  void refuse_copy(const std::string& path, int code) {
    const MutexLock lock(mutex_);
    refused_copies_[path] = code;
  }
  // Cancels every running move.
  std::atomic<bool> cancel{false};
  // Called by the mover's threads for every piece that they copied or verified.
  std::function<void(const std::string& path)> on_piece;

  // Called when switch_files() begins.
  std::function<void()> on_switch;

  // The paths whose moves began, in order.
  std::vector<std::string> begun() const {
    const MutexLock lock(mutex_);
    return begun_;
  }
  // The number of files of each switch_files() call.
  std::vector<std::size_t> batches() const {
    const MutexLock lock(mutex_);
    return batches_;
  }
  std::size_t most_at_once() const { return most_at_once_; }

  Result<std::unique_ptr<MovingFile>> begin_move(Move& move) override {
    int refusal = 0;
    {
      const MutexLock lock(mutex_);
      begun_.push_back(move.paths[0]);
      refusal = refused_[move.paths[0]];
    }
    if (refusal != 0) {
      if (on_refusal) on_refusal();
      return Error(refusal, "told to refuse");
    }
    const std::string path = pool_[move.from].path() + move.paths[0];
    UniqueFd source(::open(path.c_str(), O_RDONLY | O_NOATIME | O_CLOEXEC));
    if (!source) return Error::last("open source");
    return std::unique_ptr<MovingFile>(
        std::make_unique<FakeMovingFile>(*this, move, std::move(source)));
  }

  std::vector<Result<void>> switch_files(const std::vector<ReadyCopy>& copies) override {
    std::vector<Result<void>> outcomes;
    if (on_switch) on_switch();
    {
      const MutexLock lock(mutex_);
      batches_.push_back(copies.size());
    }
    for (const ReadyCopy& ready : copies) outcomes.push_back(switch_file(ready));
    return outcomes;
  }

 private:
  class FakeMovingFile final : public MovingFile {
   public:
    FakeMovingFile(FakeHost& host, const Move& begun, UniqueFd source)
        : move(begun), host_(host), source_(std::move(source)), identity_{move.id, 0} {
      const auto found = host_.pool_[move.from].identity_of(source_.get(), "");
      if (found) identity_ = *found;
      host_.most_at_once_ = std::max<std::size_t>(host_.most_at_once_, ++host_.open_);
    }
    ~FakeMovingFile() override { --host_.open_; }
    FakeMovingFile(const FakeMovingFile&) = delete;
    FakeMovingFile& operator=(const FakeMovingFile&) = delete;

    TierIndex tier() const override { return move.from; }
    int source() const override { return source_.get(); }
    const Identity& identity() const override { return identity_; }
    bool is_cancelled() const override {
      if (host_.on_piece) host_.on_piece(move.paths[0]);
      return host_.cancel;
    }

    const Move move;

   private:
    FakeHost& host_;
    const UniqueFd source_;
    Identity identity_;
  };

  Result<void> switch_file(const ReadyCopy& ready) {
    const Move& move = static_cast<const FakeMovingFile&>(*ready.file).move;
    {
      const MutexLock lock(mutex_);
      if (const int code = refused_copies_[move.paths[0]]; code != 0)
        return Error(code, "told to fail");
    }
    const Tier& from = pool_[move.from];
    const Tier& to = pool_[ready.to];
    std::vector<UniqueFd> directories;
    std::vector<NamePlaces> names;
    for (const std::string& path : move.paths) {
      const std::size_t slash = path.rfind('/');
      for (const Tier* tier : {&from, &to}) {
        const std::string directory = tier->path() + path.substr(0, slash);
        directories.emplace_back(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!directories.back()) return Error::last("open directory");
      }
      names.push_back({directories[directories.size() - 2].get(), directories.back().get(),
                       path.substr(slash + 1)});
    }
    return execute(store_, pool_, SLUICE_TRY(relocation_steps(*ready.copy, from, to, names)));
  }

  Pool& pool_;
  Store& store_;
  mutable Mutex mutex_;
  std::map<std::string, int> refused_ GUARDED_BY(mutex_), refused_copies_ GUARDED_BY(mutex_);
  std::vector<std::string> begun_ GUARDED_BY(mutex_);
  std::vector<std::size_t> batches_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> open_{0}, most_at_once_{0};  // statistics
};

}  // namespace sluice::test
