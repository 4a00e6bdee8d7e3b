// SPDX-License-Identifier: BSD-2-Clause
// What RocksStore adds to Store: the disk, what may become of it, and the way back.
#include "metadata/rocks_store.hpp"

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/mount.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "metadata/codec.hpp"
#include "metadata/decay.hpp"
#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr InodeId kFile{7};
constexpr seconds kNever{0};

std::string text(const auto& bytes) { return {bytes.data(), bytes.size()}; }

// Opens or throws: for tests of what comes after.
std::unique_ptr<RocksStore> must_open(const std::string& path, seconds half_life = kNever) {
  auto store = RocksStore::open(path, half_life);
  if (!store) throw std::runtime_error(store.error().operation);
  return *std::move(store);
}

Receipt receipt_at(std::int64_t time) {
  Receipt receipt;
  receipt.time = time;
  return receipt;
}

// The databases that were moved aside from `path`.
std::vector<std::string> moved_aside(const std::string& path) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path())) {
    if (entry.path().string().starts_with(path + ".broken-")) found.push_back(entry.path());
  }
  return found;
}

// Files of the database at `path` whose name begins and ends like this.
std::vector<std::string> files(const std::string& path, const std::string& begin,
                               const std::string& end) {
  std::vector<std::string> found;
  for (const std::string& name : test::names_in(path)) {
    if (name.starts_with(begin) && name.ends_with(end)) found.push_back(path + "/" + name);
  }
  return found;
}

// Writes straight into the database, as another version of Sluice would.
void put_raw(const std::string& path, const std::string& family, const std::string& key,
             const std::string& value) {
  std::vector<std::string> names;
  ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, path, &names).ok());
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.push_back({name, {}});
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open({}, path, families, &handles, &raw).ok());
  std::unique_ptr<rocksdb::DB> db(raw);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(names[i] != family || db->Put({}, handles[i], key, value).ok());
    EXPECT_TRUE(db->DestroyColumnFamilyHandle(handles[i]).ok());
  }
}

class RocksStoreTest : public testing::Test {
 protected:
  test::TempDir dir_;
  const std::string path_ = dir_ / "metadata";
};

TEST_F(RocksStoreTest, WhatWasStoredIsThereAfterReopening) {
  for (std::uint64_t round = 1; round <= 3; ++round) {
    auto store = must_open(path_);
    ASSERT_TRUE(store->add_heat({{kFile, {1, 100, 1, 10}}}));
    EXPECT_EQ(store->heat(kFile)->gpu_bytes, round * 10);
  }
  EXPECT_EQ(*must_open(path_)->heat(kFile), (Heat{3, 100, 3, 30}));
}

TEST_F(RocksStoreTest, ReportsNothingOfAHealthyDatabase) {
  RocksStore::OpenReport report;
  ASSERT_TRUE(RocksStore::open(path_, kNever, &report));
  EXPECT_EQ(report.schema_found, 0u);
  ASSERT_TRUE(RocksStore::open(path_, kNever, &report));
  EXPECT_EQ(report.schema_found, RocksStore::kSchemaVersion);
  EXPECT_EQ(report.moved_aside_to, "");
  EXPECT_EQ(report.reason, "");
}

TEST_F(RocksStoreTest, IntentsSurviveReopeningInOrderAndTheSequenceGoesOn) {
  std::uint64_t last = 0;
  {
    auto store = must_open(path_);
    const std::uint64_t cleared = *store->begin_intents({"cleared"});
    for (int i = 0; i < 300; ++i) last = *store->begin_intents({std::to_string(i)});
    ASSERT_TRUE(store->clear_intents({cleared}));
  }
  auto store = must_open(path_);
  auto intents = store->intents();
  ASSERT_TRUE(intents);
  ASSERT_EQ(intents->size(), 300u);
  for (int i = 0; i < 300; ++i) EXPECT_EQ((*intents)[i].bytes, std::to_string(i));
  EXPECT_EQ(*store->begin_intents({"next"}), last + 1);
}

