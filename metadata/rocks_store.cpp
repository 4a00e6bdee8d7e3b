// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/rocks_store.hpp"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/log.hpp"
#include "metadata/codec.hpp"
#include "metadata/decay.hpp"

namespace sluice {
namespace {

using rocksdb::ColumnFamilyDescriptor;
using rocksdb::ColumnFamilyHandle;
using rocksdb::Slice;
using rocksdb::Status;

// On disk: never rename. RocksDB insists on "default"; nothing is kept in it.
constexpr const char* kConfigFamily = "config";
constexpr const char* kSchemaKey = "schema";

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

template <std::size_t kSize>
Slice slice(const std::array<char, kSize>& bytes) {
  return {bytes.data(), kSize};
}

// RocksDB keeps the errno of most failed system calls only as strerror's words, at the end of its
// message. They are looked for with the same function, hence in the same language.
int errno_in_words(std::string_view message) {
  constexpr int kLastErrno = 133;  // EHWPOISON
  for (int code = 1; code <= kLastErrno; ++code) {
    char space[128];
    if (message.ends_with(::strerror_r(code, space, sizeof space))) return code;
  }
  return EIO;
}

// The one place where RocksDB's codes become errnos.
int errno_of(const Status& status) {
  switch (status.code()) {
    case Status::kCorruption:
      return EUCLEAN;
    case Status::kNotFound:
      return ENOENT;
    case Status::kNotSupported:
      return ENOTSUP;
    case Status::kInvalidArgument:
      return EINVAL;
    case Status::kTimedOut:
      return ETIMEDOUT;
    case Status::kBusy:
      return EBUSY;
    case Status::kTryAgain:
      return EAGAIN;
    case Status::kShutdownInProgress:
      return ECANCELED;
    case Status::kAborted:
      return status.subcode() == Status::kMemoryLimit ? ENOMEM : ECANCELED;
    case Status::kIOError:
      if (status.IsNoSpace() || status.subcode() == Status::kSpaceLimit) return ENOSPC;
      if (status.IsPathNotFound()) return ENOENT;
      if (status.subcode() == Status::kStaleFile) return ESTALE;
      return errno_in_words(status.ToString());
    default:
      return EIO;
  }
}

// Whether an open() that fails like this has met a broken database, as opposed to a machine that is
// full, read-only or out of something. A directory without its database's files says ENOENT; files
// replaced by other things the rest.
bool is_broken(int code) {
  switch (code) {
    case EUCLEAN:
    case ENOENT:
    case EIO:
    case EINVAL:
    case ENOTSUP:
    case EISDIR:
    case ENOTDIR:
    case ENXIO:
    case ELOOP:
      return true;
    default:
      return false;
  }
}

Error failure(const Status& status, Operation operation, std::string& reason) {
  reason = status.ToString();
  return {errno_of(status), operation};
}

class HeatMerge final : public rocksdb::AssociativeMergeOperator {
 public:
  explicit HeatMerge(std::chrono::seconds half_life) : half_life_(half_life) {}

  const char* Name() const override { return "sluice.heat"; }  // On disk: never rename.

  bool Merge(const Slice& /*key*/, const Slice* existing, const Slice& value, std::string* merged,
             rocksdb::Logger* /*logger*/) const override {
    // What cannot be read counts as nothing. Refusing it would end every later write: RocksDB stops
    // for good when a compaction fails, and one file's heat is not worth that.
    Heat total;
    if (existing) total = sum(total, readable(*existing), half_life_);
    total = sum(total, readable(value), half_life_);
    const auto bytes = encode_heat(total);
    merged->assign(bytes.data(), bytes.size());
    return true;
  }

 private:
  static Heat readable(const Slice& bytes) {
    auto heat = decode_heat(bytes.ToStringView());
    return heat ? *heat : Heat{};
  }

