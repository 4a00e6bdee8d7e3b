// SPDX-License-Identifier: BSD-2-Clause
// RocksStore is the Store on disk: a RocksDB database in its own directory. Only its sources,
// rocks_*.cpp, include RocksDB. docs/metadata-format.md specifies what it writes.
//
// If the database is found damaged, at open() or later, it is moved aside and replaced by an empty
// one. This loses heat but never prevents the mount. Intents that can still be read are kept.
// Ownership: it owns the database, the directory's lock and RocksDB's threads. These threads start
// in open(), so call it after the daemonizing fork.
// Threads: every member may be called from any thread at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "metadata/store.hpp"
#include "metadata/store_directory.hpp"

namespace sluice {

enum class Family : std::size_t;  // a column family, see rocks_database.hpp

class RocksStore final : public Store {
 public:
  // On disk: never renumber. Raise it with any change that this version would misunderstand.
  static constexpr std::uint32_t kSchemaVersion = 5;

  // What open() found, also if it failed.
  struct OpenReport {
    std::uint32_t schema_found = 0;  // 0 if there was no readable database
    std::string moved_aside_to;      // where a damaged database is now; empty if there was none
    std::string reason;              // RocksDB's message about the damage or failure
  };

  // Opens the database in `directory`, and creates it if there is none (the parent of the directory
  // must exist). Scores halve every `half_life`; with zero they never decay. The half-life may
  // differ from last time; it applies to what is stored from then on. Fails with EBUSY if the
  // directory is in use, with EPROTONOSUPPORT if another version of Sluice made the database (it
  // is not changed; the report has its version), or with the error of the disk (ENOSPC, EROFS,
  // EACCES).
  static Result<std::unique_ptr<RocksStore>> open(const std::string& directory,
                                                  std::chrono::seconds half_life,
                                                  OpenReport* report = nullptr);
  ~RocksStore() override;

  Result<void> add_heat(const std::vector<std::pair<InodeId, Heat>>& deltas) override;

  // Also fails with EUCLEAN if the record of this file is damaged; the caller may treat the file as
  // cold.
  Result<Heat> heat(InodeId id) const override;

  Result<void> each_heat(
      const std::function<bool(InodeId id, const Heat& heat)>& visit) const override;

  // Not atomic: after a failure, some may be forgotten.
  Result<void> forget_heat(const std::vector<InodeId>& ids) override;

  Result<void> add_receipts(const std::vector<Receipt>& receipts) override;
  Result<void> each_receipt(std::uint64_t before,
                            const std::function<bool(std::uint64_t number, const Receipt& receipt)>&
                                visit) const override;
  Result<std::vector<Receipt>> receipts_of(InodeId id, std::size_t most) const override;

  Result<void> add_ghosts(const std::vector<std::pair<InodeId, Ghost>>& ghosts) override;
  Result<void> each_ghost(
      const std::function<bool(InodeId id, const Ghost& ghost)>& visit) const override;

  // Not atomic, like forget_heat().
  Result<void> forget_ghosts(const std::vector<InodeId>& ids) override;

  Result<void> keep_times(const std::vector<std::pair<InodeId, KeptTimes>>& times) override;
  Result<KeptTimes> times(InodeId id) const override;
  Result<void> each_times(
      const std::function<bool(InodeId id, const KeptTimes& times)>& visit) const override;
  // Not atomic, like forget_heat().
  Result<void> forget_times(const std::vector<InodeId>& ids) override;

  Result<void> keep_requests(const std::vector<std::pair<InodeId, MoveRequest>>& requests) override;
  Result<bool> has_request(InodeId id) const override;
  Result<void> each_request(
      const std::function<bool(InodeId id, const MoveRequest& request)>& visit) const override;
  // Not atomic, like forget_heat().
  Result<void> forget_requests(const std::vector<InodeId>& ids) override;

  // Even after a failure, the next open() may find the records.
  Result<std::uint64_t> begin_intents(const std::vector<std::string>& records) override;

  Result<void> clear_intents(const std::vector<std::uint64_t>& sequences) override;
  Result<std::vector<StoredIntent>> intents() const override;

  // How many records the members that begin with each_ have skipped because they could not
  // be decoded. A record is counted each time.
  std::uint64_t skipped() const { return skipped_.load(std::memory_order_relaxed); }

 private:
  class Database;
  enum class Durability { Lazy, Synced };

  // The numbers that the next records get.
  struct Next {
    std::uint64_t intent = 1;
    std::uint64_t receipt = 1;
  };

  RocksStore(StoreDirectory home, std::chrono::seconds half_life,
             std::unique_ptr<Database> database, Next next);

  // Writes what `fill(database, batch)` puts in the batch. If the database proves to be damaged,
  // repeats this with a new database.
  template <typename Fill>
  Result<void> write(Durability durability, Operation operation, Fill fill);

  // Deletes the records of `ids` from a family, in batches.
  Result<void> forget(Family family, Operation operation, const std::vector<InodeId>& ids);

  // Which file each receipt is about, so that receipts_of() need not read them all.
  class ReceiptIndex {
   public:
    bool is_read() const { return is_read_; }
    void set_read() { is_read_ = true; }
    void add(std::uint64_t number, InodeId id);
    // The numbers of the newest `most` receipts of the file, newest first.
    std::vector<std::uint64_t> of(InodeId id, std::size_t most) const;

   private:
    bool is_read_ = false;  // the receipts of earlier mounts are in it
    std::deque<std::pair<std::uint64_t, InodeId>> entries_;  // sorted by number
  };
  Result<void> read_receipt_index() const REQUIRES(index_mutex_) REQUIRES_SHARED(mutex_);

  // Adds to skipped() and logs the first time.
  void count_skipped(std::uint64_t records) const;

  // Replaces the database of this generation by an empty one, unless another thread has done so
  // already.
  Result<void> replace(std::uint64_t generation, const std::string& reason);

  const std::chrono::seconds half_life_;
  // Atomic, not locked: callers only need distinct numbers.
  std::atomic<std::uint64_t> next_intent_;
  std::atomic<std::uint64_t> next_receipt_;
  mutable std::atomic<std::uint64_t> skipped_ = 0;  // statistics

  mutable SharedMutex mutex_;  // shared to use database_, exclusive to replace it
  mutable Mutex index_mutex_ ACQUIRED_AFTER(mutex_);
  mutable ReceiptIndex index_ GUARDED_BY(index_mutex_);
  StoreDirectory home_ GUARDED_BY(mutex_);
  std::unique_ptr<Database> database_ GUARDED_BY(mutex_);  // null after a failed replacement
  std::uint64_t generation_ GUARDED_BY(mutex_) = 0;
  std::vector<StoredIntent> rescued_ GUARDED_BY(mutex_);  // intents to write to the next database
};

}  // namespace sluice