TEST_F(RocksStoreTest, AnIntentBegunBeforeSigkillIsFoundAfterIt) {
  // The child is this test run anew (RocksDB's threads do not survive a fork): it learns by the
  // environment where the parent looks.
  constexpr const char* kVariable = "SLUICE_TEST_KILLED_STORE";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (!std::getenv(kVariable)) ::setenv(kVariable, path_.c_str(), 1);
  EXPECT_EXIT(
      {
        fs::remove_all(dir_.path());  // the child's own, which it will not live to remove
        auto store = must_open(std::getenv(kVariable));
        if (store->begin_intents({"rename a b"})) ::raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  ::unsetenv(kVariable);

  auto intents = must_open(path_)->intents();
  ASSERT_TRUE(intents);
  ASSERT_EQ(intents->size(), 1u);
  EXPECT_EQ(intents->front().bytes, "rename a b");
  EXPECT_TRUE(moved_aside(path_).empty());
}

TEST_F(RocksStoreTest, ASecondOpenIsBusyAndHarmsNothing) {
  auto store = must_open(path_);
  ASSERT_TRUE(store->begin_intents({"mine"}));

  RocksStore::OpenReport report;
  EXPECT_TRUE(failed_with(RocksStore::open(path_, kNever, &report), EBUSY));

  EXPECT_EQ(report.moved_aside_to, "");
  EXPECT_TRUE(moved_aside(path_).empty());
  EXPECT_EQ(store->intents()->size(), 1u);
  EXPECT_TRUE(store->begin_intents({"mine, too"}));
}

TEST_F(RocksStoreTest, ANewerSchemaIsRefusedAndLeftAsItIs) {
  must_open(path_);
  put_raw(path_, "config", "schema", text(encode_schema(RocksStore::kSchemaVersion + 1)));

  RocksStore::OpenReport report;
  EXPECT_TRUE(failed_with(RocksStore::open(path_, kNever, &report), EPROTONOSUPPORT));

  EXPECT_EQ(report.schema_found, RocksStore::kSchemaVersion + 1);
  EXPECT_TRUE(moved_aside(path_).empty());
  put_raw(path_, "config", "schema", text(encode_schema(RocksStore::kSchemaVersion)));
  EXPECT_TRUE(RocksStore::open(path_, kNever));
}

TEST_F(RocksStoreTest, AHeatRecordThatCannotBeReadIsAnErrorUntilTheNextAccess) {
  must_open(path_);
  put_raw(path_, "heat", text(encode_key(to_number(kFile))), "\x7f???");
  auto store = must_open(path_);
  EXPECT_TRUE(failed_with(store->heat(kFile), EUCLEAN));
  ASSERT_TRUE(store->add_heat({{kFile, {1, 100, 1, 0}}}));
  EXPECT_EQ(*store->heat(kFile), (Heat{1, 100, 1, 0}));
}

TEST_F(RocksStoreTest, ReceiptsAndGhostsSurviveReopeningAndReceiptsGoOn) {
  {
    auto store = must_open(path_);
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(store->add_receipts({receipt_at(i)}));
    ASSERT_TRUE(store->add_ghosts({{kFile, {100, 3}}}));
  }
  auto store = must_open(path_);
  ASSERT_TRUE(store->add_receipts({receipt_at(300)}));
  const auto receipts = store->receipts(SIZE_MAX);
  ASSERT_EQ(receipts->size(), 301u);
  for (int i = 0; i <= 300; ++i) EXPECT_EQ((*receipts)[i].time, 300 - i);
  std::size_t ghosts = 0;
  ASSERT_TRUE(store->each_ghost([&](InodeId id, const Ghost& ghost) {
    EXPECT_EQ(id, kFile);
    EXPECT_EQ(ghost, (Ghost{100, 3}));
    return ++ghosts > 0;
  }));
  EXPECT_EQ(ghosts, 1u);
}

TEST_F(RocksStoreTest, ADatabaseFromBeforeReceiptsAndGhostsIsUsedAsItIs) {
  // Such a database has the two families, empty; opening it for the first time makes just that.
  must_open(path_);
  RocksStore::OpenReport report;
  auto store = RocksStore::open(path_, kNever, &report);
  ASSERT_TRUE(store);
  EXPECT_EQ(report.schema_found, 1u);
  EXPECT_EQ(report.moved_aside_to, "");
  EXPECT_TRUE((*store)->receipts(1)->empty());
  EXPECT_TRUE((*store)->add_receipts({receipt_at(1)}));
  EXPECT_TRUE((*store)->add_ghosts({{kFile, {}}}));
}

TEST_F(RocksStoreTest, RecordsThatCannotBeDecodedAreLeftOutAndCounted) {
  {
    auto store = must_open(path_);
    ASSERT_TRUE(store->add_receipts({receipt_at(1), receipt_at(2)}));
    ASSERT_TRUE(store->add_ghosts({{InodeId{1}, {100, 1}}, {InodeId{3}, {300, 3}}}));
  }
  put_raw(path_, "heat", text(encode_key(1)), text(encode_heat({1, 1, 1, 1})));
  put_raw(path_, "heat", text(encode_key(2)), "\x7f???");
  put_raw(path_, "heat", text(encode_key(3)), text(encode_heat({3, 3, 3, 3})));
  put_raw(path_, "heat", "odd", text(encode_heat({3, 3, 3, 3})));
  put_raw(path_, "ghost", text(encode_key(2)), "");
  put_raw(path_, "receipt", text(encode_key(2)), "\x02 from the future");
  put_raw(path_, "receipt", "\xff odd", "");

  auto store = must_open(path_);

  EXPECT_TRUE(moved_aside(path_).empty());
  EXPECT_EQ(store->skipped(), 0u);
  std::vector<std::uint64_t> ids;
  ASSERT_TRUE(store->each_heat([&](InodeId id, const Heat&) {
    ids.push_back(to_number(id));
    return true;
  }));
  ASSERT_TRUE(store->each_ghost([&](InodeId id, const Ghost&) {
    ids.push_back(to_number(id));
    return true;
  }));
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{1, 3, 1, 3}));
  EXPECT_EQ(store->skipped(), 3u);
  EXPECT_EQ(*store->receipts(SIZE_MAX), (std::vector<Receipt>{receipt_at(1)}));
  EXPECT_EQ(store->skipped(), 5u);
  // The odd key does not lead the numbers astray.
  ASSERT_TRUE(store->add_receipts({receipt_at(3)}));
  EXPECT_EQ(store->receipts(1)->front().time, 3);
}