  const std::chrono::seconds half_life_;
};

// RocksDB's warnings, in our log. Its own log files are not used: on a full disk Debian's build,
// which has assertions, aborts at the second line that it cannot write there.
class LogForwarder final : public rocksdb::Logger {
 public:
  LogForwarder() : Logger(rocksdb::WARN_LEVEL) {}

  // The base class drops what is below the level before it comes here.
  void Logv(const char* format, va_list arguments) override {
    char line[512];
    std::vsnprintf(line, sizeof line, format, arguments);
    log::get().debug("rocksdb: {}", log::escaped(line));
  }
  void LogHeader(const char* /*format*/, va_list /*arguments*/) override {}
};

// Small throughout: the daemon's memory belongs to its users, and a store that lags loses nothing
// but heat. The page cache underneath makes up for the small block cache.
rocksdb::DBOptions database_options() {
  rocksdb::DBOptions options;
  options.max_open_files = 64;
  options.max_file_opening_threads = 1;
  options.max_background_jobs = 2;
  options.db_write_buffer_size = 6 * kMiB;
  options.max_total_wal_size = 8 * kMiB;
  options.writable_file_max_buffer_size = 64 * kKiB;
  options.compaction_readahead_size = 256 * kKiB;
  options.max_manifest_file_size = kMiB;
  options.manifest_preallocation_size = 64 * kKiB;
  options.info_log = std::make_shared<LogForwarder>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.skip_stats_update_on_db_open = true;  // it would read every table at mount
  options.avoid_unnecessary_blocking_io = true;
  // A torn tail of the log is what a crash leaves; the database then opens as of just before it.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

rocksdb::ColumnFamilyOptions family_options() {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(4 * kMiB, 1);
  table.cache_index_and_filter_blocks = true;
  table.block_size = 16 * kKiB;  // a quarter of the index that 4 KiB would need
  table.format_version = 5;      // the newest that RocksDB 7.8, on Debian 12, reads
  rocksdb::ColumnFamilyOptions options;
  // No Bloom filters: for ten million files they are 12 MiB, three times the cache they would live
  // in.
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = 512 * kKiB;
  options.max_write_buffer_number = 2;
  options.target_file_size_base = 8 * kMiB;
  options.max_bytes_for_level_base = 32 * kMiB;
  options.level_compaction_dynamic_level_bytes = true;
  options.compression = rocksdb::kNoCompression;  // doubles and counters: little to gain
  return options;
}

enum class Family : std::size_t { Default, Heat, Intent, Receipt, Ghost, Config };

std::vector<ColumnFamilyDescriptor> families(std::chrono::seconds half_life) {
  const rocksdb::ColumnFamilyOptions plain = family_options();  // one cache for all of them
  rocksdb::ColumnFamilyOptions heat = plain;
  heat.write_buffer_size = 2 * kMiB;
  heat.merge_operator = std::make_shared<HeatMerge>(half_life);
  // In the order of Family.
  return {{rocksdb::kDefaultColumnFamilyName, plain},
          {"heat", heat},
          {"intent", plain},
          {"receipt", plain},
          {"ghost", plain},
          {kConfigFamily, plain}};
}

// An open RocksDB with its handles, closed in the order that it wants.
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (!db) return;
    for (ColumnFamilyHandle* family : handles) {
      db->DestroyColumnFamilyHandle(family).PermitUncheckedError();
    }
    const Status status = db->Close();
    if (!status.ok()) log::get().warn("metadata did not close well: reason={}", status.ToString());
  }

