// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/rocks_store.hpp"

#include <algorithm>
#include <string_view>

#include "base/log.hpp"
#include "metadata/codec.hpp"
#include "metadata/decay.hpp"
#include "metadata/rocks_database.hpp"

namespace sluice {
namespace {

using rocksdb::Status;

// A batch is built in memory; more deletions than this are split into several batches.
constexpr std::size_t kMostDeletions = 10'000;

// Receipts are pruned whenever their number passes a multiple of this. Pruning is not done more
// often, because reads must skip each deleted range until a compaction has removed it.
constexpr std::uint64_t kPruneStep = 4096;
static_assert(kPruneStep < Store::kMostReceipts);

// Visits the records of `at` from first to last. Returns how many were skipped because they could
// not be decoded.
template <typename Record>
std::uint64_t visit_all(rocksdb::Iterator& at, Result<Record> (*decode)(std::string_view),
                        const std::function<bool(InodeId, const Record&)>& visit) {
  std::uint64_t skipped = 0;
  for (at.SeekToFirst(); at.Valid(); at.Next()) {
    const auto id = decode_key(at.key().ToStringView());
    const auto record = decode(at.value().ToStringView());
    if (!id || !record) {
      ++skipped;
    } else if (!visit(InodeId{*id}, *record)) {
      break;
    }
  }
  return skipped;
}

}  // namespace

Result<std::unique_ptr<RocksStore>> RocksStore::open(const std::string& directory,
                                                     std::chrono::seconds half_life,
                                                     OpenReport* report) {
  OpenReport unwanted;
  OpenReport& seen = report ? *report : unwanted;
  seen = {};
  StoreDirectory home = SLUICE_TRY(StoreDirectory::open(directory));
  Next next;

  // Also reads the intents, because a mount needs them first.
  const auto open_all = [&]() -> Result<std::unique_ptr<Database>> {
    auto opened = SLUICE_TRY(Database::open(home, half_life, seen));
    const auto intents = SLUICE_TRY(opened->intents(seen.reason));
    next.intent = intents.empty() ? 1 : intents.back().sequence + 1;
    next.receipt = SLUICE_TRY(opened->last_key(Family::Receipt, seen.reason)) + 1;
    return opened;
  };
  auto database = open_all();
  if (!database && is_broken(database.error().code)) {
    seen.moved_aside_to = SLUICE_TRY(home.move_aside());
    log::get().warn(
        "metadata was damaged, replaced it with an empty database without heat: moved_to={} "
        "reason={}",
        log::escaped(seen.moved_aside_to), log::escaped(seen.reason));
    const std::string reason = std::exchange(seen.reason, {});
    database = open_all();
    if (database) seen.reason = reason;
  }
  if (!database) return database.error();
  return std::unique_ptr<RocksStore>(
      new RocksStore(std::move(home), half_life, *std::move(database), next));
}

RocksStore::RocksStore(StoreDirectory home, std::chrono::seconds half_life,
                       std::unique_ptr<Database> database, Next next)
    : half_life_(half_life),
      next_intent_(next.intent),
      next_receipt_(next.receipt),
      home_(std::move(home)),
      database_(std::move(database)) {}

RocksStore::~RocksStore() = default;

template <typename Fill>
Result<void> RocksStore::write(Durability durability, Operation operation, Fill fill) {
  for (bool retried = false;; retried = true) {
    Status status = Status::Corruption("no database");
    std::uint64_t generation = 0;
    {
      SharedLock lock(mutex_);
      generation = generation_;
      if (database_) {
        rocksdb::WriteBatch batch;
        status = fill(*database_, batch);
        if (status.ok()) status = database_->write(durability, batch);
      }
    }
    if (status.ok()) return {};
    if (!status.IsCorruption() || retried) return Error(errno_of(status), operation);
    SLUICE_TRY(replace(generation, status.ToString()));
  }
}

Result<void> RocksStore::replace(std::uint64_t generation, const std::string& reason) {
  ExclusiveLock lock(mutex_);
  if (generation_ != generation) return {};
  if (database_) {
    std::string unread;
    auto intents = database_->intents(unread);
    if (intents) rescued_ = std::move(*intents);
    // Close the database before the move, because RocksDB finds its files by name.
    database_.reset();
    const std::string moved_to = SLUICE_TRY(home_.move_aside());
    log::get().warn(
        "metadata is damaged, replaced it with an empty database without heat: moved_to={} "
        "reason={} "
        "intents_kept={}",
        log::escaped(moved_to), log::escaped(reason), rescued_.size());
    if (!intents)
      log::get().error("lost the intents of unfinished operations: reason={}",
                       log::escaped(unread));
  }
  OpenReport report;
  auto fresh = SLUICE_TRY(Database::open(home_, half_life_, report));
  rocksdb::WriteBatch batch;
  Status status;
  for (const StoredIntent& intent : rescued_) {
    if (!status.ok()) break;
    status =
        batch.Put(fresh->family(Family::Intent), slice(encode_key(intent.sequence)), intent.bytes);
  }
  if (status.ok()) status = fresh->write(Durability::Synced, batch);
  if (!status.ok()) return Error(errno_of(status), "copy intents to the new database");
  rescued_.clear();
  database_ = std::move(fresh);
  ++generation_;
  const MutexLock index(index_mutex_);
  index_ = {};
  return {};
}

Result<void> RocksStore::add_heat(const std::vector<std::pair<InodeId, Heat>>& deltas) {
  for (const auto& [id, delta] : deltas) {
    if (!is_storable(delta)) return Error(EINVAL, "add heat");
  }
  if (deltas.empty()) return {};
  return write(Durability::Lazy, "add heat", [&](Database& database, rocksdb::WriteBatch& batch) {
    Status status;
    for (const auto& [id, delta] : deltas) {
      if (!status.ok()) break;
      status = batch.Merge(database.family(Family::Heat), slice(encode_key(to_number(id))),
                           slice(encode_heat(delta)));
    }
    return status;
  });
}

Result<Heat> RocksStore::heat(InodeId id) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "read heat");
  std::string bytes;
  const Status status = database_->read(Family::Heat, slice(encode_key(to_number(id))), bytes);
  if (status.IsNotFound()) return Heat{};
  if (!status.ok()) return Error(errno_of(status), "read heat");
  return decode_heat(bytes);
}