TEST_F(RocksStoreTest, ReceiptsThatAreNotKeptTakeNoSpaceForLong) {
  std::vector<Receipt> batch(1000);
  for (Receipt& receipt : batch) receipt.path = std::string(100, 'p');
  {
    auto store = must_open(path_);
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(store->add_receipts(batch));
  }
  EXPECT_EQ(must_open(path_)->receipts(SIZE_MAX)->size(), Store::kMostReceipts);
  std::uintmax_t bytes = 0;
  for (const std::string& file : files(path_, "", ".sst")) bytes += fs::file_size(file);
  EXPECT_LT(bytes, 3 * Store::kMostReceipts * encode_receipt(batch[0]).size());
}

// Every way in which a database has been seen to break, done to a filled one.
struct Damage {
  const char* name;
  std::function<void(const std::string& path)> inflict;
};

void each(const std::vector<std::string>& paths, const std::function<void(std::string)>& act) {
  ASSERT_FALSE(paths.empty());
  for (const std::string& path : paths) act(path);
}

const Damage kDamages[] = {
    {"NoCurrent", [](const std::string& p) { fs::remove(p + "/CURRENT"); }},
    {"EmptyCurrent", [](const std::string& p) { fs::resize_file(p + "/CURRENT", 0); }},
    {"GarbageCurrent", [](const std::string& p) { test::write_file(p + "/CURRENT", "\xff\xff"); }},
    {"CurrentNamesAMissingManifest",
     [](const std::string& p) { test::write_file(p + "/CURRENT", "MANIFEST-999999\n"); }},
    {"CurrentIsADirectory",
     [](const std::string& p) {
       fs::remove(p + "/CURRENT");
       fs::create_directory(p + "/CURRENT");
     }},
    {"NoManifest",
     [](const std::string& p) {
       each(files(p, "MANIFEST-", ""), [](const std::string& f) { fs::remove(f); });
     }},
    {"EmptyManifest",
     [](const std::string& p) {
       each(files(p, "MANIFEST-", ""), [](const std::string& f) { fs::resize_file(f, 0); });
     }},
    {"TornManifest",
     [](const std::string& p) {
       each(files(p, "MANIFEST-", ""), [](const std::string& f) { fs::resize_file(f, 20); });
     }},
    {"GarbageManifest",
     [](const std::string& p) {
       each(files(p, "MANIFEST-", ""),
            [](const std::string& f) { test::write_file(f, test::pattern(4096, 1)); });
     }},
    {"NoTables",
     [](const std::string& p) {
       each(files(p, "", ".sst"), [](const std::string& f) { fs::remove(f); });
     }},
    {"EmptyTables",
     [](const std::string& p) {
       each(files(p, "", ".sst"), [](const std::string& f) { fs::resize_file(f, 0); });
     }},
    {"TornTables",
     [](const std::string& p) {
       each(files(p, "", ".sst"), [](const std::string& f) { fs::resize_file(f, 100); });
     }},
    {"GarbageTables",
     [](const std::string& p) {
       each(files(p, "", ".sst"),
            [](const std::string& f) { test::write_file(f, test::pattern(fs::file_size(f), 1)); });
     }},
    {"OnlyALogIsLeft",
     [](const std::string& p) {
       for (const std::string& name : test::names_in(p)) {
         if (!name.ends_with(".log")) fs::remove(p + "/" + name);
       }
     }},
    {"UnknownSchemaEncoding",
     [](const std::string& p) { put_raw(p, "config", "schema", "version two"); }},
    {"NoSchemaEver",
     [](const std::string& p) {
       fs::remove_all(p);
       rocksdb::Options options;
       options.create_if_missing = true;
       rocksdb::DB* raw = nullptr;
       ASSERT_TRUE(rocksdb::DB::Open(options, p, &raw).ok());
       delete raw;
     }},
    {"GarbageIntentKey", [](const std::string& p) { put_raw(p, "intent", "odd", "bytes"); }},
};

