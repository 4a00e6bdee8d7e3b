// SPDX-License-Identifier: BSD-2-Clause
// Damage to a database and to its disk, and the recovery from it.
#include <sys/mount.h>

#include <functional>

#include "tests/support/wait.hpp"
#include "tests/unit/metadata/rocks_stores.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using namespace test::rocks;

// The ways in which a database can be damaged.
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

TEST_P(BrokenRocksStoreTest, IsMovedAsideAndReplacedByAnEmptyOne) {
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

TEST_F(RocksStoreTest, ATornLogLosesOnlyItsTail) {
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

TEST_F(RocksStoreTest, ADatabaseDamagedInUseIsReplacedAndItsIntentsAreKept) {
  std::vector<std::pair<InodeId, Heat>> deltas;
  for (std::uint64_t i = 1; i <= 10'000; ++i) deltas.push_back({InodeId{i}, {1, 100, 1, 0}});
  { ASSERT_TRUE(must_open(path_)->add_heat(deltas)); }
  auto store = must_open(path_);
  const std::uint64_t sequence = *store->begin_intents({"in flight"});
  each(files(path_, "", ".sst"), [](const std::string& file) {
    // The middle of the file: open() reads the end, the next compaction reads the middle.
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

// A small filesystem under the database, which can be full or read-only. Needs root.
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
  // Uses up the free space.
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

TEST_F(RocksStoreTest, AReadOnlyDiskFailsOpenWithErofs) {
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

TEST_F(RocksStoreTest, AFullDiskFailsOpenWithEnospcAndIsNotDamage) {
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

TEST_F(RocksStoreTest, WritesWorkAgainAfterAFullDiskHasRoom) {
  SmallDisk disk(dir_.make_dir("disk"));
  if (!disk) GTEST_SKIP() << "cannot mount a tmpfs";
  auto store = must_open(dir_ / "disk/metadata");
  ASSERT_TRUE(store->begin_intents({"before"}));
  disk.fill_up();
  Result<std::uint64_t> refused = 0;
  for (int i = 0; i < 100 && refused; ++i)
    refused = store->begin_intents({std::string(100'000, 'x')});
  EXPECT_TRUE(failed_with(refused, ENOSPC));
  disk.make_room();

  // RocksDB checks for free space every five seconds.
  EXPECT_TRUE(test::eventually([&] { return store->begin_intents({"after"}).has_value(); },
                               std::chrono::seconds(30)));

  EXPECT_EQ(store->intents()->back().bytes, "after");
  EXPECT_TRUE(moved_aside(dir_ / "disk/metadata").empty());
}

}  // namespace
}  // namespace sluice
