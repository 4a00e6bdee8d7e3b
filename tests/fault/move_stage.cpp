// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/move_stage.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

void set_xattr(const std::string& path, const std::string& key, const std::string& value) {
  if (::lsetxattr(path.c_str(), key.c_str(), value.data(), value.size(), 0) < 0) {
    fail("setxattr " + key + " of " + path);
  }
}

// rw- for the owner, r-- for user 12001, nothing for others (linux/posix_acl_xattr.h).
std::string acl() {
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  constexpr std::array<Entry, 5> kEntries{
      {{1, 6, ~0u}, {2, 4, 12001}, {4, 0, ~0u}, {16, 4, ~0u}, {32, 0, ~0u}}};
  constexpr std::uint32_t kVersion = 2;
  std::string out(sizeof kVersion + sizeof kEntries, '\0');
  std::memcpy(out.data(), &kVersion, sizeof kVersion);
  std::memcpy(out.data() + sizeof kVersion, kEntries.data(), sizeof kEntries);
  return out;
}

void decorate(const std::string& path) {
  if (::chown(path.c_str(), 12001, 12002) < 0) fail("chown " + path);
  if (::chmod(path.c_str(), 06751) < 0) fail("chmod " + path);
  set_xattr(path, "user.comment", "kept");
  set_xattr(path, "user.large", pattern(900, 7));
  set_xattr(path, "trusted.note", std::string("\0\1\2", 3));
  set_xattr(path, "system.posix_acl_access", acl());
  const std::array<timespec, 2> times{{{1'000'000'000, 123'456'789}, {1'100'000'000, 987'654'321}}};
  if (::utimensat(AT_FDCWD, path.c_str(), times.data(), 0) < 0) fail("utimens " + path);
}

// `line` of a digest without the word that begins with `key`.
std::string without(std::string line, const std::string& key) {
  const std::size_t at = line.find(" " + key + "=");
  if (at == std::string::npos) return line;
  const std::size_t end = line.find(' ', at + 1);
  return line.erase(at, end == std::string::npos ? end : end - at);
}

bool is_directory(const std::string& line) { return line.starts_with("mode=4"); }

// The attributes of a directory that a move must keep. Times are not among them, because other
// operations change them, too.
std::string kept(const std::string& line) {
  return is_directory(line) ? without(without(line, "mtime"), "nlink") : line;
}

}  // namespace

MoveStage::MoveStage(std::string base) : base_(std::move(base)) {
  for (const std::string& tier : tiers()) fs::create_directories(on(tier));
}

const std::vector<std::string>& MoveStage::tiers() {
  static const std::vector<std::string> kTiers{"nvme", "ssd", "hdd"};
  return kTiers;
}

std::string MoveStage::on(const std::string& tier, const std::string& name) const {
  return base_ + "/" + tier + (name.empty() ? "" : "/" + name);
}

Pool MoveStage::pool() const {
  Pool pool{{}, base_ + "/state", base_ + "/mnt"};
  for (const std::string& tier : tiers()) pool.tiers.push_back(tier + "=" + on(tier));
  pool.environment = {"SLUICE_MIGRATE=no"};
  return pool;
}

void MoveStage::put(const Journey& journey, const std::string& content, mode_t mode) {
  const std::string path = on(journey.from, journey.name);
  fs::create_directories(fs::path(path).parent_path());
  write_file(path, content, mode);
  if (!journey.to.empty()) journeys_.push_back(journey);
}

void MoveStage::add(const Journey& journey, std::size_t bytes) {
  put(journey, pattern(bytes, 100 + journeys_.size()), 0644);
}

