// SPDX-License-Identifier: BSD-2-Clause
// The request budget. Round trips to the daemon are the cost of FUSE, so each operation has a
// maximum number of requests.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using Counts = std::map<std::string, long>;

Counts difference(const Counts& later, const Counts& earlier) {
  Counts out;
  for (const auto& [opcode, count] : later) {
    const auto before = earlier.find(opcode);
    const long grown = count - (before == earlier.end() ? 0 : before->second);
    if (grown != 0) out[opcode] = grown;
  }
  return out;
}

long of(const Counts& counts, const std::string& opcode) {
  const auto found = counts.find(opcode);
  return found == counts.end() ? 0 : found->second;
}

long open_files(const Counts& counts) {
  return of(counts, "OPEN") + of(counts, "CREATE") + of(counts, "TMPFILE") - of(counts, "RELEASE");
}

// The kernel drops the attributes of a directory when an entry changes (fuse_dir_changed), and
// sends a GETATTR for its next permission check. No reply can prevent that one GETATTR per
// operation.
Counts without_refreshes(Counts counts, long operations) {
  const auto found = counts.find("GETATTR");
  if (found != counts.end() && found->second <= operations) counts.erase(found);
  return counts;
}

class RequestsTest : public testing::Test {
 protected:
  static constexpr int kTimes = 1000;
  static constexpr std::size_t kBig = 1 << 20;

  void SetUp() override {
    if (!require_mounts("mount")) return;
    Pool pool{{}, base_ / "state", base_ / "mnt"};
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      pool.tiers.push_back(std::string(tier) + "=" + base_.make_dir(tier));
    }
    mount_ = std::make_unique<Mount>(pool);
    lstat_of(mount_->path());
  }

  std::string operator/(const std::string& name) const { return *mount_ / name; }

  // The requests that `work` causes, by opcode, without those that read the counts. FORGETs are not
  // counted. RELEASE is asynchronous: reads again until no more files are open than before.
  Counts cost(const std::function<void()>& work) {
    const Counts first = mount_->requests();
    const Counts before = mount_->requests();
    const Counts asking = difference(before, first);
    work();
    Counts after;
    int asked = 0;
    eventually([&] {
      after = mount_->requests();
      ++asked;
      return open_files(after) <= open_files(before);
    });
    Counts grown = difference(after, before);
    for (const auto& [opcode, count] : asking) grown[opcode] -= asked * count;
    for (const char* opcode : {"FORGET", "BATCH_FORGET", "INTERRUPT"}) grown.erase(opcode);
    std::erase_if(grown, [](const auto& entry) { return entry.second == 0; });
    return grown;
  }

  // The same for work that can be repeated and should send no requests: the minimum of three,
  // because another process may drop the kernel's caches meanwhile.
  Counts cost_when_known(const std::function<void()>& work) {
    Counts counts = cost(work);
    for (int again = 0; again < 2 && !counts.empty(); ++again) counts = cost(work);
    return counts;
  }

  // A closed file is released asynchronously. Until then a new open of it is served like the old
  // one.
  void wait_for_releases() const {
    EXPECT_TRUE(eventually([&] { return open_files(mount_->requests()) == 0; }));
  }

  bool passthrough() const {
    return mount_->status().at("features").at("passthrough").at("on").get<bool>();
  }

  TempDir base_;
  std::unique_ptr<Mount> mount_;
};

TEST_F(RequestsTest, ReadingTheCountsIsNotCounted) {
  EXPECT_EQ(cost([] {}), Counts{});
}

TEST_F(RequestsTest, CreatingAFileTakesLookupAndCreate) {
  const Counts counts = cost([&] {
    for (int i = 0; i < kTimes; ++i) {
      ::close(
          ::open((*this / ("f" + std::to_string(i))).c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644));
    }
  });
  EXPECT_EQ(without_refreshes(counts, kTimes),
            (Counts{{"LOOKUP", kTimes}, {"CREATE", kTimes}, {"RELEASE", kTimes}}));
}