  std::unique_ptr<rocksdb::DB> db;
  std::vector<ColumnFamilyHandle*> handles;
};

// The schema version of the database at `path`. Opened for reading and without our merge operator:
// RocksDB rewrites tables while it opens for writing, and a newer database must stay as it is.
Result<std::uint32_t> stored_schema(const std::string& path, std::string& reason) {
  const std::vector<ColumnFamilyDescriptor> some = {
      {rocksdb::kDefaultColumnFamilyName, family_options()}, {kConfigFamily, family_options()}};
  Handle handle;
  rocksdb::DB* raw = nullptr;
  Status status =
      rocksdb::DB::OpenForReadOnly(database_options(), path, some, &handle.handles, &raw);
  handle.db.reset(raw);
  if (!status.ok()) return failure(status, "open metadata store", reason);

  std::string bytes;
  status = handle.db->Get({}, handle.handles[1], kSchemaKey, &bytes);
  // The version is the first thing written: without it there is nothing that could be lost.
  if (!status.ok()) return failure(status, "read metadata schema", reason);
  auto version = decode_schema(bytes);
  if (!version) reason = "unknown encoding of the schema version";
  return version;
}

}  // namespace

class RocksStore::Database {
 public:
  // Opens what is at `home`, or makes it. Fails as RocksStore::open() does, and with a code that
  // is_broken() knows if what is there cannot be used.
  static Result<std::unique_ptr<Database>> open(const StoreDirectory& home,
                                                std::chrono::seconds half_life,
                                                OpenReport& report) {
    report.schema_found = 0;
    const auto contents = SLUICE_TRY(home.contents());
    if (contents == StoreDirectory::Contents::Remains) {
      report.reason = "a database's files without its CURRENT";
      return Error(EUCLEAN, "open metadata store");
    }
    if (contents == StoreDirectory::Contents::Database) {
      report.schema_found = SLUICE_TRY(stored_schema(home.path(), report.reason));
    }
    if (report.schema_found > kSchemaVersion) {
      report.reason = "made by a newer version";
      return Error(EPROTONOSUPPORT, "open metadata store");
    }
    rocksdb::DBOptions options = database_options();
    options.create_if_missing = true;
    options.create_missing_column_families = true;
    auto database = std::unique_ptr<Database>(new Database);
    rocksdb::DB* raw = nullptr;
    const Status status = rocksdb::DB::Open(options, home.path(), families(half_life),
                                            &database->handle_.handles, &raw);
    database->handle_.db.reset(raw);
    if (!status.ok()) return failure(status, "open metadata store", report.reason);
    if (report.schema_found != kSchemaVersion) {
      SLUICE_TRY(database->upgrade(report.schema_found, report.reason));
    }
    return database;
  }

  ColumnFamilyHandle* family(Family which) const {
    return handle_.handles[static_cast<std::size_t>(which)];
  }

  Status write(Durability durability, rocksdb::WriteBatch& batch) {
    rocksdb::WriteOptions options;
    options.sync = durability == Durability::Synced;
    Status status = handle_.db->Write(options, &batch);
    // After a failed write RocksDB refuses all others until it has recovered. For a full disk it
    // looks every five seconds by itself (Resume() then says Busy); for the rest it wants telling.
    if (status.IsIOError() && handle_.db->Resume().ok())
      status = handle_.db->Write(options, &batch);
    return status;
  }

  Status read(Family from, const Slice& key, std::string& value) const {
    return handle_.db->Get({}, family(from), key, &value);
  }

  Result<std::vector<StoredIntent>> intents(std::string& reason) const {
    std::vector<StoredIntent> found;
    std::unique_ptr<rocksdb::Iterator> at(handle_.db->NewIterator({}, family(Family::Intent)));
    for (at->SeekToFirst(); at->Valid(); at->Next()) {
      auto sequence = decode_key(at->key().ToStringView());
      if (!sequence) {
        reason = "unknown encoding of an intent's key";
        return sequence.error();
      }
      found.push_back({*sequence, at->value().ToString()});
    }
    if (!at->status().ok()) return failure(at->status(), "read intents", reason);
    return found;
  }

 private:
  Database() = default;