void MoveStage::lay_out_few() {
  put({"a/decorated", "nvme", "hdd"}, pattern(70'000, 2), 0640);
  decorate(on("nvme", "a/decorated"));
  put({"a/pair", "ssd", "nvme"}, pattern(10'000, 5), 0644);
  fs::create_directories(on("ssd", "c"));
  fs::create_hard_link(on("ssd", "a/pair"), on("ssd", "c/link"));
}

void MoveStage::lay_out() {
  lay_out_few();
  put({"small", "nvme", "ssd"}, "five!", 0600);
  put({"empty", "hdd", "nvme"}, "", 0644);
  put({"a/b/large", "hdd", "nvme"}, pattern(3'300'000, 3), 0444);
  put({"a/more", "hdd", "nvme"}, pattern(12'345, 11), 0644);
  put({"sparse", "nvme", "hdd"}, "", 0644);
  const UniqueFd sparse(::open(on("nvme", "sparse").c_str(), O_WRONLY | O_CLOEXEC));
  const std::string data = pattern(8192, 4);
  for (const off_t at : {1 << 20, 5 << 20}) {
    if (::pwrite(sparse.get(), data.data(), data.size(), at) < 0) fail("write sparse");
  }
  if (::ftruncate(sparse.get(), 8 << 20) < 0) fail("truncate sparse");
  // These files are not moved.
  put({"a/bystander", "nvme", ""}, pattern(5'000, 8), 0644);
  put({"a/b/bystander", "ssd", ""}, pattern(5'000, 9), 0644);
  if (::symlink("a/pair", on("hdd", "symlink").c_str()) < 0) fail("symlink");
  // Directory attributes must be copied to a tier that has no copy of the directory yet.
  if (::chmod(on("hdd", "a/b").c_str(), 02770) < 0 ||
      ::chmod(on("ssd", "a/b").c_str(), 02770) < 0) {
    fail("chmod a/b");
  }
}

MoveStage::View MoveStage::look_at_mount() const {
  View view;
  for (const auto& [path, line] : digest(in_mount(""), {.times = true})) {
    struct statx st {};
    const bool found = ::statx(AT_FDCWD, in_mount(path).c_str(), AT_SYMLINK_NOFOLLOW,
                               STATX_BASIC_STATS | STATX_BTIME, &st) == 0;
    std::string times;
    for (const statx_timestamp& time : {st.stx_mtime, st.stx_ctime, st.stx_btime})
      times += " " + std::to_string(time.tv_sec) + "s " + std::to_string(time.tv_nsec) + "ns";
    view[path] = {kept(line), found ? st.stx_ino : 0, times};
  }
  return view;
}

std::string MoveStage::changed_times() const {
  std::string out;
  const View found = look_at_mount();
  for (const auto& [path, seen] : expected_) {
    const auto at = found.find(path);
    if (at == found.end() || at->second.times == seen.times) continue;
    out += path + " has other times (mtime, ctime, birth)\n    expected:" + seen.times +
           "\n    actual:  " + at->second.times + "\n";
  }
  return out;
}

void MoveStage::remember() { expected_ = look_at_mount(); }

std::string MoveStage::problems() const {
  std::string out;
  const View found = look_at_mount();
  std::map<std::string, std::string> expected_lines, found_lines;
  for (const auto& [path, seen] : expected_) {
    expected_lines[path] = seen.line;
    const auto at = found.find(path);
    if (at != found.end() && at->second.inode != seen.inode) {
      out += path + " has changed its inode number\n";
    }
  }
  for (const auto& [path, seen] : found) found_lines[path] = seen.line;
  out += difference(expected_lines, found_lines);
  return out + compare_tiers();
}

std::string MoveStage::compare_tiers() const {
  std::string out;
  std::map<std::string, std::string> where;
  for (const std::string& tier : tiers()) {
    for (const auto& [path, line] : digest(on(tier), {.times = true})) {
      if (path == ".sluice" || path.starts_with(".sluice/") || is_directory(line)) continue;
      if (path == "lost+found") continue;
      const auto [at, is_first] = where.try_emplace(path, tier);
      if (!is_first) out += path + " is on " + at->second + " and on " + tier + "\n";
      const auto wanted = expected_.find(path);
      if (wanted == expected_.end()) {
        out += path + " is unexpected on " + tier + "\n";
      } else if (without(line, "trusted.sluice.id") != wanted->second.line) {
        out += path + " on " + tier + "\n    expected: " + wanted->second.line +
               "\n    actual:   " + line + "\n";
      }
    }
  }
  for (const auto& [path, seen] : expected_) {
    if (!is_directory(seen.line) && !where.contains(path)) out += path + " is on no tier\n";
  }
  const auto sparse = where.find("sparse");
  if (sparse != where.end() && lstat_of(on(sparse->second, "sparse")).st_blocks > 256) {
    out += "sparse has lost its holes on " + sparse->second + "\n";
  }
  return out;
}

std::string MoveStage::debris() const {
  std::string out = compare_tiers();
  for (const std::string& tier : tiers()) {
    const std::string temporary = on(tier, ".sluice/tmp");
    if (!exists(temporary)) continue;
    for (const std::string& name : names_in(temporary)) {
      out += ".sluice/tmp/" + name + " is left on " + tier + "\n";
    }
  }
  return out;
}

std::string MoveStage::problems_unmounted() const {
  std::string out = debris();
  const CommandResult report = fsck(pool());
  if (!report.ok()) out += "fsck: " + report.out + report.err;
  return out;
}

std::string MoveStage::not_arrived() const {
  std::string out;
  for (const Journey& journey : journeys_) {
    const std::string tier = tier_of(in_mount(journey.name));
    if (tier == journey.to) continue;
    const auto said = explain(in_mount(journey.name));
    out += journey.name + " is on " + tier + ", not on " + journey.to +
           " (pending: " + (said ? said->at("pending").dump() : std::strerror(errno)) + ")\n";
  }
  return out;
}

void MoveStage::send_all() const {
  for (const Journey& journey : journeys_) send_to(in_mount(journey.name), journey.to);
}

void MoveStage::send_all_back() const {
  for (const Journey& journey : journeys_) send_to(in_mount(journey.name), journey.from);
}

std::string MoveStage::problems_at_rest(const Mount& mount) const {
  const bool rests = eventually(
      [&] {
        const nlohmann::json moves = mount.status().at("migration");
        return !moves.at("resuming") && moves.at("queued") == 0 && moves.at("active") == 0;
      },
      std::chrono::seconds(60));
  return rests ? problems() : "the moves that go on do not end\n";
}

bool MoveStage::wait_for_moves(const Mount& mount) const {
  std::vector<std::string> names;
  for (const Journey& journey : journeys_) names.push_back(journey.name);
  return wait_for_moves(mount, names);
}

bool MoveStage::wait_for_moves(const Mount& mount, const std::vector<std::string>& names) const {
  bool died = false;
  const bool ended = eventually(
      [&] {
        return std::ranges::all_of(names, [&](const std::string& name) {
          died = died || has_ended(mount.pid());
          if (died) return true;
          const auto said = explain(in_mount(name));
          return said && said->contains("moving") && said->at("moving").is_null() &&
                 said->at("queued").is_null();
        });
      },
      std::chrono::seconds(120));
  return ended && !died;
}

int send_to(const std::string& path, const std::string& tier) {
  return ::setxattr(path.c_str(), "user.sluice.tier", tier.data(), tier.size(), 0) < 0 ? errno : 0;
}

std::optional<nlohmann::json> explain(const std::string& path) {
  std::string value(65536, '\0');
  const ssize_t size = ::getxattr(path.c_str(), "user.sluice.explain", value.data(), value.size());
  if (size < 0) return std::nullopt;
  value.resize(static_cast<std::size_t>(size));
  return nlohmann::json::parse(value);
}

std::string tier_of(const std::string& path) {
  std::string value(256, '\0');
  const ssize_t size = ::getxattr(path.c_str(), "user.sluice.tier", value.data(), value.size());
  value.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return value;
}

}  // namespace sluice::test
