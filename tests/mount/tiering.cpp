// SPDX-License-Identifier: BSD-2-Clause
#include "tests/mount/tiering.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <stdexcept>

#include "tests/support/requirement.hpp"

namespace sluice::test {

void TieringTest::SetUp() {
  if (!require_mounts("mount") || !require_loop("mount", "ext4")) return;
  ::umask(022);
  add_disk("nvme", kFast);
  add_disk("ssd", kMiddle);
  add_disk("hdd", kSlow);
}

LoopFs& TieringTest::add_disk(const std::string& name, std::uint64_t bytes) {
  tiers_.push_back({name, "", std::make_unique<LoopFs>(base_ / name, "ext4", bytes)});
  return *tiers_.back().disk;
}

void TieringTest::set_options(const std::string& tier, const std::string& options) {
  for (Tier& each : tiers_) {
    if (each.name == tier) each.options = options;
  }
}

LoopFs& TieringTest::disk(const std::string& tier) {
  for (Tier& each : tiers_) {
    if (each.name == tier) return *each.disk;
  }
  throw std::runtime_error("no tier " + tier);
}

void TieringTest::leave_out(const std::string& tier) {
  for (Tier& each : tiers_) {
    if (each.name == tier) each.used = false;
  }
}

Pool TieringTest::pool() const {
  Pool pool{{}, base_ / "state", base_ / "mnt"};
  for (const Tier& tier : tiers_) {
    if (!tier.used) continue;
    pool.tiers.push_back(tier.name + "=" + tier.disk->path() +
                         (tier.options.empty() ? "" : "," + tier.options));
  }
  return pool;
}

void TieringTest::start(Strings flags, Passes passes) {
  Pool wanted = pool();
  wanted.flags = std::move(flags);
  wanted.flags.insert(wanted.flags.end(), {"--min-stay", min_stay_, "--policy", policy_});
  if (passes == Passes::OnlyWhenAsked) wanted.flags.push_back("--no-migrate");
  mount_.reset();  // before the next mount starts
  mount_ = std::make_unique<Mount>(wanted);
}

std::string TieringTest::on(const std::string& tier, const std::string& name) const {
  return base_ / tier + "/" + name;
}

void TieringTest::put(const std::string& tier, const std::string& name, std::string_view content) {
  const std::string path = on(tier, name);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_file(path, content);
}

std::string TieringTest::tier_of(const std::string& name) const {
  return xattr_of(*this / name, "user.sluice.tier").value_or("(none)");
}

std::string TieringTest::tiers_with(const std::string& name) const {
  std::string found;
  for (const Tier& tier : tiers_) {
    if (exists(on(tier.name, name))) found += (found.empty() ? "" : " ") + tier.name;
  }
  return found;
}

long TieringTest::accesses(const std::string& name) const {
  return std::stol(xattr_of(*this / name, "user.sluice.accesses").value_or("-1"));
}

double TieringTest::heat(const std::string& name) const {
  return std::stod(xattr_of(*this / name, "user.sluice.heat").value_or("-1"));
}

void TieringTest::read_often(const std::string& name, int times) const {
  for (int i = 0; i < times; ++i) read_file(*this / name);
}

CommandResult TieringTest::tell(Strings arguments) const {
  arguments.push_back(root());
  return sluice(std::move(arguments));
}

TieringTest::Json TieringTest::ask(Strings arguments) const {
  arguments.push_back("--json");
  const CommandResult result = tell(arguments);
  if (!result.ok()) throw std::runtime_error("sluice " + arguments.front() + ": " + result.err);
  return Json::parse(result.out);
}

void TieringTest::run_pass() const {
  const CommandResult result = tell({"tier", "run"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TieringTest::Json TieringTest::explain(const std::string& name) const {
  const CommandResult result = sluice({"explain", "--json", *this / name});
  if (!result.ok()) throw std::runtime_error("sluice explain: " + result.err);
  return Json::parse(result.out);
}

void TieringTest::move(const std::string& name, const std::string& tier) const {
  const CommandResult result = sluice({"move", "--to", tier, "--wait", *this / name});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(tier_of(name), tier);
}

TieringTest::Json TieringTest::receipts() const {
  return ask({"moves", "--limit", "100000"}).at("receipts");
}

TieringTest::Json TieringTest::pending() const { return ask({"moves"}).at("pending"); }

TieringTest::Strings TieringTest::left_overs() const {
  Strings found;
  for (const Tier& tier : tiers_) {
    const std::string directory = on(tier.name, ".sluice/tmp");
    if (!exists(directory)) continue;
    for (const std::string& name : names_in(directory)) found.push_back(tier.name + ":" + name);
  }
  return found;
}

CommandResult TieringTest::fsck() const {
  Strings arguments = pool().fsck_arguments();
  arguments.insert(arguments.begin(), "fsck");
  return sluice(arguments);
}

}  // namespace sluice::test