  // Brings a database of schema `found` (0: just made) to kSchemaVersion. A step from version n to
  // n + 1 belongs before the version is written, and must bear being run again after a crash.
  Result<void> upgrade(std::uint32_t /*found*/, std::string& reason) {
    rocksdb::WriteBatch batch;
    Status status =
        batch.Put(family(Family::Config), kSchemaKey, slice(encode_schema(kSchemaVersion)));
    if (status.ok()) status = write(Durability::Synced, batch);
    if (!status.ok()) return failure(status, "write metadata schema", reason);
    return {};
  }

  Handle handle_;
};

Result<std::unique_ptr<RocksStore>> RocksStore::open(const std::string& directory,
                                                     std::chrono::seconds half_life,
                                                     OpenReport* report) {
  OpenReport unwanted;
  OpenReport& seen = report ? *report : unwanted;
  seen = {};
  StoreDirectory home = SLUICE_TRY(StoreDirectory::open(directory));
  std::vector<StoredIntent> intents;

  // Reads the intents, too: they are what a mount starts with, so they must be readable.
  const auto open_all = [&]() -> Result<std::unique_ptr<Database>> {
    auto opened = SLUICE_TRY(Database::open(home, half_life, seen));
    intents = SLUICE_TRY(opened->intents(seen.reason));
    return opened;
  };
  auto database = open_all();
  if (!database && is_broken(database.error().code)) {
    seen.moved_aside_to = SLUICE_TRY(home.move_aside());
    log::get().warn("metadata was broken and starts anew, without heat: moved_to={} reason={}",
                    log::escaped(seen.moved_aside_to), log::escaped(seen.reason));
    const std::string reason = std::exchange(seen.reason, {});
    database = open_all();
    if (database) seen.reason = reason;
  }
  if (!database) return database.error();
  const std::uint64_t next = intents.empty() ? 1 : intents.back().sequence + 1;
  return std::unique_ptr<RocksStore>(
      new RocksStore(std::move(home), half_life, *std::move(database), next));
}

RocksStore::RocksStore(StoreDirectory home, std::chrono::seconds half_life,
                       std::unique_ptr<Database> database, std::uint64_t next_sequence)
    : half_life_(half_life),
      next_sequence_(next_sequence),
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
    if (intents) rescued_ = *std::move(intents);
    // Before the move: RocksDB finds its files by name until it is closed.
    database_.reset();
    const std::string moved_to = SLUICE_TRY(home_.move_aside());
    log::get().warn(
        "metadata broke and starts anew, without heat: moved_to={} reason={} intents_kept={}",
        log::escaped(moved_to), log::escaped(reason), rescued_.size());
    if (!intents) log::get().error("intents were lost: reason={}", log::escaped(unread));
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
  if (!status.ok()) return Error(errno_of(status), "carry intents over");
  rescued_.clear();
  database_ = std::move(fresh);
  ++generation_;
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

Result<void> RocksStore::forget_heat(InodeId id) {
  return write(Durability::Lazy, "forget heat", [&](Database& database, auto& batch) {
    return batch.Delete(database.family(Family::Heat), slice(encode_key(to_number(id))));
  });
}

Result<std::uint64_t> RocksStore::begin_intent(const std::string& bytes) {
  const std::uint64_t sequence = next_sequence_.fetch_add(1, std::memory_order_relaxed);
  SLUICE_TRY(write(Durability::Synced, "begin intent", [&](Database& database, auto& batch) {
    return batch.Put(database.family(Family::Intent), slice(encode_key(sequence)), bytes);
  }));
  return sequence;
}

Result<void> RocksStore::clear_intent(std::uint64_t sequence) {
  return write(Durability::Synced, "clear intent", [&](Database& database, auto& batch) {
    return batch.Delete(database.family(Family::Intent), slice(encode_key(sequence)));
  });
}

Result<std::vector<StoredIntent>> RocksStore::intents() const {
  SharedLock lock(mutex_);
  if (!database_) return Error(EUCLEAN, "read intents");
  std::string reason;
  return database_->intents(reason);
}

}  // namespace sluice