TEST_F(RequestsTest, OpeningAndClosingAKnownFileTakesOpenAndRelease) {
  write_file(*this / "f", "hello");
  lstat_of(*this / "f");
  const Counts counts = cost([&] {
    for (int i = 0; i < kTimes; ++i) ::close(::open((*this / "f").c_str(), O_RDONLY));
  });
  EXPECT_EQ(counts, (Counts{{"OPEN", kTimes}, {"RELEASE", kTimes}}));
}

TEST_F(RequestsTest, OpeningAndClosingABigFileTakesOpenAndRelease) {
  write_file(*this / "f", pattern(kBig, 1));
  wait_for_releases();
  lstat_of(*this / "f");
  const Counts counts = cost([&] {
    for (int i = 0; i < kTimes; ++i) ::close(::open((*this / "f").c_str(), O_RDWR));
  });
  EXPECT_EQ(counts, (Counts{{"OPEN", kTimes}, {"RELEASE", kTimes}}));
}

TEST_F(RequestsTest, WritingABigFileThroughPassthroughSendsNoRequest) {
  if (!require("passthrough", passthrough(), "no passthrough here")) return;
  write_file(*this / "f", pattern(kBig, 1));
  wait_for_releases();
  const UniqueFd fd(::open((*this / "f").c_str(), O_RDWR | O_CLOEXEC));
  const std::string block = pattern(4096, 2);
  Counts counts = cost_when_known([&] {
    for (int i = 0; i < kTimes; ++i) {
      ASSERT_EQ(::pwrite(fd.get(), block.data(), block.size(), (i * 37 % 256) * 4096L), 4096);
    }
  });
  EXPECT_EQ(of(counts, "WRITE"), 0);
  EXPECT_LE(of(counts, "GETXATTR"), 1) << "the kernel may ask for security.capability once";
  counts.erase("GETXATTR");
  EXPECT_EQ(counts, Counts{});
}

