// SPDX-License-Identifier: BSD-2-Clause
// RocksStore::Database is one open RocksDB: how it is opened, tuned, upgraded and closed, and what
// its codes mean. Only RocksStore's sources include this.
//
// Ownership: it owns the database and RocksDB's threads. Threads: every member may be called from
// any thread at once, but none may be under way when it is destroyed.
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

// The one place where RocksDB's codes become errnos.
int errno_of(const rocksdb::Status& status);

// Whether an open() that fails like this has met a broken database, as opposed to a machine that is
// full, read-only or out of something.
bool is_broken(int code);

template <std::size_t kSize>
rocksdb::Slice slice(const std::array<char, kSize>& bytes) {
  return {bytes.data(), kSize};
}

// The column families, in the order in which they are opened.
enum class Family : std::size_t { Default, Heat, Intent, Receipt, Ghost, Config, Times };

// An open RocksDB with its handles, closed in the order that it wants.
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
  // Opens what is at `home`, or makes it. Fails as RocksStore::open() does, and with a code that
  // is_broken() knows if what is there cannot be used.
  static Result<std::unique_ptr<Database>> open(const StoreDirectory& home,
                                                std::chrono::seconds half_life, OpenReport& report);

  rocksdb::ColumnFamilyHandle* family(Family which) const {
    return handle_.handles[static_cast<std::size_t>(which)];
  }

  rocksdb::Status write(Durability durability, rocksdb::WriteBatch& batch);
  rocksdb::Status read(Family from, const rocksdb::Slice& key, std::string& value) const;

  // For a walk over many records of `from`, as they are now: an iterator is a snapshot. What it
  // reads does not push anything out of the cache.
  std::unique_ptr<rocksdb::Iterator> iterator(Family from) const;

  // Every intent, oldest first; on failure `reason` has RocksDB's words.
  Result<std::vector<StoredIntent>> intents(std::string& reason) const;

  // The highest number that is a key of `from`; 0 if there is none.
  Result<std::uint64_t> last_key(Family from, std::string& reason) const;

 private:
  Database() = default;

  // Brings a database of schema `found` (0: just made) to kSchemaVersion. A step from version n to
  // n + 1 belongs before the version is written, and must bear being run again after a crash.
  Result<void> upgrade(std::uint32_t found, std::string& reason);

  RocksHandle handle_;
};

}  // namespace sluice
