// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/deletion/deletion_rule.hpp"

#include <sys/stat.h>

#include <algorithm>

#include "tiering/pool/pin.hpp"

namespace sluice {

void DeletionRule::add_use(DeletionFacts& facts, const InodeState& state) {
  facts.is_moving = state.is_moving() || state.may_be_in_two_places();
  facts.is_in_use = state.open || state.uses > 0 || state.changes > 0 || state.pages.maybe_mapped;
}

// A pin of the tree's directory itself only says on which tier the files belong.
Result<bool> DeletionRule::has_pin(const InodePtr& directory, const Candidate& candidate) {
  const auto is_pinned = [&](const InodePtr& each) -> Result<bool> {
    return has_own_pin(SLUICE_TRY(parts_.descriptors.any(each))->get());
  };
  if (SLUICE_TRY(is_pinned(candidate.file))) return true;
  for (const Names::Place& name : candidate.names) {
    for (InodePtr at = name.parent; !at || at->id() != directory->id();
         at = parts_.tree.parent_of(at)) {
      if (!at || at->id() == kRootId) return Error(ESTALE, "the file has left the directory");
      if (SLUICE_TRY(is_pinned(at))) return true;
    }
  }
  return false;
}

Result<DeletionRule::Candidate> DeletionRule::find(const BudgetTrees::Place& place,
                                                   const BudgetTrees::Victim& victim) {
  Candidate found(parts_.table);
  for (const std::string& below : victim.names) {
    const std::string path = place.path + below;
    const std::size_t slash = path.rfind('/');
    std::string name = path.substr(slash + 1);
    const InodePtr parent =
        SLUICE_TRY(parts_.tree.walk(std::string_view(path).substr(0, slash), found.references_));
    const auto known = SLUICE_TRY(
        parts_.tree.look_up(parent, name.c_str(), NamesHeld::No, InodeTable::LookupBy::Daemon));
    if (!known.inode) return Error(ESTALE, "the file is gone");
    found.references_.push_back(known.inode->id());
    if (known.inode->id() != victim.id) return Error(ESTALE, "the name belongs to another file");
    found.file = known.inode;
    found.names.push_back({parent, std::move(name)});
  }
  if (!found.file) return Error(ESTALE, "the file has left the directory");
  found.facts.has_pin = SLUICE_TRY(has_pin(place.directory, found));
  found.facts.names = found.names.size();
  found.facts.written = victim.written;
  Inode::Locked state(*found.file);
  add_use(found.facts, *state);
  return found;
}

Result<void> DeletionRule::add(DeletionFacts& facts, const Located& found,
                               const OpenCopy& directory) const {
  struct stat st {};
  if (::fstat(directory.get(), &st) < 0) return Error::last("stat");
  facts.is_read_only = facts.is_read_only || parts_.pool[found.tier].facts().read_only;
  facts.links = found.st.st_nlink;
  facts.owner = found.st.st_uid;
  facts.directory_owners.push_back(st.st_uid);
  // A time in the future says nothing.
  if (found.st.st_mtime <= parts_.clock.seconds())
    facts.written = std::max<std::int64_t>(facts.written, found.st.st_mtime);
  return {};
}

Result<DeletionRule::Candidate> DeletionRule::examine(const BudgetTrees::Place& place,
                                                      const BudgetTrees::Victim& victim) {
  Candidate candidate = SLUICE_TRY(find(place, victim));
  for (const Names::Place& name : candidate.names) {
    const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(name.parent));
    const auto found = SLUICE_TRY(parts_.tree.locate(copies, name.name.c_str(), NamesHeld::No));
    if (found.size() != 1 || found[0].identity.id != victim.id)
      return Error(ESTALE, "the name belongs to another file");
    const OpenCopy directory = SLUICE_TRY(parts_.tree.open_copy(name.parent, found[0].tier));
    SLUICE_TRY(add(candidate.facts, found[0], directory));
  }
  return candidate;
}

}  // namespace sluice