Result<void> RocksStore::each_heat(
    const std::function<bool(InodeId id, const Heat& heat)>& visit) const {
  // Locked until the end: a database that is replaced must have no iterators.
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "walk heat");
  const auto at = database_->iterator(Family::Heat);
  count_skipped(visit_all<Heat>(*at, decode_heat, visit));
  if (!at->status().ok()) return Error(errno_of(at->status()), "walk heat");
  return {};
}

Result<void> RocksStore::forget_heat(const std::vector<InodeId>& ids) {
  return forget(Family::Heat, "forget heat", ids);
}

Result<void> RocksStore::add_receipts(const std::vector<Receipt>& receipts) {
  if (receipts.empty()) return {};
  const std::uint64_t first = next_receipt_.fetch_add(receipts.size(), std::memory_order_relaxed);
  const std::uint64_t end = first + receipts.size();
  SLUICE_TRY(write(Durability::Lazy, "add receipts", [&](Database& database, auto& batch) {
    rocksdb::ColumnFamilyHandle* family = database.family(Family::Receipt);
    Status status;
    for (std::size_t i = 0; i < receipts.size() && status.ok(); ++i) {
      status = batch.Put(family, slice(encode_key(first + i)), encode_receipt(receipts[i]));
    }
    if (status.ok() && end > kMostReceipts && first / kPruneStep != end / kPruneStep) {
      status =
          batch.DeleteRange(family, slice(encode_key(0)), slice(encode_key(end - kMostReceipts)));
    }
    return status;
  }));
  const MutexLock index(index_mutex_);
  for (std::size_t i = 0; i < receipts.size(); ++i) index_.add(first + i, receipts[i].id);
  return {};
}

