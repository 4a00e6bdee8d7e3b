// SPDX-License-Identifier: BSD-2-Clause
#include "tests/mount/tiers.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "tests/support/files.hpp"
#include "tests/support/requirement.hpp"

namespace sluice::test {

void TiersTest::SetUp() {
  if (!require_mounts("mount") || !require_loop("mount", "ext4") || !require_loop("mount", "xfs")) {
    return;
  }
  ::umask(022);
  tiers_.push_back({"nvme", "", std::make_unique<LoopFs>(base_ / "nvme", "ext4", kFast)});
  tiers_.push_back({"ssd", "", std::make_unique<LoopFs>(base_ / "ssd", "xfs", kMiddle)});
  tiers_.push_back({"hdd", "", std::make_unique<LoopFs>(base_ / "hdd", "ext4", kSlow)});
}

void TiersTest::set_options(const std::string& tier, const std::string& options) {
  for (Tier& each : tiers_) {
    if (each.name == tier) each.options = options;
  }
}

Pool TiersTest::pool() const {
  Pool pool{{}, base_ / "state", base_ / "mnt"};
  for (const Tier& tier : tiers_) {
    pool.tiers.push_back(tier.name + "=" + tier.disk->path() +
                         (tier.options.empty() ? "" : "," + tier.options));
  }
  return pool;
}

void TiersTest::start(std::vector<std::string> flags) {
  Pool wanted = pool();
  wanted.flags = std::move(flags);
  mount_.reset();  // before the next mount starts
  mount_ = std::make_unique<Mount>(wanted);
}

std::string TiersTest::on(const std::string& tier, const std::string& name) const {
  return base_ / tier + "/" + name;
}

LoopFs& TiersTest::disk(const std::string& tier) {
  for (Tier& each : tiers_) {
    if (each.name == tier) return *each.disk;
  }
  throw std::invalid_argument(tier);
}

void TiersTest::put(const std::string& tier, const std::string& name, std::string_view content) {
  const std::string path = on(tier, name);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_file(path, content);
}

void TiersTest::put_dir(const std::string& tier, const std::string& name) {
  std::filesystem::create_directories(on(tier, name));
}

std::string TiersTest::tier_of(const std::string& name) const {
  return xattr_of(*this / name, "user.sluice.tier").value_or("(none)");
}

std::string TiersTest::tiers_with(const std::string& name) const {
  std::string found;
  for (const Tier& tier : tiers_) {
    if (exists(on(tier.name, name))) found += (found.empty() ? "" : " ") + tier.name;
  }
  return found;
}

void TiersTest::fill(const std::string& tier, std::uint64_t leave) {
  struct statvfs fs {};
  if (::statvfs(on(tier, "").c_str(), &fs) < 0) throw std::runtime_error("statvfs " + tier);
  const std::uint64_t free = fs.f_bavail * fs.f_frsize;
  if (free <= leave) return;
  const UniqueFd fd(::open(on(tier, ".filler").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(free - leave)) < 0) {
    throw std::runtime_error("fill " + tier + ": " + errno_name(errno));
  }
}

CommandResult TiersTest::fsck() const {
  std::vector<std::string> arguments = pool().fsck_arguments();
  arguments.insert(arguments.begin(), "fsck");
  return sluice(arguments);
}

}  // namespace sluice::test
