// SPDX-License-Identifier: BSD-2-Clause
// FakeHost is a MoveHost without a mount: it holds real files of a real pool, and refuses or
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
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "tests/support/files.hpp"
#include "tiering/move/move_host.hpp"
#include "tiering/move/switcher.hpp"

namespace sluice::test {

class FakeHost final : public MoveHost {
 public:
  FakeHost(Pool& pool, Store& store) : pool_(pool), switcher_(pool, store) {}

  Switcher& switcher() { return switcher_; }

  // hold() of `path` fails with `code` from now on; 0 ends that.
  void refuse(const std::string& path, int code) {
    const MutexLock lock(mutex_);
    refused_[path] = code;
  }
  // Called after a refusal, before the mover gets it.
  std::function<void()> on_refusal;
  // The switch fails for `path` with `code`.
  void refuse_copy(const std::string& path, int code) {
    const MutexLock lock(mutex_);
    refused_copies_[path] = code;
  }
  // Cancels every running move.
  std::atomic<bool> cancel{false};
  // Called by the mover's threads for every piece that they copied or verified.
  std::function<void(const std::string& path)> on_piece;

  // Called when a switch begins.
  std::function<void()> on_switch;

  // The paths whose moves began, in order.
  std::vector<std::string> begun() const {
    const MutexLock lock(mutex_);
    return begun_;
  }
  // The number of files of each switch.
  std::vector<std::size_t> batches() const {
    const MutexLock lock(mutex_);
    return batches_;
  }
  std::size_t most_at_once() const { return most_at_once_; }

  Result<std::unique_ptr<HeldFile>> hold(Move& move) override {
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
    return std::unique_ptr<HeldFile>(
        std::make_unique<FakeHeldFile>(*this, move, std::make_shared<UniqueFd>(std::move(source))));
  }

 private:
  class FakeHeldFile final : public HeldFile {
   public:
    FakeHeldFile(FakeHost& host, const Move& begun, SharedFd source)
        : host_(host), move_of_(begun) {
      tier_ = begun.from;
      identity_ = {begun.id, 0};
      const auto found = host_.pool_[begun.from].identity_of(source->get(), "");
      if (found) identity_ = *found;
      move_ = std::make_shared<FileMove>(std::move(source), false, begun.to);
      host_.most_at_once_ = std::max<std::size_t>(host_.most_at_once_, ++host_.open_);
    }
    ~FakeHeldFile() override { --host_.open_; }
    FakeHeldFile(const FakeHeldFile&) = delete;
    FakeHeldFile& operator=(const FakeHeldFile&) = delete;

    bool is_cancelled() const override {
      if (host_.on_piece) host_.on_piece(move_of_.paths[0]);
      return host_.cancel;
    }
    Result<Names> open_names() override {
      host_.note_switched();
      Names names;
      for (const std::string& path : move_of_.paths) {
        const std::size_t slash = path.rfind('/');
        for (const TierIndex tier : {move_of_.from, move_of_.to}) {
          const std::string directory = host_.pool_[tier].path() + path.substr(0, slash);
          directories_.emplace_back(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
          if (!directories_.back()) return Error::last("open directory");
        }
        names.places.push_back({directories_[directories_.size() - 2].get(),
                                directories_.back().get(), path.substr(slash + 1)});
      }
      return names;
    }
    Result<void> begin_switch(const HiddenCopy&) override {
      const MutexLock lock(host_.mutex_);
      host_.switching_.erase(std::this_thread::get_id());
      if (const int code = host_.refused_copies_[move_of_.paths[0]]; code != 0)
        return Error(code, "told to fail");
      return {};
    }
    Result<void> change_hidden(std::size_t, unsigned,
                               const std::function<Result<void>()>& act) override {
      return act();
    }
    KeptTimes place_changed(const HiddenCopy&) override { return {}; }
    std::unique_ptr<SwitchedFile> keep_both(Holder) override {
      return std::make_unique<FakeDoubled>();
    }
    void release(Holder) override {}

   private:
    class FakeDoubled final : public SwitchedFile {
     public:
      Result<void> change_hidden(std::size_t, unsigned,
                                 const std::function<Result<void>()>& act) override {
        return act();
      }
      void release(Holder) override {}
    };

    FakeHost& host_;
    const Move move_of_;
    std::vector<UniqueFd> directories_;
  };

  // A thread switches its whole batch before it begins another one.
  void note_switched() {
    const bool begins = [&] {
      const MutexLock lock(mutex_);
      const auto [at, is_new] = switching_.try_emplace(std::this_thread::get_id(), batches_.size());
      if (is_new) batches_.push_back(0);
      ++batches_[at->second];
      return is_new;
    }();
    if (begins && on_switch) on_switch();
  }

  Pool& pool_;
  Switcher switcher_;
  mutable Mutex mutex_;
  std::map<std::string, int> refused_ GUARDED_BY(mutex_), refused_copies_ GUARDED_BY(mutex_);
  std::vector<std::string> begun_ GUARDED_BY(mutex_);
  std::vector<std::size_t> batches_ GUARDED_BY(mutex_);
  // The batch of each thread that opens the names of files.
  std::map<std::thread::id, std::size_t> switching_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> open_{0}, most_at_once_{0};  // statistics
};

}  // namespace sluice::test
