// SPDX-License-Identifier: BSD-2-Clause
// Tests what RocksStore adds to Store: persistence.
#include "metadata/rocks_store.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "metadata/codec.hpp"
#include "metadata/decay.hpp"
#include "tests/unit/metadata/rocks_stores.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using namespace test::rocks;
using std::chrono::seconds;

TEST_F(RocksStoreTest, RecordsSurviveReopening) {
  for (std::uint64_t round = 1; round <= 3; ++round) {
    auto store = must_open(path_);
    ASSERT_TRUE(store->add_heat({{kFile, {1, 100, 1, 10}}}));
    EXPECT_EQ(store->heat(kFile)->gpu_bytes, round * 10);
  }
  EXPECT_EQ(*must_open(path_)->heat(kFile), (Heat{3, 100, 3, 30}));
}

TEST_F(RocksStoreTest, ReportIsEmptyForAHealthyDatabase) {
  RocksStore::OpenReport report;
  ASSERT_TRUE(RocksStore::open(path_, kNever, &report));
  EXPECT_EQ(report.schema_found, 0u);
  ASSERT_TRUE(RocksStore::open(path_, kNever, &report));
  EXPECT_EQ(report.schema_found, RocksStore::kSchemaVersion);
  EXPECT_EQ(report.moved_aside_to, "");
  EXPECT_EQ(report.reason, "");
}

TEST_F(RocksStoreTest, IntentsSurviveReopeningInOrderAndTheSequenceContinues) {
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

TEST_F(RocksStoreTest, AnIntentSurvivesSigkill) {
  // The child runs this test again as a new process (RocksDB's threads do not survive a fork). An
  // environment variable tells it the directory to use.
  constexpr const char* kVariable = "SLUICE_TEST_KILLED_STORE";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (!std::getenv(kVariable)) ::setenv(kVariable, path_.c_str(), 1);
  EXPECT_EXIT(
      {
        fs::remove_all(dir_.path());  // the child's own directory, which SIGKILL would leave behind
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

TEST_F(RocksStoreTest, ASecondOpenFailsWithEbusyAndDoesNoHarm) {
  auto store = must_open(path_);
  ASSERT_TRUE(store->begin_intents({"mine"}));

  RocksStore::OpenReport report;
  EXPECT_TRUE(failed_with(RocksStore::open(path_, kNever, &report), EBUSY));

  EXPECT_EQ(report.moved_aside_to, "");
  EXPECT_TRUE(moved_aside(path_).empty());
  EXPECT_EQ(store->intents()->size(), 1u);
  EXPECT_TRUE(store->begin_intents({"mine, too"}));
}

TEST_F(RocksStoreTest, AnotherSchemaIsRefusedAndNotChanged) {
  must_open(path_);
  for (const auto schema : {RocksStore::kSchemaVersion - 1, RocksStore::kSchemaVersion + 1}) {
    put_raw(path_, "config", "schema", text(encode_schema(schema)));

    RocksStore::OpenReport report;
    EXPECT_TRUE(failed_with(RocksStore::open(path_, kNever, &report), EPROTONOSUPPORT));

    EXPECT_EQ(report.schema_found, schema);
    EXPECT_TRUE(moved_aside(path_).empty());
  }
  put_raw(path_, "config", "schema", text(encode_schema(RocksStore::kSchemaVersion)));
  EXPECT_TRUE(RocksStore::open(path_, kNever));
}

TEST_F(RocksStoreTest, ADamagedHeatRecordIsAnErrorUntilTheNextAccess) {
  must_open(path_);
  put_raw(path_, "heat", text(encode_key(to_number(kFile))), "\x7f???");
  auto store = must_open(path_);
  EXPECT_TRUE(failed_with(store->heat(kFile), EUCLEAN));
  ASSERT_TRUE(store->add_heat({{kFile, {1, 100, 1, 0}}}));
  EXPECT_EQ(*store->heat(kFile), (Heat{1, 100, 1, 0}));
}

TEST_F(RocksStoreTest, ReceiptsAndGhostsSurviveReopeningAndTheSequenceContinues) {
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

TEST_F(RocksStoreTest, DamagedRecordsAreSkippedAndCounted) {
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
  // A key of wrong length does not disturb the numbering.
  ASSERT_TRUE(store->add_receipts({receipt_at(3)}));
  EXPECT_EQ(store->receipts(1)->front().time, 3);
}

TEST_F(RocksStoreTest, PrunedReceiptsFreeTheirSpace) {
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

}  // namespace
}  // namespace sluice
