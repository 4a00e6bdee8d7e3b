// SPDX-License-Identifier: BSD-2-Clause
// Renames: one system call if only one tier is involved, an intent if there are several.
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <utility>

#include "base/file_at.hpp"
#include "fs/core/inodes/guards.hpp"
#include "fs/core/names/names.hpp"
#include "fs/core/tree/repetition.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {

namespace {

const Located* on_tier(const std::vector<Located>& found, TierIndex tier) {
  for (const Located& f : found) {
    if (f.tier == tier) return &f;
  }
  return nullptr;
}

// Must be called before the first name changes; see Names::was_renamed().
void remember_rename(const std::vector<Located>& source, const std::vector<Located>& target,
                     const KernelRequest& request) {
  request.remember(Fact::Victim, target.empty() ? 0 : to_number(target[0].identity.id));
  request.remember(Fact::Source, to_number(source[0].identity.id));
}

}  // namespace

Result<std::vector<Step>> Names::rename_steps(const InodePtr& parent, const char* name,
                                              const std::vector<Located>& source,
                                              const InodePtr& new_parent, const char* new_name,
                                              const std::vector<Located>& target, unsigned flags) {
  std::vector<Step> renames, removals;
  for (const auto& tier : parts_.pool) {
    const Located* from = on_tier(source, tier->index());
    const Located* to = on_tier(target, tier->index());
    if (from == nullptr && to == nullptr) continue;
    const OpenCopy new_dir =
        SLUICE_TRY(parts_.tree.ensure_copy(new_parent, tier->index(), Spares::Use));
    Step step;
    step.to = SLUICE_TRY(place_at(*tier, new_dir.get(), new_name));
    if (from != nullptr || (flags & RENAME_EXCHANGE)) {
      const OpenCopy old_dir =
          SLUICE_TRY(parts_.tree.ensure_copy(parent, tier->index(), Spares::Use));
      step.from = SLUICE_TRY(place_at(*tier, old_dir.get(), name));
    }
    if (from != nullptr) {
      step.subject = from->identity;
      step.kind = to == nullptr               ? Step::Kind::Rename
                  : (flags & RENAME_EXCHANGE) ? Step::Kind::Exchange
                                              : Step::Kind::Replace;
      renames.push_back(std::move(step));
      continue;
    }
    std::swap(step.from, step.to);
    step.subject = to->identity;
    if (flags & RENAME_EXCHANGE) {
      step.kind = Step::Kind::Rename;
      renames.push_back(std::move(step));
    } else {
      step.kind = S_ISDIR(to->st.st_mode) ? Step::Kind::Rmdir : Step::Kind::Unlink;
      step.to = {};
      removals.push_back(std::move(step));
    }
  }
  renames.insert(renames.end(), removals.begin(), removals.end());
  return renames;
}

// The state of a rename between attempts, and what to do next.
struct Names::RenameAttempt {
  enum class Next {
    Finish,           // it succeeded or failed
    Retry,            // a move of one of the files began or ended meanwhile
    LockExclusively,  // a directory that is renamed while another thread makes a copy of it on
                      // another tier would end up with both names
    SyncFile,         // `file` must be synced first, without the lock because that takes long
  };
  Next next = Next::Finish;
  bool exclusive = false, synced = false;
  UniqueFd file = {};
};

Result<void> Names::rename(InodeId parent, const char* name, InodeId new_parent,
                           const char* new_name, unsigned flags, const KernelRequest& request) {
  if ((flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)) != 0) return Error(EINVAL, "rename");
  const InodePtr from = SLUICE_TRY(parts_.tree.inode(parent));
  const InodePtr to = SLUICE_TRY(parts_.tree.inode(new_parent));
  if (is_private(*from, name) || is_private(*to, new_name)) return Error(EPERM, "rename");
  // A rename that a predecessor began may be done.
  const Budgets::Room room = request.remembered(Fact::Source)
                                 ? Budgets::Room(parts_.budgets)
                                 : SLUICE_TRY(parts_.budgets.admit_rename(from, to));
  RenameAttempt attempt;
  bool made_room = false;
  for (;;) {
    const InodePtr source = parts_.tree.moving_file(from, name, NamesHeld::No);
    const InodePtr target = parts_.tree.moving_file(to, new_name, NamesHeld::No);
    const ChangeGuard source_guard = SLUICE_TRY(ChangeGuard::of(source, request));
    const ChangeGuard target_guard =
        SLUICE_TRY(ChangeGuard::of(target == source ? nullptr : target, request));
    attempt.next = RenameAttempt::Next::Finish;
    const auto try_once = [&]() -> Result<void> {
      if (parts_.tree.moving_file(from, name, NamesHeld::Yes) != source ||
          parts_.tree.moving_file(to, new_name, NamesHeld::Yes) != target) {
        attempt.next = RenameAttempt::Next::Retry;
        return {};
      }
      SLUICE_TRY(source_guard.check_name());
      SLUICE_TRY(target_guard.check_name());
      return rename_locked(from, name, to, new_name, flags, request, attempt);
    };
    Result<void> done;
    if (attempt.exclusive) {
      ExclusiveLock lock(parts_.names_lock.mutex);
      done = try_once();
    } else {
      SharedLock lock(parts_.names_lock.mutex);
      done = try_once();
    }
    switch (attempt.next) {
      case RenameAttempt::Next::Finish:
        if (!failed_with(done, ENOSPC) || std::exchange(made_room, true) ||
            !parts_.pool.twins().make_room_where_full()) {
          return done;
        }
        break;
      case RenameAttempt::Next::LockExclusively:
        attempt.exclusive = true;
        break;
      case RenameAttempt::Next::SyncFile:
        if (request.must_not_wait()) return Error(kWouldWait, "sync the renamed file");
        if (::fdatasync(attempt.file.get()) < 0) return Error::last("sync the renamed file");
        attempt.synced = true;
        break;
      case RenameAttempt::Next::Retry:
        break;
    }
  }
}

