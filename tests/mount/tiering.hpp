// SPDX-License-Identifier: BSD-2-Clause
// The fixture of the tiering tests: three ext4 filesystems of different sizes, so that free space,
// syncs and EXDEV are real, and a mount over them that is used through the command line and
// extended attributes. Threads: caller locks; commands may be run from any thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {

class TieringTest : public testing::Test {
 protected:
  using Json = nlohmann::json;
  using Strings = std::vector<std::string>;

  static constexpr std::uint64_t kMiB = 1 << 20;
  static constexpr std::uint64_t kFast = 96 * kMiB;     // "nvme"
  static constexpr std::uint64_t kMiddle = 160 * kMiB;  // "ssd"
  static constexpr std::uint64_t kSlow = 256 * kMiB;    // "hdd"

  void SetUp() override;

  // Before start(): sets options of a tier as they follow its path ("high_watermark=50"); adds a
  // disk; removes a tier; creates a file on a tier, with its parent directories.
  void set_options(const std::string& tier, const std::string& options);
  LoopFs& add_disk(const std::string& name, std::uint64_t bytes);
  void leave_out(const std::string& tier);
  LoopFs& disk(const std::string& tier);
  void put(const std::string& tier, const std::string& name, std::string_view content);

  // OnlyWhenAsked: --no-migrate.
  enum class Passes { OnlyWhenAsked, Automatic };
  void start(Strings flags = {}, Passes passes = Passes::OnlyWhenAsked);
  void stop() { mount_.reset(); }
  Mount& mount() { return *mount_; }
  const std::string& root() const { return mount_->path(); }
  std::string operator/(const std::string& name) const { return base_ / "mnt" + "/" + name; }
  // The path of `name` on a tier, which bypasses the mount.
  std::string on(const std::string& tier, const std::string& name) const;

  // The tier that the mount reports for a file; the tiers (in order) on which a name exists.
  std::string tier_of(const std::string& name) const;
  std::string tiers_with(const std::string& name) const;
  long accesses(const std::string& name) const;
  double heat(const std::string& name) const;
  void read_often(const std::string& name, int times) const;

  // `sluice VERB...` on the mount. run_pass(): `sluice tier run`, which must succeed.
  CommandResult tell(Strings arguments) const;
  Json ask(Strings arguments) const;  // with --json; throws if it fails
  void run_pass() const;
  Json explain(const std::string& name) const;
  // `sluice move --to TIER --wait NAME`, which must succeed.
  void move(const std::string& name, const std::string& tier) const;
  Json receipts() const;  // newest first
  Json pending() const;

  // Everything below `.sluice/tmp` of all tiers.
  Strings left_overs() const;
  // fsck of the unmounted pool.
  CommandResult fsck() const;

  TempDir base_;
  std::string min_stay_ = "0s";  // of the next start()
  // The same. Most tests choose files by the number of their accesses, which thresholds go by.
  std::string policy_ = "thresholds";

 private:
  struct Tier {
    std::string name;
    std::string options;
    std::unique_ptr<LoopFs> disk;
    bool used = true;
  };
  Pool pool() const;

  std::vector<Tier> tiers_;
  std::unique_ptr<Mount> mount_;
};

}  // namespace sluice::test