Result<void> RocksStore::each_receipt(
    std::uint64_t before,
    const std::function<bool(std::uint64_t number, const Receipt& receipt)>& visit) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "read receipts");
  std::uint64_t skipped = 0, shown = 0;
  const auto at = database_->iterator(Family::Receipt);
  // Keys of another length may be anywhere.
  if (before == kNewest) {
    at->SeekToLast();
  } else {
    at->SeekForPrev(slice(encode_key(before == 0 ? 0 : before - 1)));
  }
  // Receipts that the next pruning will delete are not shown.
  const std::uint64_t next = next_receipt_.load(std::memory_order_relaxed);
  const std::uint64_t oldest = next > kMostReceipts ? next - kMostReceipts : 0;
  for (; at->Valid() && shown < kMostReceipts; at->Prev()) {
    const auto number = decode_key(at->key().ToStringView());
    const auto receipt = decode_receipt(at->value().ToStringView());
    if (!number || !receipt) {
      ++skipped;
      continue;
    }
    if (*number < oldest) break;
    if (*number >= before) continue;
    ++shown;
    if (!visit(*number, *receipt)) break;
  }
  count_skipped(skipped);
  if (!at->status().ok()) return Error(errno_of(at->status()), "read receipts");
  return {};
}

void RocksStore::ReceiptIndex::add(std::uint64_t number, InodeId id) {
  // Nearly always the last: threads that add at once may come in another order.
  auto at = entries_.end();
  while (at != entries_.begin() && std::prev(at)->first > number) --at;
  if (at != entries_.begin() && std::prev(at)->first == number) return;
  entries_.emplace(at, number, id);
  if (entries_.size() > kMostReceipts) entries_.pop_front();
}

std::vector<std::uint64_t> RocksStore::ReceiptIndex::of(InodeId id, std::size_t most) const {
  std::vector<std::uint64_t> found;
  for (auto at = entries_.rbegin(); at != entries_.rend() && found.size() < most; ++at) {
    if (at->second == id) found.push_back(at->first);
  }
  return found;
}

Result<void> RocksStore::read_receipt_index() const {
  if (index_.is_read()) return {};
  const auto at = database_->iterator(Family::Receipt);
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    const auto number = decode_key(at->key().ToStringView());
    const auto receipt = decode_receipt(at->value().ToStringView());
    if (number && receipt) index_.add(*number, receipt->id);
  }
  if (!at->status().ok()) return Error(errno_of(at->status()), "read receipts");
  index_.set_read();
  return {};
}

Result<std::vector<Receipt>> RocksStore::receipts_of(InodeId id, std::size_t most) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "read receipts");
  std::vector<std::uint64_t> numbers;
  {
    const MutexLock index(index_mutex_);
    SLUICE_TRY(read_receipt_index());
    numbers = index_.of(id, most);
  }
  std::vector<Receipt> found;
  for (const std::uint64_t number : numbers) {
    std::string bytes;
    if (!database_->read(Family::Receipt, slice(encode_key(number)), bytes).ok()) continue;
    if (auto receipt = decode_receipt(bytes)) found.push_back(*std::move(receipt));
  }
  return found;
}

Result<void> RocksStore::add_ghosts(const std::vector<std::pair<InodeId, Ghost>>& ghosts) {
  if (ghosts.empty()) return {};
  return write(Durability::Lazy, "add ghosts", [&](Database& database, auto& batch) {
    Status status;
    for (const auto& [id, ghost] : ghosts) {
      if (!status.ok()) break;
      status = batch.Put(database.family(Family::Ghost), slice(encode_key(to_number(id))),
                         slice(encode_ghost(ghost)));
    }
    return status;
  });
}

Result<void> RocksStore::each_ghost(
    const std::function<bool(InodeId id, const Ghost& ghost)>& visit) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "walk ghosts");
  const auto at = database_->iterator(Family::Ghost);
  count_skipped(visit_all<Ghost>(*at, decode_ghost, visit));
  if (!at->status().ok()) return Error(errno_of(at->status()), "walk ghosts");
  return {};
}

Result<void> RocksStore::forget_ghosts(const std::vector<InodeId>& ids) {
  return forget(Family::Ghost, "forget ghosts", ids);
}

Result<void> RocksStore::keep_times(const std::vector<std::pair<InodeId, KeptTimes>>& times) {
  if (times.empty()) return {};
  return write(Durability::Lazy, "keep times", [&](Database& database, auto& batch) {
    Status status;
    for (const auto& [id, kept] : times) {
      if (!status.ok()) break;
      status = batch.Put(database.family(Family::Times), slice(encode_key(to_number(id))),
                         encode_times(kept));
    }
    return status;
  });
}

