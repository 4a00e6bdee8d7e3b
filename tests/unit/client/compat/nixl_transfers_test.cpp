// SPDX-License-Identifier: BSD-2-Clause
// The transfers of the plugin for NIXL, on ordinary files. tests/python/package/test_nixl.py tests
// the plugin in NIXL.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "client/compat/nixl/transfers.hpp"
#include "tests/unit/client/client.hpp"

namespace sluice::plugin {
namespace {

constexpr std::size_t kBlock = 700;
constexpr std::size_t kBlocks = 9000;  // more than a ring has

class NixlTransfersTest : public ::testing::Test {
 protected:
  NixlTransfersTest() : content_(test::random_bytes(kBlock * kBlocks)) {
    path_ = dir_.make_file("file", content_);
  }

  std::shared_ptr<Region> open() const {
    auto region = std::make_shared<Region>();
    region->fd.reset(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(sluice_open_fd(region->fd.get(), &region->file), 0) << sluice_error();
    return region;
  }

  static std::shared_ptr<Region> region_of(std::string& memory) {
    auto region = std::make_shared<Region>();
    region->address = reinterpret_cast<std::uintptr_t>(memory.data());
    EXPECT_EQ(sluice_buffer_register(memory.data(), memory.size(), &region->buffer), 0);
    return region;
  }

  // The blocks of the file, last to first, go to the memory from the first to the last place.
  static std::unique_ptr<Transfer> reversed(const std::shared_ptr<Region>& file,
                                            const std::shared_ptr<Region>& memory, bool is_read) {
    auto transfer = std::make_unique<Transfer>();
    transfer->is_read = is_read;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      transfer->blocks.push_back(
          {transfer.get(), file, memory, i * kBlock, (kBlocks - 1 - i) * kBlock, kBlock});
    }
    return transfer;
  }

  std::string reversed_content() const {
    std::string out;
    for (std::size_t i = kBlocks; i-- > 0;) out += content_.substr(i * kBlock, kBlock);
    return out;
  }

  static int wait(Queue& queue, Transfer& transfer) {
    for (;;) {
      if (const auto result = queue.poll(transfer)) return *result;
    }
  }

  test::TempDir dir_;
  std::string content_, path_;
};

TEST_F(NixlTransfersTest, ReadsAndWritesMoreBlocksThanARingHas) {
  Queue queue;
  const auto file = open();
  std::string memory(content_.size(), '\0');
  const auto region = region_of(memory);
  const auto read = reversed(file, region, true);
  const auto write = reversed(file, region, false);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(queue.post(*read), 0);
    EXPECT_EQ(queue.post(*read), -EBUSY);
    ASSERT_EQ(wait(queue, *read), 0);
    EXPECT_EQ(memory, reversed_content());
  }
  memory = content_;
  ASSERT_EQ(queue.post(*write), 0);
  ASSERT_EQ(wait(queue, *write), 0);
  std::string written(content_.size(), '\0');
  ASSERT_EQ(::pread(file->fd.get(), written.data(), written.size(), 0),
            static_cast<ssize_t>(written.size()));
  EXPECT_EQ(written, reversed_content());
}

TEST_F(NixlTransfersTest, BlockThatTheFileEndsInsideOfIsAnError) {
  Queue queue;
  std::string memory(content_.size(), '\0');
  const auto transfer = reversed(open(), region_of(memory), true);
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(kBlock * kBlocks / 2 + 1)), 0);
  ASSERT_EQ(queue.post(*transfer), 0);
  EXPECT_EQ(wait(queue, *transfer), -ENODATA);
  EXPECT_EQ(transfer->in_queue.left, 0u);
}

TEST_F(NixlTransfersTest, CancelledTransferWritesNothingAfterwards) {
  Queue queue;
  std::string memory(content_.size(), '\0');
  const auto transfer = reversed(open(), region_of(memory), true);
  ASSERT_EQ(queue.post(*transfer), 0);
  queue.cancel(*transfer);
  std::fill(memory.begin(), memory.end(), 'x');
  std::this_thread::yield();
  EXPECT_EQ(memory, std::string(memory.size(), 'x'));
  EXPECT_EQ(queue.poll(*transfer), -ECANCELED);
}

TEST_F(NixlTransfersTest, ClosedRegionEndsItsTransfersAndNoOthers) {
  Queue queue;
  const auto file = open();
  std::string one(content_.size(), '\0'), other(content_.size(), '\0');
  const auto closed = region_of(one);
  const auto ends = reversed(file, closed, true);
  const auto stays = reversed(file, region_of(other), true);
  ASSERT_EQ(queue.post(*ends), 0);
  ASSERT_EQ(queue.post(*stays), 0);
  queue.close(*closed);
  EXPECT_EQ(wait(queue, *ends), -ENOENT);
  EXPECT_EQ(queue.post(*ends), -ENOENT);
  EXPECT_EQ(wait(queue, *stays), 0);
  EXPECT_EQ(other, reversed_content());
  queue.close(*file);  // the last file: the ring ends, and another one is made
  const auto again = reversed(open(), stays->blocks[0].memory, true);
  std::fill(other.begin(), other.end(), '\0');
  ASSERT_EQ(queue.post(*again), 0);
  EXPECT_EQ(wait(queue, *again), 0);
  EXPECT_EQ(other, reversed_content());
}

TEST_F(NixlTransfersTest, ThreadsDoNotDisturbEachOther) {
  Queue queue;
  const auto file = open();
  const auto work = [&] {
    std::string memory(content_.size(), '\0');
    const auto region = region_of(memory);
    for (int round = 0; round < 6; ++round) {
      const auto transfer = reversed(file, region, true);
      EXPECT_EQ(queue.post(*transfer), 0);
      if (round % 3 == 2) {
        queue.cancel(*transfer);
      } else {
        EXPECT_EQ(wait(queue, *transfer), 0);
        EXPECT_EQ(memory, reversed_content());
      }
      std::fill(memory.begin(), memory.end(), '\0');
    }
    queue.close(*region);
  };
  std::jthread first(work), second(work), third(work);
}

}  // namespace
}  // namespace sluice::plugin
