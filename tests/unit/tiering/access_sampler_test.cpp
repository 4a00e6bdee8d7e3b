// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/access_sampler.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

class AccessSamplerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto created = AccessSampler::create();
    if (!created) GTEST_SKIP() << "fanotify: errno " << created.error().code;
    sampler_ = *std::move(created);
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::string path = dir_ / ("f" + std::to_string(i));
      test::write_file(path, "content");
      files_.emplace_back(InodeId{i},
                          std::make_shared<UniqueFd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
    }
    sampler_->watch(files_);
  }

  void read(std::uint64_t i) const {
    char byte = 0;
    ASSERT_EQ(::pread(files_[i].second->get(), &byte, 1, 0), 1);
  }
  std::vector<InodeId> used() const {
    auto ids = sampler_->used();
    std::ranges::sort(ids);
    return ids;
  }

  test::TempDir dir_;
  std::unique_ptr<AccessSampler> sampler_;
  std::vector<std::pair<InodeId, SharedFd>> files_;
};

TEST_F(AccessSamplerTest, ReportsEachUsedFileOncePerSample) {
  for (int i = 0; i < 3; ++i) {
    for (const std::uint64_t file : {1, 2, 5, 7}) read(file);
  }
  EXPECT_EQ(used(), (std::vector<InodeId>{InodeId{1}, InodeId{2}, InodeId{5}, InodeId{7}}));
  read(1);
  EXPECT_TRUE(used().empty()) << "twice in one sample";
  sampler_->watch(files_);
  read(1);
  EXPECT_EQ(used(), std::vector<InodeId>{InodeId{1}});
}

TEST_F(AccessSamplerTest, DoesNotReportUnusedOrUnwatchedFiles) {
  EXPECT_TRUE(used().empty());
  sampler_->watch({files_[0]});
  read(3);
  EXPECT_TRUE(used().empty());
}

TEST_F(AccessSamplerTest, KeepsNoFileOpen) {
  const std::weak_ptr<const UniqueFd> fd = files_[4].second;
  files_.erase(files_.begin() + 4);
  EXPECT_TRUE(fd.expired());
  EXPECT_TRUE(used().empty());
}

}  // namespace
}  // namespace sluice