Result<KeptTimes> RocksStore::times(InodeId id) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "read times");
  std::string bytes;
  const Status status = database_->read(Family::Times, slice(encode_key(to_number(id))), bytes);
  if (status.IsNotFound()) return KeptTimes{};
  if (!status.ok()) return Error(errno_of(status), "read times");
  return decode_times(bytes);
}

Result<void> RocksStore::each_times(
    const std::function<bool(InodeId id, const KeptTimes& times)>& visit) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "walk times");
  const auto at = database_->iterator(Family::Times);
  count_skipped(visit_all<KeptTimes>(*at, decode_times, visit));
  if (!at->status().ok()) return Error(errno_of(at->status()), "walk times");
  return {};
}

Result<void> RocksStore::forget_times(const std::vector<InodeId>& ids) {
  return forget(Family::Times, "forget times", ids);
}

Result<void> RocksStore::keep_requests(
    const std::vector<std::pair<InodeId, MoveRequest>>& requests) {
  if (requests.empty()) return {};
  return write(Durability::Lazy, "keep requests", [&](Database& database, auto& batch) {
    Status status;
    for (const auto& [id, request] : requests) {
      if (!status.ok()) break;
      status = batch.Put(database.family(Family::Request), slice(encode_key(to_number(id))),
                         encode_request(request));
    }
    return status;
  });
}

Result<bool> RocksStore::has_request(InodeId id) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "read request");
  std::string bytes;
  const Status status = database_->read(Family::Request, slice(encode_key(to_number(id))), bytes);
  if (status.IsNotFound()) return false;
  if (!status.ok()) return Error(errno_of(status), "read request");
  return true;
}

Result<void> RocksStore::each_request(
    const std::function<bool(InodeId id, const MoveRequest& request)>& visit) const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "walk requests");
  const auto at = database_->iterator(Family::Request);
  count_skipped(visit_all<MoveRequest>(*at, decode_request, visit));
  if (!at->status().ok()) return Error(errno_of(at->status()), "walk requests");
  return {};
}

Result<void> RocksStore::forget_requests(const std::vector<InodeId>& ids) {
  return forget(Family::Request, "forget requests", ids);
}

Result<void> RocksStore::forget(Family family, Operation operation,
                                const std::vector<InodeId>& ids) {
  for (std::size_t first = 0; first < ids.size(); first += kMostDeletions) {
    const std::size_t end = std::min(ids.size(), first + kMostDeletions);
    SLUICE_TRY(write(Durability::Lazy, operation, [&](Database& database, auto& batch) {
      Status status;
      for (std::size_t i = first; i < end && status.ok(); ++i) {
        status = batch.Delete(database.family(family), slice(encode_key(to_number(ids[i]))));
      }
      return status;
    }));
  }
  return {};
}

void RocksStore::count_skipped(std::uint64_t records) const {
  if (records == 0) return;
  if (skipped_.fetch_add(records, std::memory_order_relaxed) == 0) {
    log::get().warn("skipped metadata records that cannot be decoded: records={}", records);
  }
}

Result<std::uint64_t> RocksStore::begin_intents(const std::vector<std::string>& records) {
  const std::uint64_t first = next_intent_.fetch_add(records.size(), std::memory_order_relaxed);
  SLUICE_TRY(write(Durability::Synced, "begin intents", [&](Database& database, auto& batch) {
    Status status;
    for (std::size_t i = 0; i < records.size() && status.ok(); ++i)
      status = batch.Put(database.family(Family::Intent), slice(encode_key(first + i)), records[i]);
    return status;
  }));
  return first;
}

Result<void> RocksStore::clear_intents(const std::vector<std::uint64_t>& sequences) {
  return write(Durability::Synced, "clear intents", [&](Database& database, auto& batch) {
    Status status;
    for (const std::uint64_t sequence : sequences) {
      if (status.ok())
        status = batch.Delete(database.family(Family::Intent), slice(encode_key(sequence)));
    }
    return status;
  });
}

Result<std::vector<StoredIntent>> RocksStore::intents() const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "read intents");
  std::string reason;
  return database_->intents(reason);
}

}  // namespace sluice
