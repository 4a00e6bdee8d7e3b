// SPDX-License-Identifier: BSD-2-Clause
// Shared by the tests of RocksStore: a database, and direct access to its files.
#pragma once

#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>

#include "metadata/rocks_store.hpp"
#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test::rocks {

inline constexpr InodeId kFile{7};
inline constexpr std::chrono::seconds kNever{0};

inline std::string text(const auto& bytes) { return {bytes.data(), bytes.size()}; }

// Opens a store or throws.
inline std::unique_ptr<RocksStore> must_open(const std::string& path,
                                             std::chrono::seconds half_life = kNever) {
  auto store = RocksStore::open(path, half_life);
  if (!store) throw std::runtime_error(store.error().operation);
  return *std::move(store);
}

inline Receipt receipt_at(std::int64_t time) {
  Receipt receipt;
  receipt.time = time;
  return receipt;
}

// The databases that were moved aside from `path`.
inline std::vector<std::string> moved_aside(const std::string& path) {
  std::vector<std::string> found;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
    if (entry.path().string().starts_with(path + ".broken-")) found.push_back(entry.path());
  }
  return found;
}

// The files of the database at `path` whose names begin and end like this.
inline std::vector<std::string> files(const std::string& path, const std::string& begin,
                                      const std::string& end) {
  std::vector<std::string> found;
  for (const std::string& name : names_in(path)) {
    if (name.starts_with(begin) && name.ends_with(end)) found.push_back(path + "/" + name);
  }
  return found;
}

// Opens the database without RocksStore and calls `use(db, handle)` with one of its families.
inline void open_raw(const std::string& path, const std::string& family, const auto& use) {
  std::vector<std::string> names;
  ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, path, &names).ok());
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.push_back({name, {}});
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open({}, path, families, &handles, &raw).ok());
  std::unique_ptr<rocksdb::DB> db(raw);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(names[i] != family || use(*db, handles[i]).ok());
    EXPECT_TRUE(db->DestroyColumnFamilyHandle(handles[i]).ok());
  }
}

// Writes directly into the database, as another version of Sluice would.
inline void put_raw(const std::string& path, const std::string& family, const std::string& key,
                    const std::string& value) {
  open_raw(path, family, [&](rocksdb::DB& db, rocksdb::ColumnFamilyHandle* handle) {
    return db.Put({}, handle, key, value);
  });
}

class RocksStoreTest : public testing::Test {
 protected:
  TempDir dir_;
  const std::string path_ = dir_ / "metadata";
};

}  // namespace sluice::test::rocks
