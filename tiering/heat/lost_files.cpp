// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/lost_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_set>

#include "base/file_at.hpp"
#include "tiering/pool/identity.hpp"

namespace sluice {
namespace {

Error refused(int code, std::string text) { return {code, "list lost files", std::move(text)}; }

// The disk that `name` means.
Result<Member> disk_of(const Pool& pool, const std::string& name) {
  const Tier* tier = pool.by_name(name);
  if (tier != nullptr && !tier->online()) return tier->member();
  std::optional<Member> found;
  for (const Member& member : pool.members()) {
    const bool is_meant = member.name == name || member.name.starts_with(name + "#");
    if (!is_meant || (tier != nullptr && member.name == name)) continue;
    if (!found || found->slot < member.slot) found = member;
  }
  if (!found && tier != nullptr) {
    return refused(ENOENT, "tier " + name + " is online at " + tier->path() +
                               ", and no other disk had its name; nothing is lost");
  }
  if (!found) return refused(ENOENT, "the pool has had no tier " + name);
  if (const Tier* back = pool.by_slot(found->slot); back != nullptr && back->online()) {
    return refused(ENOENT, "the disk that was tier " + name + " is back as tier " + back->name() +
                               "; nothing is lost");
  }
  return *found;
}

// Applies the moves that were made after the list was written, until the disk went away.
Result<void> apply_moves(const Store& store, const std::string& tier, const FileLists::List& list,
                         std::map<std::string, FileLists::File>& files,
                         std::unordered_set<std::uint64_t>& known) {
  auto receipts = SLUICE_TRY(store.receipts(Store::kMostReceipts));
  const std::int64_t until =
      list.added_time != 0 ? list.added_time : std::numeric_limits<std::int64_t>::max();
  std::map<InodeId, std::uint64_t> sizes;  // a move by a twin copies nothing and has no bytes
  for (const auto& [path, file] : files) sizes[file.id] = file.bytes;
  for (auto each = receipts.rbegin(); each != receipts.rend(); ++each) {
    if (each->code != 0 || each->time < list.census_time || each->time > until) continue;
    if (each->from != tier && each->to != tier) continue;
    known.insert(to_number(each->id));
    if (each->bytes > 0) sizes[each->id] = each->bytes;
    if (each->from == tier) files.erase(each->path);
    if (each->to == tier) files[each->path] = {each->id, sizes[each->id], each->path};
  }
  return {};
}

// Tells whether a path exists on one of the tiers that are online. Fast if the paths are sorted.
class Elsewhere {
 public:
  explicit Elsewhere(const Pool& pool) : pool_(pool) {}

  bool has(const std::string& path) {
    const auto slash = path.rfind('/');
    if (!opened_ || path.compare(0, slash, directory_) != 0 || directory_.size() != slash)
      open(path.substr(0, slash));
    struct stat st {};
    return std::any_of(copies_.begin(), copies_.end(), [&](const UniqueFd& copy) {
      return ::fstatat(copy.get(), path.c_str() + slash + 1, &st, AT_SYMLINK_NOFOLLOW) == 0;
    });
  }

 private:
  void open(std::string directory) {
    copies_.clear();
    for (const Tier* tier : pool_) {
      const auto root = tier->online() ? tier->root() : Error(EIO, "tier is offline");
      auto copy = root ? open_beneath((*root)->get(), directory) : root.error();
      if (copy) copies_.push_back(*std::move(copy));
    }
    directory_ = std::move(directory);
    opened_ = true;
  }

  const Pool& pool_;
  bool opened_ = false;
  std::string directory_;
  std::vector<UniqueFd> copies_;  // of the directory
};

// Files that were made on the disk and were used, and that no list has.
std::uint64_t count_nameless(const Pool& pool, const Store& store, const FileLists& lists,
                             unsigned slot, std::unordered_set<std::uint64_t>& known) {
  for (const Member& member : pool.members()) {
    if (member.slot == slot) continue;
    const auto list = lists.read(member.slot);
    if (!list) continue;
    for (const FileLists::File& file : list->files) known.insert(to_number(file.id));
  }
  std::uint64_t count = 0;
  // What cannot be read is not counted.
  [[maybe_unused]] const auto walked = store.each_heat([&](InodeId id, const Heat&) {
    if (slot_of(id) == slot && !known.contains(to_number(id))) ++count;
    return true;
  });
  return count;
}

}  // namespace

Result<LostFiles> lost_files(const Pool& pool, const Store& store, const FileLists& lists,
                             const std::string& name, const std::function<bool()>& go_on) {
  const Member disk = SLUICE_TRY(disk_of(pool, name));
  FileLists::List list = SLUICE_TRY(lists.read(disk.slot));
  LostFiles out;
  out.census_time = list.census_time;
  std::map<std::string, FileLists::File> files;
  std::unordered_set<std::uint64_t> known;
  for (FileLists::File& file : list.files) {
    known.insert(to_number(file.id));
    std::string path = file.path;
    files.emplace_hint(files.end(), std::move(path), std::move(file));
  }
  SLUICE_TRY(apply_moves(store, disk.name.substr(0, disk.name.find('#')), list, files, known));
  Elsewhere elsewhere(pool);
  for (auto& [path, file] : files) {
    if (go_on && !go_on()) return refused(ECANCELED, "gave up");
    if (elsewhere.has(path)) {
      ++out.elsewhere;
    } else {
      out.files.push_back(std::move(file));
    }
  }
  out.nameless = count_nameless(pool, store, lists, disk.slot, known);
  return out;
}

}  // namespace sluice
