// SPDX-License-Identifier: BSD-2-Clause
// MemoryStore is a Store in memory that can fail on command, for tests of classes that use a Store.
// It passes the same tests as RocksStore.
//
// For an nth-failure loop: fail_call(1), run, fail_call(2), run ... until has_failed() is false
// after a run; once with Failure::Once, once with Failure::ForGood. Threads: every member may be
// called from any thread at once.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "metadata/decay.hpp"
#include "metadata/store.hpp"

namespace sluice::test {

class MemoryStore final : public Store {
 public:
  enum class Failure { Once, ForGood };

  explicit MemoryStore(std::chrono::seconds half_life = {}) : half_life_(half_life) {}

  // The nth call of a Store member from now on (1: the next) fails with `code` and changes nothing;
  // with ForGood, every later call fails, too. 0 ends this.
  void fail_call(std::uint64_t nth, int code = EIO, Failure failure = Failure::Once) {
    MutexLock lock(mutex_);
    calls_ = 0;
    fail_at_ = nth;
    code_ = code;
    failure_ = failure;
    failed_ = false;
  }

  // Whether a call has failed on command since the last fail_call().
  bool has_failed() const {
    MutexLock lock(mutex_);
    return failed_;
  }

  // How many Store members were called since the last fail_call().
  std::uint64_t calls() const {
    MutexLock lock(mutex_);
    return calls_;
  }

