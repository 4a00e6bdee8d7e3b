// SPDX-License-Identifier: BSD-2-Clause
// RocksStore is the Store on disk: a RocksDB database in a directory of its own. Its sources,
// rocks_*.cpp, are the only home of RocksDB; docs/metadata-format.md is the contract of what it
// writes.
//
// A database that turns out broken, at open() or later, is moved aside and an empty one takes its
// place: that costs heat, never the mount. Intents that can still be read come along.
// Ownership: it owns the database, the directory's lock and RocksDB's threads. Those start in
// open(), never earlier: call it after the daemonizing fork. Threads: every member may be called
// from any thread at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
  // On disk: never renumber. Raise it with any change that this version would misread.
  static constexpr std::uint32_t kSchemaVersion = 2;

  // What open() met, also when it failed.
  struct OpenReport {
    std::uint32_t schema_found = 0;  // 0: there was no database, or none that could be read
    std::string moved_aside_to;      // where a broken database is now; empty: none was broken
    std::string reason;              // RocksDB's words for what was broken or failed
  };

  // Opens the database in `directory`, made if there is none (its parent must exist). Scores halve
  // every `half_life`; zero: they never decay. Another half-life than last time is fine, it applies
  // to what is stored from then on.
  // Fails with EBUSY if the directory is in use, EPROTONOSUPPORT if a newer Sluice made the
  // database (left untouched; the report has its version), or what the disk says (ENOSPC, EROFS,
  // EACCES).
  static Result<std::unique_ptr<RocksStore>> open(const std::string& directory,
                                                  std::chrono::seconds half_life,
                                                  OpenReport* report = nullptr);
  ~RocksStore() override;

  Result<void> add_heat(const std::vector<std::pair<InodeId, Heat>>& deltas) override;

  // Also fails with EUCLEAN where the disk lost this file's record; the caller may call it cold.
  Result<Heat> heat(InodeId id) const override;

  Result<void> each_heat(
      const std::function<bool(InodeId id, const Heat& heat)>& visit) const override;

  // Not as a whole: after a failure some may be forgotten.
  Result<void> forget_heat(const std::vector<InodeId>& ids) override;

  Result<void> add_receipts(const std::vector<Receipt>& receipts) override;
  Result<std::vector<Receipt>> receipts(std::size_t most) const override;

  Result<void> add_ghosts(const std::vector<std::pair<InodeId, Ghost>>& ghosts) override;
  Result<void> each_ghost(
      const std::function<bool(InodeId id, const Ghost& ghost)>& visit) const override;

  // As forget_heat().
  Result<void> forget_ghosts(const std::vector<InodeId>& ids) override;

  Result<void> keep_times(const std::vector<std::pair<InodeId, KeptTimes>>& times) override;
  Result<KeptTimes> times(InodeId id) const override;
  Result<void> each_times(
      const std::function<bool(InodeId id, const KeptTimes& times)>& visit) const override;
  // As forget_heat().
  Result<void> forget_times(const std::vector<InodeId>& ids) override;

  // After a failure the record may nevertheless be found by the next open().
  Result<std::uint64_t> begin_intents(const std::vector<std::string>& records) override;

  Result<void> clear_intents(const std::vector<std::uint64_t>& sequences) override;
  Result<std::vector<StoredIntent>> intents() const override;

  // How many records each_heat(), each_ghost() and receipts() have left out because they could not
  // be decoded. One that is met again counts again.
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

  // Writes what `fill(database, batch)` puts in the batch; if the database proves broken, once more
  // into a fresh one.
  template <typename Fill>
  Result<void> write(Durability durability, Operation operation, Fill fill);

  // Deletes the records of `ids` from a family, in batches.
  Result<void> forget(Family family, Operation operation, const std::vector<InodeId>& ids);

  // Adds to skipped() and, the first time, to the log.
  void count_skipped(std::uint64_t records) const;

  // Puts a fresh database in the place of the one of that generation, unless somebody already has.
  Result<void> replace(std::uint64_t generation, const std::string& reason);

  const std::chrono::seconds half_life_;
  // No lock: each caller only needs numbers of its own.
  std::atomic<std::uint64_t> next_intent_;
  std::atomic<std::uint64_t> next_receipt_;
  mutable std::atomic<std::uint64_t> skipped_ = 0;  // only a count

  mutable SharedMutex mutex_;  // shared to use database_, exclusive to replace it
  StoreDirectory home_ GUARDED_BY(mutex_);
  std::unique_ptr<Database> database_ GUARDED_BY(mutex_);  // none after a failed replacement
  std::uint64_t generation_ GUARDED_BY(mutex_) = 0;
  std::vector<StoredIntent> rescued_ GUARDED_BY(mutex_);  // on their way to the next database
};

}  // namespace sluice