class BrokenRocksStoreTest : public RocksStoreTest, public testing::WithParamInterface<Damage> {};

TEST_P(BrokenRocksStoreTest, IsMovedAsideAndAnEmptyOneWorks) {
  {
    auto store = must_open(path_);
    // No heat: put_raw() has no merge operator to read it with.
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(store->begin_intents({"left over"}));
  }
  must_open(path_);  // turns the log into a table
  GetParam().inflict(path_);

  RocksStore::OpenReport report;
  {
    auto store = RocksStore::open(path_, kNever, &report);

    ASSERT_TRUE(store) << store.error().operation << ' ' << store.error().code;
    EXPECT_EQ(moved_aside(path_), std::vector{report.moved_aside_to});
    EXPECT_NE(report.reason, "");
    EXPECT_TRUE((*store)->intents()->empty());
    EXPECT_TRUE((*store)->add_heat({{kFile, {1, 100, 1, 0}}}));
    EXPECT_EQ(*(*store)->begin_intents({"new"}), 1u);
  }
  auto again = RocksStore::open(path_, kNever, &report);
  ASSERT_TRUE(again);
  EXPECT_EQ(report.moved_aside_to, "");
  EXPECT_EQ((*again)->heat(kFile)->opens, 1u);
  EXPECT_EQ((*again)->intents()->size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Each, BrokenRocksStoreTest, testing::ValuesIn(kDamages),
                         [](const auto& damage) { return damage.param.name; });

TEST_F(RocksStoreTest, ATornLogCostsOnlyItsTail) {
  {
    auto store = must_open(path_);
    ASSERT_TRUE(store->begin_intents({"first"}));
    ASSERT_TRUE(store->add_heat({{kFile, {1, 100, 1, 0}}}));
  }
  std::vector<std::string> logs = files(path_, "", ".log");
  ASSERT_FALSE(logs.empty());
  fs::resize_file(logs.back(), fs::file_size(logs.back()) - 1);

  auto store = must_open(path_);

  EXPECT_TRUE(moved_aside(path_).empty());
  EXPECT_EQ(store->intents()->size(), 1u);
  EXPECT_EQ(*store->heat(kFile), Heat{});
}

TEST_F(RocksStoreTest, ADatabaseThatBreaksInUseIsReplacedAndItsIntentsKept) {
  std::vector<std::pair<InodeId, Heat>> deltas;
  for (std::uint64_t i = 1; i <= 10'000; ++i) deltas.push_back({InodeId{i}, {1, 100, 1, 0}});
  { ASSERT_TRUE(must_open(path_)->add_heat(deltas)); }
  auto store = must_open(path_);
  const std::uint64_t sequence = *store->begin_intents({"in flight"});
  each(files(path_, "", ".sst"), [](const std::string& file) {
    // The middle of it: the end is read at open, the middle by the next compaction.
    std::string bytes = test::read_file(file);
    for (std::size_t i = 0; i < bytes.size() / 2; ++i) bytes[i] ^= 0x55;
    test::write_file(file, bytes);
  });

  for (int round = 0; round < 200 && moved_aside(path_).empty(); ++round) {
    ASSERT_TRUE(store->add_heat(deltas));
  }

  EXPECT_EQ(moved_aside(path_).size(), 1u);
  ASSERT_EQ(store->intents()->size(), 1u);
  EXPECT_EQ(store->intents()->front().bytes, "in flight");
  EXPECT_EQ(*store->begin_intents({"next"}), sequence + 1);
  EXPECT_GE(store->heat(kFile)->opens, 1u);
}

TEST_F(RocksStoreTest, MergesInTheDatabaseDecayLikeTheSumInMemory) {
  constexpr seconds kHalfLife(3600);
  constexpr std::uint64_t kFiles = 20;
  std::mt19937_64 random(4);
  std::vector<Heat> expected(kFiles);
  for (int reopened = 0; reopened < 5; ++reopened) {
    auto store = must_open(path_, kHalfLife);
    for (int batch = 0; batch < 50; ++batch) {
      std::vector<std::pair<InodeId, Heat>> deltas;
      for (int i = 0; i < 10; ++i) {
        const std::uint64_t file = random() % kFiles;
        const Heat delta{static_cast<double>(random() % 100),
                         static_cast<std::int64_t>(random() % 100'000), random() % 10,
                         random() % 1'000'000};
        deltas.push_back({InodeId{file}, delta});
        expected[file] = sum(expected[file], delta, kHalfLife);
      }
      ASSERT_TRUE(store->add_heat(deltas));
    }
    for (std::uint64_t file = 0; file < kFiles; ++file) {
      auto found = store->heat(InodeId{file});
      ASSERT_TRUE(found);
      EXPECT_NEAR(found->score, expected[file].score, 1e-9 * expected[file].score);
      EXPECT_EQ(found->last_access, expected[file].last_access);
      EXPECT_EQ(found->opens, expected[file].opens);
      EXPECT_EQ(found->gpu_bytes, expected[file].gpu_bytes);
    }
  }
}

TEST_F(RocksStoreTest, TheHeatOfAFileTakesUnderAHundredBytesOnDisk) {
  constexpr std::uint64_t kFiles = 200'000;  // ten million must fit in 1 GB
  {
    auto store = must_open(path_);
    for (std::uint64_t first = 0; first < kFiles; first += 10'000) {
      std::vector<std::pair<InodeId, Heat>> deltas;
      for (std::uint64_t i = 0; i < 10'000; ++i) {
        deltas.push_back({InodeId{first + i}, {1.5, 1'700'000'000, 1, 4096}});
      }
      ASSERT_TRUE(store->add_heat(deltas));
    }
  }
  must_open(path_);  // the log becomes a table
  std::uintmax_t bytes = 0;
  for (const std::string& file : files(path_, "", ".sst")) bytes += fs::file_size(file);
  EXPECT_GT(bytes, kFiles * 20);
  EXPECT_LT(bytes, kFiles * 100);
}

// A small disk under the database, for what only a disk can do. Needs root.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=32m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  explicit operator bool() const { return mounted_; }
  void make_read_only() {
    ASSERT_EQ(::mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  }
  // Takes all the space that is left.
  void fill_up() {
    try {
      test::write_file(path_ + "/ballast", std::string(64 << 20, 'x'));
    } catch (const std::system_error&) {
    }
    ASSERT_EQ(fs::space(path_).available, 0u);
  }
  void make_room() { fs::remove(path_ + "/ballast"); }

 private:
  std::string path_;
  bool mounted_;
};

TEST_F(RocksStoreTest, AReadOnlyDiskIsErofs) {
  SmallDisk disk(dir_.make_dir("disk"));
  if (!disk) GTEST_SKIP() << "cannot mount a tmpfs";
  const std::string path = dir_ / "disk/metadata";
  must_open(path);
  disk.make_read_only();
  RocksStore::OpenReport report;
  EXPECT_TRUE(failed_with(RocksStore::open(path, kNever, &report), EROFS)) << report.reason;
  EXPECT_TRUE(failed_with(RocksStore::open(dir_ / "disk/other", kNever), EROFS));
  EXPECT_TRUE(moved_aside(path).empty());
}

TEST_F(RocksStoreTest, AFullDiskIsEnospcAtOpenAndNotABrokenDatabase) {
  SmallDisk disk(dir_.make_dir("disk"));
  if (!disk) GTEST_SKIP() << "cannot mount a tmpfs";
  const std::string path = dir_ / "disk/metadata";
  { ASSERT_TRUE(must_open(path)->begin_intents({"kept"})); }
  disk.fill_up();
  RocksStore::OpenReport report;
  EXPECT_TRUE(failed_with(RocksStore::open(path, kNever, &report), ENOSPC)) << report.reason;
  EXPECT_TRUE(moved_aside(path).empty());
  disk.make_room();
  EXPECT_EQ(must_open(path)->intents()->size(), 1u);
}

TEST_F(RocksStoreTest, AfterAFullDiskWritesWorkAgainOnceThereIsRoom) {
  SmallDisk disk(dir_.make_dir("disk"));
  if (!disk) GTEST_SKIP() << "cannot mount a tmpfs";
  auto store = must_open(dir_ / "disk/metadata");
  ASSERT_TRUE(store->begin_intents({"before"}));
  disk.fill_up();
  Result<std::uint64_t> refused = 0;
  for (int i = 0; i < 100 && refused; ++i) refused = store->begin_intents({std::string(100'000, 'x')});
  EXPECT_TRUE(failed_with(refused, ENOSPC));
  disk.make_room();

  // RocksDB looks for space every five seconds.
  EXPECT_TRUE(test::eventually([&] { return store->begin_intents({"after"}).has_value(); },
                               std::chrono::seconds(30)));

  EXPECT_EQ(store->intents()->back().bytes, "after");
  EXPECT_TRUE(moved_aside(dir_ / "disk/metadata").empty());
}

}  // namespace
}  // namespace sluice