Result<void> Names::rename_locked(const InodePtr& from, const char* name, const InodePtr& to,
                                  const char* new_name, unsigned flags,
                                  const KernelRequest& request, RenameAttempt& attempt) {
  const OpenCopies from_copies = SLUICE_TRY(parts_.tree.open_copies(from));
  const OpenCopies to_copies = SLUICE_TRY(parts_.tree.open_copies(to));
  if (SLUICE_TRY(was_renamed(from, from_copies, name, to, to_copies, new_name, flags, request)))
    return {};
  const auto source =
      SLUICE_TRY(parts_.tree.locate_for_kernel(from, from_copies, name, NamesHeld::Yes)).found;
  if (source.empty()) return Error(from_copies.complete ? ENOENT : EIO, "rename");
  const auto [target, target_file] =
      SLUICE_TRY(parts_.tree.locate_for_kernel(to, to_copies, new_name, NamesHeld::Yes));
  if (!target.empty() && (flags & RENAME_NOREPLACE)) return Error(EEXIST, "rename");
  if (target.empty() && (flags & RENAME_EXCHANGE)) return Error(ENOENT, "rename");
  if (!attempt.exclusive && (is_directory(source) || is_directory(target))) {
    attempt.next = RenameAttempt::Next::LockExclusively;
    return {};
  }

  if ((is_directory(source) && !from_copies.complete) ||
      (is_directory(target) && !to_copies.complete)) {
    return Error(EIO, "rename: the directory may have a copy on a tier that is offline");
  }

  const bool replaces = !target.empty() && !(flags & RENAME_EXCHANGE);
  if (replaces && is_directory(target)) {
    if (!is_directory(source)) return Error(EISDIR, "rename");
    for (const Located& copy : target) {
      const OpenCopy at = SLUICE_TRY(parts_.tree.open_copy(to, copy.tier));
      if (!SLUICE_TRY(is_empty(at.get(), new_name))) return Error(ENOTEMPTY, "rename");
    }
  } else if (replaces && is_directory(source)) {
    return Error(ENOTDIR, "rename");
  }
  if (replaces && !is_directory(source) &&
      !parts_.tree.check_not_hidden(to, new_name, target[0].tier, source[0].tier)) {
    return Error(EIO, "rename: two files have the new name; run 'sluice fsck'");
  }
  if (replaces) {
    is_directory(target) ? set_removed(target, true)
                         : keep_open_after_unlink(target[0], target_file);
  }
  if (target.empty()) SLUICE_TRY(parts_.away.note_new_name(to, to_copies, new_name));
  const auto done =
      rename_located(from, name, source, to, new_name, target, flags, request, attempt);
  if (!done && replaces && is_directory(target)) set_removed(target, false);
  if (!done || attempt.next != RenameAttempt::Next::Finish) return done;
  if (replaces && is_directory(target)) end_budget(target[0].identity.id);
  if (replaces && !is_directory(target) && target[0].st.st_nlink == 1)
    last_name_gone(target[0], target_file);
  renamed(from, name, source, to, new_name, target, flags);
  return {};
}

// Updates what is known in memory after a rename.
void Names::renamed(const InodePtr& from, const char* name, const std::vector<Located>& source,
                    const InodePtr& to, const char* new_name, const std::vector<Located>& target,
                    unsigned flags) {
  const auto set_name = [&](const Located& what, const InodePtr& where, const char* as) {
    const InodePtr moved = parts_.table.find(what);
    if (moved) moved->set_kernel_name(where->id(), as);
  };
  // The renamed directories may inherit other pins now.
  if ((is_directory(source) || is_directory(target)) &&
      parts_.pins.inside(from) != parts_.pins.inside(to))
    parts_.pins.inheritance_changed();
  set_name(source[0], to, new_name);
  if (flags & RENAME_EXCHANGE) set_name(target[0], from, name);
  count_renamed(from, name, source, to, new_name, target, flags);
}

