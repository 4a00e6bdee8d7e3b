// SPDX-License-Identifier: BSD-2-Clause
// The fixture of the tier tests: three small filesystems (ext4, xfs, ext4), so that EXDEV, ENOSPC
// and a lost disk are real, and a mount over them that each test starts after it has created the
// files that should exist before. Threads: caller locks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {

class TiersTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kMiB = 1 << 20;
  static constexpr std::uint64_t kFast = 48 * kMiB;   // ext4, "nvme"
  static constexpr std::uint64_t kMiddle = 0;         // xfs's smallest, "ssd"
  static constexpr std::uint64_t kSlow = 128 * kMiB;  // ext4, "hdd"

  void SetUp() override;

  // Options of a tier for the next start(), as they follow its path:
  // "reserve=1MiB,high_watermark=50".
  void set_options(const std::string& tier, const std::string& options);
  void start(std::vector<std::string> flags = {});
  Pool pool() const;
  Mount& mount() { return *mount_; }
  std::string operator/(const std::string& name) const { return base_ / "mnt" + "/" + name; }

  // The path of `name` on a tier, which bypasses the mount.
  std::string on(const std::string& tier, const std::string& name) const;
  LoopFs& disk(const std::string& tier);
  // Creates a file on a tier, with its parent directories. Only before start(): afterwards names
  // must be changed through the mount.
  void put(const std::string& tier, const std::string& name, std::string_view content);
  void put_dir(const std::string& tier, const std::string& name);

  // The tier that the mount reports for a file; the tiers (in order) on which a name exists.
  std::string tier_of(const std::string& name) const;
  std::string tiers_with(const std::string& name) const;

  // Writes a file directly to a tier until only `leave` bytes are free there.
  void fill(const std::string& tier, std::uint64_t leave);

  // fsck of the unmounted pool.
  CommandResult fsck() const;

  TempDir base_;

 private:
  struct Tier {
    std::string name;
    std::string options;
    std::unique_ptr<LoopFs> disk;
  };
  std::vector<Tier> tiers_;
  std::unique_ptr<Mount> mount_;
};

}  // namespace sluice::test
