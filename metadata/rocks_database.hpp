// SPDX-License-Identifier: BSD-2-Clause
// RocksStore::Database is one open RocksDB database. It knows how the database is opened, tuned,
// upgraded and closed, and translates RocksDB's error codes. Only RocksStore's sources include
// this.
//
// Ownership: it owns the database and RocksDB's threads.
// Threads: every member may be called from any thread at once, but no call may be in progress when
// it is destroyed.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "metadata/rocks_store.hpp"
#include "metadata/store_directory.hpp"

namespace sluice {

// The only place where RocksDB's codes are translated to errnos.
int errno_of(const rocksdb::Status& status);

// Whether an open() that failed with this code found a broken database, and not a disk that is full
// or read-only or a lack of resources.
bool is_broken(int code);

template <std::size_t kSize>
rocksdb::Slice slice(const std::array<char, kSize>& bytes) {
  return {bytes.data(), kSize};
}

// The column families, in the order in which they are opened.
enum class Family : std::size_t { Default, Heat, Intent, Receipt, Ghost, Config, Times, Request };

// An open RocksDB with its handles; closes them in the required order.
class RocksHandle {
 public:
  RocksHandle() = default;
  RocksHandle(const RocksHandle&) = delete;
  RocksHandle& operator=(const RocksHandle&) = delete;
  ~RocksHandle();

  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
};

class RocksStore::Database {
 public:
  // Opens the database in `home`, or creates it. Fails as RocksStore::open() does, and with a code
  // for which is_broken() is true if the existing database cannot be used.
  static Result<std::unique_ptr<Database>> open(const StoreDirectory& home,
                                                std::chrono::seconds half_life, OpenReport& report);

  rocksdb::ColumnFamilyHandle* family(Family which) const {
    return handle_.handles[static_cast<std::size_t>(which)];
  }

  rocksdb::Status write(Durability durability, rocksdb::WriteBatch& batch);
  rocksdb::Status read(Family from, const rocksdb::Slice& key, std::string& value) const;

  // For a walk over many records of `from`. An iterator is a snapshot, and its reads do not evict
  // anything from the cache.
  std::unique_ptr<rocksdb::Iterator> iterator(Family from) const;

  // Every intent, oldest first. On failure, `reason` is RocksDB's message.
  Result<std::vector<StoredIntent>> intents(std::string& reason) const;

  // The highest number among the keys of `from`; 0 if there are none.
  Result<std::uint64_t> last_key(Family from, std::string& reason) const;

 private:
  Database() = default;

  Result<void> write_schema(std::string& reason);

  RocksHandle handle_;
};

}  // namespace sluice