// Tells the budgets of the directories.
void Names::count_renamed(const InodePtr& from, const char* name,
                          const std::vector<Located>& source, const InodePtr& to,
                          const char* new_name, const std::vector<Located>& target,
                          unsigned flags) {
  Budgets& budgets = parts_.budgets;
  // Two names of one file: rename(2) does nothing.
  if (!target.empty() && target[0].identity.id == source[0].identity.id) return;
  if (!(flags & RENAME_EXCHANGE) && is_directory(source))
    return budgets.directory_renamed(from, name, to, new_name);
  const auto gone = [&](const std::vector<Located>& what, const InodePtr& where, const char* as) {
    if (is_directory(what)) budgets.directory_gone(where, as);
    if (!what.empty() && S_ISREG(what[0].st.st_mode))
      budgets.name_gone(where, as, what[0].identity.id);
  };
  const auto came = [&](const std::vector<Located>& what, const InodePtr& where, const char* as) {
    if (is_directory(what)) budgets.directory_came(where);
    const InodePtr file = what.empty() ? nullptr : parts_.table.find(what[0]);
    if (file) budgets.name_came(where, as, file, Budgets::Growth::None);
  };
  // A file whose new name counts before the old one is gone keeps what is known of it.
  if (!(flags & RENAME_EXCHANGE)) gone(target, to, new_name);
  came(source, to, new_name);
  gone(source, from, name);
  if (!(flags & RENAME_EXCHANGE)) return;
  came(target, from, name);
  gone(target, to, new_name);
}

Result<bool> Names::was_renamed(const InodePtr& from, const OpenCopies& from_copies,
                                const char* name, const InodePtr& to, const OpenCopies& to_copies,
                                const char* new_name, unsigned flags,
                                const KernelRequest& request) {
  const auto source = request.remembered(Fact::Source), victim = request.remembered(Fact::Victim);
  if (!source || !victim) return false;
  // A rename on several tiers is never half done: its intent was executed before this request.
  if (!SLUICE_TRY(has_identity(to_copies, new_name, InodeId{*source}))) return false;
  const bool exchanges = flags & RENAME_EXCHANGE;
  // If the file has both names, they were and are hard links, and rename(2) does nothing.
  const InodeId there_now{exchanges ? *victim : *source};
  if (SLUICE_TRY(has_identity(from_copies, name, there_now)) != exchanges) return false;
  std::vector<Located> target;
  if (exchanges) {
    target = SLUICE_TRY(parts_.tree.locate(from_copies, name, NamesHeld::Yes));
  } else if (const InodePtr replaced = parts_.table.find(InodeId{*victim})) {
    if (replaced->is_directory()) set_removed(replaced, true);
    end_budget(replaced->id());
  }
  const auto found = SLUICE_TRY(parts_.tree.locate(to_copies, new_name, NamesHeld::Yes));
  // Empty only if someone changed the tier directly meanwhile.
  if (!found.empty() && target.empty() != exchanges)
    renamed(from, name, found, to, new_name, target, flags);
  return true;
}

Result<void> Names::rename_located(const InodePtr& from, const char* name,
                                   const std::vector<Located>& source, const InodePtr& to,
                                   const char* new_name, const std::vector<Located>& target,
                                   unsigned flags, const KernelRequest& request,
                                   RenameAttempt& attempt) {
  if (source.size() == 1 &&
      (target.empty() || (target.size() == 1 && target[0].tier == source[0].tier))) {
    // Only one tier is involved: its filesystem makes the rename atomic.
    const OpenCopy old_dir = SLUICE_TRY(parts_.tree.open_copy(from, source[0].tier));
    const OpenCopy new_dir = SLUICE_TRY(parts_.tree.ensure_copy(to, source[0].tier, Spares::Use));
    const ShownTimes::NameChange leaving(parts_.times, *from), arriving(parts_.times, *to);
    const unsigned how = target.empty() ? RENAME_NOREPLACE : flags & RENAME_EXCHANGE;
    remember_rename(source, target, request);
    const CallersRoom room(parts_.pool[source[0].tier]);
    if (::renameat2(old_dir.get(), name, new_dir.get(), new_name, how) < 0)
      return Error::last("rename");
    return {};
  }
  if (S_ISREG(source[0].st.st_mode) && !(flags & RENAME_EXCHANGE)) {
    // The replaced file is removed for good, so the new one must be on disk first: otherwise a
    // power failure could lose both. On a single tier the filesystem does this itself (ext4:
    // auto_da_alloc). Most of the file is synced before the names are locked; this sync writes only
    // what was added since.
    const OpenCopy old_dir = SLUICE_TRY(parts_.tree.open_copy(from, source[0].tier));
    UniqueFd file =
        SLUICE_TRY(open_without_waiting([&](int how) { return ::openat(old_dir.get(), name, how); },
                                        O_RDONLY | O_NOFOLLOW, "sync the renamed file"));
    if (!attempt.synced) {
      attempt.file = std::move(file);
      attempt.next = RenameAttempt::Next::SyncFile;
      return {};
    }
    if (::fdatasync(file.get()) < 0) return Error::last("sync the renamed file");
  }
  const auto steps = SLUICE_TRY(rename_steps(from, name, source, to, new_name, target, flags));
  const ShownTimes::NameChange leaving(parts_.times, *from), arriving(parts_.times, *to);
  remember_rename(source, target, request);
  return execute(parts_.store, parts_.pool, steps);
}

}  // namespace sluice