TEST_F(RequestsTest, ReadingABigFileThroughPassthroughSendsNoRequest) {
  if (!require("passthrough", passthrough(), "no passthrough here")) return;
  write_file(*this / "f", pattern(kBig, 1));
  wait_for_releases();
  const UniqueFd fd(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
  std::string block(4096, '\0');
  const Counts counts = cost_when_known([&] {
    for (int i = 0; i < kTimes; ++i) {
      ASSERT_EQ(::pread(fd.get(), block.data(), block.size(), (i * 37 % 256) * 4096L), 4096);
    }
  });
  EXPECT_EQ(counts, Counts{});
}

TEST_F(RequestsTest, AppendingToANewFileRequestsNoXattrEachTime) {
  const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  const std::string block = pattern(4096, 2);
  Counts counts = cost([&] {
    for (int i = 0; i < kTimes; ++i) {
      ASSERT_EQ(::write(fd.get(), block.data(), block.size()), 4096);
    }
  });
  EXPECT_LE(of(counts, "GETXATTR"), 1);
  EXPECT_EQ(of(counts, "GETATTR"), 0);
}

TEST_F(RequestsTest, StatOfAKnownFileSendsNoRequest) {
  write_file(*this / "f", "hello");
  lstat_of(*this / "f");
  EXPECT_EQ(cost_when_known([&] {
              for (int i = 0; i < kTimes; ++i) lstat_of(*this / "f");
            }),
            Counts{});
}

TEST_F(RequestsTest, StatOfABigFileSendsNoRequest) {
  write_file(*this / "f", pattern(kBig, 1));
  wait_for_releases();
  lstat_of(*this / "f");
  const Counts counts = cost_when_known([&] {
    for (int i = 0; i < kTimes; ++i) lstat_of(*this / "f");
  });
  EXPECT_EQ(counts, Counts{});
}

TEST_F(RequestsTest, MissingNameIsLookedUpOnce) {
  EXPECT_FALSE(exists(*this / "missing"));
  EXPECT_EQ(cost_when_known([&] {
              for (int i = 0; i < kTimes; ++i) EXPECT_FALSE(exists(*this / "missing"));
            }),
            Counts{});
}

TEST_F(RequestsTest, WalkingAKnownPathSendsNoRequest) {
  ASSERT_EQ(::mkdir((*this / "a").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir((*this / "a/b").c_str(), 0755), 0);
  write_file(*this / "a/b/f", "x");
  lstat_of(*this / "a/b/f");
  EXPECT_EQ(cost_when_known([&] {
              for (int i = 0; i < kTimes; ++i) ::access((*this / "a/b/f").c_str(), R_OK);
            }),
            Counts{});
}

// The kernel's cache serves one open of a directory at a time, and a close takes effect a little
// later, so a listing that follows at once may be served by the daemon. Not half of them are: each
// would send three READDIRs.
TEST_F(RequestsTest, MostRepeatedListingsSendNoReaddir) {
  for (int i = 0; i < 300; ++i) write_file(*this / ("f" + std::to_string(i)), "");
  for (int i = 0; i < 2; ++i) names_in(*this / "");
  const Counts counts = cost([&] {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(names_in(*this / "").size(), 300u);
  });
  EXPECT_LT(of(counts, "READDIR") + of(counts, "READDIRPLUS"), 150);
  EXPECT_LT(of(counts, "LOOKUP") + of(counts, "GETATTR"), 50);
}

TEST_F(RequestsTest, SecondReadOfASmallFileSendsNoRead) {
  write_file(*this / "f", pattern(4096, 1));
  wait_for_releases();
  EXPECT_EQ(read_file(*this / "f"), pattern(4096, 1));
  Counts counts = cost([&] {
    for (int i = 0; i < kTimes; ++i) EXPECT_EQ(read_file(*this / "f").size(), 4096u);
  });
  EXPECT_EQ(of(counts, "READ"), 0);
  EXPECT_EQ(counts, (Counts{{"OPEN", kTimes}, {"RELEASE", kTimes}}));
}

TEST_F(RequestsTest, UnlinkTakesOneRequest) {
  for (int i = 0; i < kTimes; ++i) write_file(*this / ("f" + std::to_string(i)), "");
  const Counts counts = cost([&] {
    for (int i = 0; i < kTimes; ++i) {
      ASSERT_EQ(::unlink((*this / ("f" + std::to_string(i))).c_str()), 0);
    }
  });
  EXPECT_EQ(without_refreshes(counts, kTimes), (Counts{{"UNLINK", kTimes}}));
}

TEST_F(RequestsTest, MkdirAndRmdirTakeOneRequestEachAfterTheLookup) {
  const Counts counts = cost([&] {
    for (int i = 0; i < kTimes; ++i) {
      const std::string name = *this / ("d" + std::to_string(i));
      ASSERT_EQ(::mkdir(name.c_str(), 0755), 0);
      ASSERT_EQ(::rmdir(name.c_str()), 0);
    }
  });
  EXPECT_EQ(without_refreshes(counts, 2 * kTimes),
            (Counts{{"LOOKUP", kTimes}, {"MKDIR", kTimes}, {"RMDIR", kTimes}}));
}

TEST_F(RequestsTest, ColdStatTakesOneLookup) {
  mount_->umount();
  for (int i = 0; i < 300; ++i) base_.make_file("nvme/d/f" + std::to_string(i), "x");
  mount_->mount();
  lstat_of(*this / "d");
  const Counts counts = cost([&] {
    for (int i = 0; i < 300; ++i) lstat_of(*this / ("d/f" + std::to_string(i)));
  });
  EXPECT_EQ(counts, (Counts{{"LOOKUP", 300}}));
}

}  // namespace
}  // namespace sluice::test
