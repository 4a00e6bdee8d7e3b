// SPDX-License-Identifier: BSD-2-Clause
// What a name means: the copies of a directory, by identity; the file that the kernel means.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>

#include "base/log.hpp"
#include "fs/core/directory_tree.hpp"

namespace sluice {

namespace {

bool all_one(const std::vector<Located>& found) {
  return std::all_of(found.begin(), found.end(),
                     [&](const Located& each) { return each.identity == found[0].identity; });
}

bool has_name(int directory, const char* name, struct stat& st) {
  return ::fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

}  // namespace

bool is_directory(const std::vector<Located>& found) {
  return !found.empty() && S_ISDIR(found[0].st.st_mode);
}

Result<std::vector<Located>> DirectoryTree::locate(const OpenCopies& directory, const char* name,
                                                   NamesLock held) {
  for (;;) {
    const std::uint64_t switches = names_.switches();
    auto found = SLUICE_TRY(locate_once(directory, name));
    if (found.empty() && names_.switches() != switches) continue;
    if (all_one(found)) return found;
    // Directories of one name that are not one directory: a rename is half-way through the tiers,
    // or they were made separately. No rename is half-way while the names are locked.
    if (held == NamesLock::HeldWithCopies) return merge(directory, name);
    std::optional<SharedLock> names;
    if (held == NamesLock::Free) names.emplace(names_.lock);
    MutexLock copies(replicate_);
    return merge(directory, name);
  }
}

Result<std::vector<Located>> DirectoryTree::locate_once(const OpenCopies& directory,
                                                        const char* name) {
  std::vector<Located> found;
  for (const OpenCopy& copy : directory.reachable) {
    if (!found.empty()) {
      // Only directories are looked for on slower tiers too: of a file, the fastest tier's is the
      // one.
      struct stat st {};
      if (!has_name(copy.get(), name, st) || !S_ISDIR(st.st_mode)) continue;
    }
    auto here = copy.tier->identify(copy.get(), name);
    if (!here) {
      if (here.error().code == ENOENT) continue;
      if (here.error().code == EIO && !found.empty()) continue;
      return here.error();
    }
    found.push_back(*std::move(here));
    if (!S_ISDIR(found[0].st.st_mode)) break;
  }
  return found;
}

// Makes directories of one name, which were made separately on several tiers, one directory: from
// here on they have one identity, the one that the kernel knows, or else the fastest tier's.
// REQUIRES: names_.lock and replicate_ are held.
Result<std::vector<Located>> DirectoryTree::merge(const OpenCopies& directory, const char* name) {
  auto found = SLUICE_TRY(locate_once(directory, name));
  if (all_one(found)) return found;
  const auto known = std::find_if(found.begin(), found.end(), [&](const Located& each) {
    return table_.find(each) != nullptr;
  });
  const Identity chosen = known == found.end() ? found[0].identity : known->identity;
  std::vector<Located> merged;
  for (Located& each : found) {
    if (each.identity != chosen && !take_identity(each, chosen, name)) continue;
    each.identity = chosen;
    merged.push_back(std::move(each));
  }
  return merged;
}

// False if the directory is a copy of another one, which has another name elsewhere: to merge it
// would mix the two.
bool DirectoryTree::take_identity(const Located& copy, const Identity& identity, const char* name) {
  Tier& tier = pool_[copy.tier];
  if (const InodePtr other = table_.find(copy)) {
    bool has_more = false;
    {
      Inode::Locked state(*other);
      has_more = state->copies.size() > 1;
    }
    if (has_more) {
      log::get().error(
          "a directory's copies have different names, one is left out; see 'sluice fsck': "
          "name={} tier={}",
          log::escaped(name), tier.name());
      return false;
    }
  }
  const auto carry = [&]() -> Result<void> {
    if (copy.pinned) return tier.carry_identity(copy.pinned->get(), identity);
    const UniqueFd fd = SLUICE_TRY(tier.open(copy.handle, O_RDONLY | O_DIRECTORY));
    return tier.carry_identity(fd.get(), identity);
  };
  // On a tier that can't be written they are one directory all the same, but for this mount only.
  [[maybe_unused]] const auto carried = carry();
  return true;
}

Result<std::vector<Located>> DirectoryTree::locate_told(const InodePtr& parent,
                                                        const OpenCopies& directory,
                                                        const char* name, NamesLock held) {
  auto found = SLUICE_TRY(locate(directory, name, held));
  if (found.empty()) return found;
  if (!is_directory(found)) {
    // Another tier may have a file of that name, too.
    for (const OpenCopy& copy : directory.reachable) {
      struct stat st {};
      if (copy.tier->index() <= found[0].tier || !has_name(copy.get(), name, st)) continue;
      if (auto here = copy.tier->identify(copy.get(), name)) found.push_back(*std::move(here));
    }
  }
  const Located* told = nullptr;
  std::tuple<bool, std::int64_t, bool> best{};
  for (const Located& each : found) {
    const InodePtr inode = table_.find(each);
    if (!inode) continue;
    Inode::Locked state(*inode);
    const bool is_named = state->name.parent == parent->id() && state->name.text == name;
    // Of a file with several names, the kernel may know others besides the one that we remember.
    const bool has_more = !inode->is_directory() && each.st.st_nlink > 1;
    if (state->name.told_at == 0 || !(is_named || has_more)) continue;
    const std::tuple rank{is_named, state->name.told_at, state->place().tier == each.tier};
    if (told != nullptr && rank <= best) continue;
    told = &each;
    best = rank;
  }
  if (told == nullptr) return Error(ESTALE, "the name is another file's by now");
  if (S_ISDIR(told->st.st_mode) && is_directory(found)) return found;
  return std::vector{*told};
}

InodePtr DirectoryTree::moving_file(const InodePtr& directory, const char* name, NamesLock held) {
  while (names_.has_moves()) {
    const std::uint64_t switches = names_.switches();
    const auto copies = open_copies(directory);
    const auto found = copies ? locate_told(directory, *copies, name, held) : copies.error();
    if (!found) break;
    if (!found->empty())
      return S_ISREG((*found)[0].st.st_mode) ? table_.find((*found)[0]) : nullptr;
    if (names_.switches() == switches) break;
  }
  return nullptr;
}

}  // namespace sluice
