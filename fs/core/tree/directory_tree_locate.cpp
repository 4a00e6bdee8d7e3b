// SPDX-License-Identifier: BSD-2-Clause
// Finding the copies of a name on the tiers, and the file that the kernel knows under a name.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/log.hpp"
#include "fs/core/tree/directory_tree.hpp"

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
                                                   NamesHeld held) {
  for (;;) {
    const std::uint64_t switches = names_lock_.switches();
    auto found = SLUICE_TRY(locate_once(directory, name));
    if (found.empty() && names_lock_.switches() != switches) continue;
    if (all_one(found)) return found;
    // Directories with the same name but different identities: either a rename has reached only
    // some of the tiers, or they were made separately. While the names are locked, no rename is
    // incomplete.
    if (held == NamesHeld::WithCopies) return merge(directory, name);
    std::optional<SharedLock> names;
    if (held == NamesHeld::No) names.emplace(names_lock_.mutex);
    MutexLock copies(replicate_);
    return merge(directory, name);
  }
}

Result<std::vector<Located>> DirectoryTree::locate_once(const OpenCopies& directory,
                                                        const char* name) {
  std::vector<Located> found;
  for (const OpenCopy& copy : directory.reachable) {
    if (!found.empty()) {
      // Slower tiers are searched only for directories: of two files, the one on the fastest tier
      // counts.
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

// Merges directories with the same name that were made separately on several tiers. They get one
// identity: the one that the kernel knows, or else that of the fastest tier.
Result<std::vector<Located>> DirectoryTree::merge(const OpenCopies& directory, const char* name) {
  names_lock_.mutex.assert_held_shared();
  replicate_.assert_held();
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

// Gives the directory `copy` the identity. False if it is a copy of another directory, which has
// another name on another tier: merging would mix the two.
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
          "the copies of a directory have different names, ignoring one; run 'sluice fsck': "
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
  // If the tier cannot be written, the directories are merged anyway, for this mount only.
  [[maybe_unused]] const auto carried = carry();
  return true;
}

Result<DirectoryTree::KernelName> DirectoryTree::locate_for_kernel(const InodePtr& parent,
                                                                   const OpenCopies& directory,
                                                                   const char* name,
                                                                   NamesHeld held) {
  auto found = SLUICE_TRY(locate(directory, name, held));
  if (found.empty()) return KernelName{};
  if (!is_directory(found)) {
    // Slower tiers may have files with the same name.
    for (const OpenCopy& copy : directory.reachable) {
      struct stat st {};
      if (copy.tier->index() <= found[0].tier || !has_name(copy.get(), name, st)) continue;
      if (auto here = copy.tier->identify(copy.get(), name)) found.push_back(*std::move(here));
    }
  }
  const Located* meant = nullptr;
  InodePtr known;
  std::tuple<bool, std::int64_t, bool> best{};
  for (const Located& each : found) {
    const InodePtr inode = table_.find(each);
    if (!inode) continue;
    Inode::Locked state(*inode);
    const bool is_named = inode->is_named(*state, parent->id(), name);
    // If a file has several names, the kernel may know others than the last one.
    const bool has_more = !inode->is_directory() && each.st.st_nlink > 1;
    if (state->name.kernel_knows_since == 0 || !(is_named || has_more)) continue;
    const std::tuple rank{is_named, state->name.kernel_knows_since,
                          state->place().tier == each.tier};
    if (meant != nullptr && rank <= best) continue;
    meant = &each;
    known = inode;
    best = rank;
  }
  if (meant == nullptr) return Error(ESTALE, "the name belongs to another file now");
  const bool are_all = S_ISDIR(meant->st.st_mode) && is_directory(found);
  if (found.size() == 1 || are_all) return KernelName{std::move(found), std::move(known)};
  return KernelName{{*meant}, std::move(known)};
}

InodePtr DirectoryTree::moving_file(const InodePtr& directory, const char* name, NamesHeld held) {
  while (names_lock_.has_moves()) {
    const std::uint64_t switches = names_lock_.switches();
    const auto copies = open_copies(directory);
    const auto there = copies ? locate_for_kernel(directory, *copies, name, held) : copies.error();
    if (!there) break;
    if (there->inode) return S_ISREG(there->inode->type) ? there->inode : nullptr;
    if (names_lock_.switches() == switches) break;
  }
  return nullptr;
}

}  // namespace sluice