  Result<void> add_heat(const std::vector<std::pair<InodeId, Heat>>& deltas) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "add heat");
    for (const auto& [id, delta] : deltas) {
      if (!is_storable(delta)) return Error(EINVAL, "add heat");
    }
    for (const auto& [id, delta] : deltas) heat_[id] = sum(heat_[id], delta, half_life_);
    return {};
  }

  Result<Heat> heat(InodeId id) const override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "read heat");
    const auto found = heat_.find(id);
    return found == heat_.end() ? Heat{} : found->second;
  }

  Result<void> each_heat(const std::function<bool(InodeId, const Heat&)>& visit) const override {
    std::map<InodeId, Heat> found;
    {
      MutexLock lock(mutex_);
      if (must_fail()) return Error(code_, "walk heat");
      found = heat_;
    }
    for (const auto& [id, heat] : found) {
      if (!visit(id, heat)) break;
    }
    return {};
  }

  Result<void> forget_heat(const std::vector<InodeId>& ids) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "forget heat");
    for (const InodeId id : ids) heat_.erase(id);
    return {};
  }

  Result<void> add_receipts(const std::vector<Receipt>& receipts) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "add receipts");
    receipts_.insert(receipts_.end(), receipts.begin(), receipts.end());
    next_receipt_ += receipts.size();
    while (receipts_.size() > kMostReceipts) receipts_.pop_front();
    return {};
  }

  Result<void> each_receipt(
      std::uint64_t before,
      const std::function<bool(std::uint64_t, const Receipt&)>& visit) const override {
    std::deque<Receipt> found;
    std::uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      if (must_fail()) return Error(code_, "read receipts");
      found = receipts_;
      number = next_receipt_;
    }
    for (auto at = found.rbegin(); at != found.rend(); ++at) {
      if (--number < before && !visit(number, *at)) break;
    }
    return {};
  }

  Result<std::vector<Receipt>> receipts_of(InodeId id, std::size_t most) const override {
    std::vector<Receipt> found;
    const auto walked = each_receipt(kNewest, [&](std::uint64_t, const Receipt& receipt) {
      if (receipt.id == id && found.size() < most) found.push_back(receipt);
      return found.size() < most;
    });
    if (!walked) return walked.error();
    return found;
  }

  Result<void> add_ghosts(const std::vector<std::pair<InodeId, Ghost>>& ghosts) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "add ghosts");
    for (const auto& [id, ghost] : ghosts) ghosts_[id] = ghost;
    return {};
  }

  Result<void> each_ghost(const std::function<bool(InodeId, const Ghost&)>& visit) const override {
    std::map<InodeId, Ghost> found;
    {
      MutexLock lock(mutex_);
      if (must_fail()) return Error(code_, "walk ghosts");
      found = ghosts_;
    }
    for (const auto& [id, ghost] : found) {
      if (!visit(id, ghost)) break;
    }
    return {};
  }

  Result<void> forget_ghosts(const std::vector<InodeId>& ids) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "forget ghosts");
    for (const InodeId id : ids) ghosts_.erase(id);
    return {};
  }

  Result<void> keep_times(const std::vector<std::pair<InodeId, KeptTimes>>& times) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "keep times");
    for (const auto& [id, kept] : times) times_[id] = kept;
    return {};
  }

  Result<KeptTimes> times(InodeId id) const override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "read times");
    const auto found = times_.find(id);
    return found == times_.end() ? KeptTimes{} : found->second;
  }

  Result<void> each_times(
      const std::function<bool(InodeId, const KeptTimes&)>& visit) const override {
    std::map<InodeId, KeptTimes> found;
    {
      MutexLock lock(mutex_);
      if (must_fail()) return Error(code_, "walk times");
      found = times_;
    }
    for (const auto& [id, kept] : found) {
      if (!visit(id, kept)) break;
    }
    return {};
  }

  Result<void> forget_times(const std::vector<InodeId>& ids) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "forget times");
    for (const InodeId id : ids) times_.erase(id);
    return {};
  }

  Result<void> keep_requests(
      const std::vector<std::pair<InodeId, MoveRequest>>& requests) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "keep requests");
    for (const auto& [id, request] : requests) requests_[id] = request;
    return {};
  }

  Result<bool> has_request(InodeId id) const override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "read request");
    return requests_.contains(id);
  }

  Result<void> each_request(
      const std::function<bool(InodeId, const MoveRequest&)>& visit) const override {
    std::map<InodeId, MoveRequest> found;
    {
      MutexLock lock(mutex_);
      if (must_fail()) return Error(code_, "walk requests");
      found = requests_;
    }
    for (const auto& [id, request] : found) {
      if (!visit(id, request)) break;
    }
    return {};
  }

  Result<void> forget_requests(const std::vector<InodeId>& ids) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "forget requests");
    for (const InodeId id : ids) requests_.erase(id);
    return {};
  }

  Result<std::uint64_t> begin_intents(const std::vector<std::string>& records) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "begin intents");
    const std::uint64_t first = next_sequence_;
    for (const std::string& bytes : records) intents_[next_sequence_++] = bytes;
    return first;
  }

  Result<void> clear_intents(const std::vector<std::uint64_t>& sequences) override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "clear intents");
    for (const std::uint64_t sequence : sequences) intents_.erase(sequence);
    return {};
  }

  Result<std::vector<StoredIntent>> intents() const override {
    MutexLock lock(mutex_);
    if (must_fail()) return Error(code_, "read intents");
    std::vector<StoredIntent> found;
    for (const auto& [sequence, bytes] : intents_) found.push_back({sequence, bytes});
    return found;
  }

 private:
  // Counts this call and says whether it is one that fails.
  bool must_fail() const REQUIRES(mutex_) {
    ++calls_;
    const bool fails = fail_at_ != 0 &&
                       (calls_ == fail_at_ || (failure_ == Failure::ForGood && calls_ > fail_at_));
    failed_ = failed_ || fails;
    return fails;
  }

  const std::chrono::seconds half_life_;
  mutable Mutex mutex_;
  std::map<InodeId, Heat> heat_ GUARDED_BY(mutex_);
  std::deque<Receipt> receipts_ GUARDED_BY(mutex_);  // oldest first
  std::uint64_t next_receipt_ GUARDED_BY(mutex_) = 1;
  std::map<InodeId, MoveRequest> requests_ GUARDED_BY(mutex_);
  std::map<InodeId, Ghost> ghosts_ GUARDED_BY(mutex_);
  std::map<InodeId, KeptTimes> times_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::string> intents_ GUARDED_BY(mutex_);
  std::uint64_t next_sequence_ GUARDED_BY(mutex_) = 1;
  mutable std::uint64_t calls_ GUARDED_BY(mutex_) = 0;  // reads count, too
  mutable bool failed_ GUARDED_BY(mutex_) = false;
  std::uint64_t fail_at_ GUARDED_BY(mutex_) = 0;
  int code_ GUARDED_BY(mutex_) = EIO;
  Failure failure_ GUARDED_BY(mutex_) = Failure::Once;
};

}  // namespace sluice::test
