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

// On disk: never rename. RocksDB requires "default"; nothing is stored in it.
constexpr const char* kConfigFamily = "config";
constexpr const char* kSchemaKey = "schema";

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// For most failed system calls, RocksDB reports the errno only as the text of strerror at the end
// of its message. The same function produces the texts to compare with, so the language matches.
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
    // A record that cannot be decoded counts as zero. An error here would end all writes, because
    // RocksDB stops for good when a compaction fails, and the heat of one file is not worth that.
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

// Forwards RocksDB's warnings to our log. RocksDB's own log files are not used: on a full disk,
// Debian's build, which has assertions, aborts at the second line that it cannot write there.
class LogForwarder final : public rocksdb::Logger {
 public:
  LogForwarder() : Logger(rocksdb::WARN_LEVEL) {}

  // The base class drops messages below the level before they get here.
  void Logv(const char* format, va_list arguments) override {
    char line[512];
    std::vsnprintf(line, sizeof line, format, arguments);
    log::get().debug("rocksdb: {}", log::escaped(line));
  }
  void LogHeader(const char* /*format*/, va_list /*arguments*/) override {}
};

// All buffers are small: memory belongs to the applications, and a slow store delays nothing but
// heat. The page cache compensates for the small block cache.
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
  options.skip_stats_update_on_db_open = true;  // updating them would read every table at mount
  options.avoid_unnecessary_blocking_io = true;
  // A crash may leave a torn end of the log; the database then opens as of just before it.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

rocksdb::ColumnFamilyOptions family_options() {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(4 * kMiB, 1);
  table.cache_index_and_filter_blocks = true;
  table.block_size = 16 * kKiB;  // needs a quarter of the index that 4 KiB blocks need
  table.format_version = 5;      // the newest format that RocksDB 7.8 (Debian 12) reads
  rocksdb::ColumnFamilyOptions options;
  // No Bloom filters: for ten million files they take 12 MiB, three times the cache they would be
  // in.
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = 512 * kKiB;
  options.max_write_buffer_number = 2;
  options.target_file_size_base = 8 * kMiB;
  options.max_bytes_for_level_base = 32 * kMiB;
  options.level_compaction_dynamic_level_bytes = true;
  options.compression = rocksdb::kNoCompression;  // doubles and counters compress badly
  return options;
}

std::vector<ColumnFamilyDescriptor> families(std::chrono::seconds half_life) {
  const rocksdb::ColumnFamilyOptions plain = family_options();  // all families share one cache
  rocksdb::ColumnFamilyOptions heat = plain;
  heat.write_buffer_size = 2 * kMiB;
  // Slows a flood of writes once the levels above the last are about 100 MiB too large. RocksDB
  // counts this debt as the bytes that compaction would rewrite, ten times as much. By default, it
  // lets the debt grow until the database has twice its size.
  heat.soft_pending_compaction_bytes_limit = 1024 * kMiB;
  heat.hard_pending_compaction_bytes_limit = 2048 * kMiB;
  heat.merge_operator = std::make_shared<HeatMerge>(half_life);
  // In the same order as Family.
  return {{rocksdb::kDefaultColumnFamilyName, plain},
          {"heat", heat},
          {"intent", plain},
          {"receipt", plain},
          {"ghost", plain},
          {kConfigFamily, plain},
          {"times", plain},
          {"request", plain}};
}

// The schema version of the database at `path`. Opens it read-only and without our merge operator:
// RocksDB rewrites tables when it opens for writing, and a newer database must not be changed.
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
  // The version is written first: a database without it contains nothing that could be lost.
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

// ENOENT: files of the database are missing. The other codes: files were replaced by something
// else.
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
  if (!status.ok())
    log::get().warn("cannot close the metadata database cleanly: reason={}", status.ToString());
}

Result<std::unique_ptr<RocksStore::Database>> RocksStore::Database::open(
    const StoreDirectory& home, std::chrono::seconds half_life, OpenReport& report) {
  report.schema_found = 0;
  const auto contents = SLUICE_TRY(home.contents());
  if (contents == StoreDirectory::Contents::Remains) {
    report.reason = "the database's file CURRENT is missing";
    return Error(EUCLEAN, "open metadata store");
  }
  if (contents == StoreDirectory::Contents::Database) {
    report.schema_found = SLUICE_TRY(stored_schema(home.path(), report.reason));
  }
  if (report.schema_found != 0 && report.schema_found != kSchemaVersion) {
    report.reason = "the database was made by another version of Sluice";
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
  if (report.schema_found == 0) SLUICE_TRY(database->write_schema(report.reason));
  return database;
}

Status RocksStore::Database::write(Durability durability, rocksdb::WriteBatch& batch) {
  rocksdb::WriteOptions options;
  options.sync = durability == Durability::Synced;
  Status status = handle_.db->Write(options, &batch);
  // After a failed write, RocksDB rejects all writes until it has recovered. From a full disk it
  // recovers by itself, checking every five seconds (Resume() then returns Busy); other failures
  // need a call of Resume().
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

Result<void> RocksStore::Database::write_schema(std::string& reason) {
  rocksdb::WriteBatch batch;
  Status status =
      batch.Put(family(Family::Config), kSchemaKey, slice(encode_schema(kSchemaVersion)));
  if (status.ok()) status = write(Durability::Synced, batch);
  if (!status.ok()) return failure(status, "write metadata schema", reason);
  return {};
}

}  // namespace sluice
