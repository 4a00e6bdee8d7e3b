// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/rocks_database.hpp"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

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

std::vector<ColumnFamilyDescriptor> families(std::chrono::seconds half_life) {
  const rocksdb::ColumnFamilyOptions plain = family_options();  // one cache for all of them
  rocksdb::ColumnFamilyOptions heat = plain;
  heat.write_buffer_size = 2 * kMiB;
  // A flood of writes waits once the levels above the last are about 100 MiB too large: the debt is
  // counted as what paying it would rewrite, ten times that. By default RocksDB lets it grow until
  // the database has twice its size.
  heat.soft_pending_compaction_bytes_limit = 1024 * kMiB;
  heat.hard_pending_compaction_bytes_limit = 2048 * kMiB;
  heat.merge_operator = std::make_shared<HeatMerge>(half_life);
  // In the order of Family.
  return {{rocksdb::kDefaultColumnFamilyName, plain},
          {"heat", heat},
          {"intent", plain},
          {"receipt", plain},
          {"ghost", plain},
          {kConfigFamily, plain},
          {"times", plain}};
}

// The schema version of the database at `path`. Opened for reading and without our merge operator:
// RocksDB rewrites tables while it opens for writing, and a newer database must stay as it is.
Result<std::uint32_t> stored_schema(const std::string& path, std::string& reason) {
  const std::vector<ColumnFamilyDescriptor> some = {
      {rocksdb::kDefaultColumnFamilyName, family_options()}, {kConfigFamily, family_options()}};
  RocksHandle handle;
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

// A directory without its database's files says ENOENT; files replaced by other things the rest.
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

RocksHandle::~RocksHandle() {
  if (!db) return;
  for (ColumnFamilyHandle* family : handles) {
    db->DestroyColumnFamilyHandle(family).PermitUncheckedError();
  }
  const Status status = db->Close();
  if (!status.ok()) log::get().warn("metadata did not close well: reason={}", status.ToString());
}

Result<std::unique_ptr<RocksStore::Database>> RocksStore::Database::open(
    const StoreDirectory& home, std::chrono::seconds half_life, OpenReport& report) {
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

Status RocksStore::Database::write(Durability durability, rocksdb::WriteBatch& batch) {
  rocksdb::WriteOptions options;
  options.sync = durability == Durability::Synced;
  Status status = handle_.db->Write(options, &batch);
  // After a failed write RocksDB refuses all others until it has recovered. For a full disk it
  // looks every five seconds by itself (Resume() then says Busy); for the rest it wants telling.
  if (status.IsIOError() && handle_.db->Resume().ok()) status = handle_.db->Write(options, &batch);
  return status;
}

Status RocksStore::Database::read(Family from, const Slice& key, std::string& value) const {
  return handle_.db->Get({}, family(from), key, &value);
}

std::unique_ptr<rocksdb::Iterator> RocksStore::Database::iterator(Family from) const {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  return std::unique_ptr<rocksdb::Iterator>(handle_.db->NewIterator(options, family(from)));
}

Result<std::vector<StoredIntent>> RocksStore::Database::intents(std::string& reason) const {
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

Result<std::uint64_t> RocksStore::Database::last_key(Family from, std::string& reason) const {
  const std::unique_ptr<rocksdb::Iterator> at = iterator(from);
  for (at->SeekToLast(); at->Valid(); at->Prev()) {
    if (const auto number = decode_key(at->key().ToStringView())) return *number;
  }
  if (!at->status().ok()) return failure(at->status(), "read last key", reason);
  return std::uint64_t{0};
}

Result<void> RocksStore::Database::upgrade(std::uint32_t /*found*/, std::string& reason) {
  // From 1 to 2: the family `times`, which open() has made.
  rocksdb::WriteBatch batch;
  Status status =
      batch.Put(family(Family::Config), kSchemaKey, slice(encode_schema(kSchemaVersion)));
  if (status.ok()) status = write(Durability::Synced, batch);
  if (!status.ok()) return failure(status, "write metadata schema", reason);
  return {};
}

}  // namespace sluice
