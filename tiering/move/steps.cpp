// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/steps.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/file_at.hpp"
#include "tiering/move/taken_name.hpp"
#include "tiering/pool/copier.hpp"

namespace sluice {
namespace {

unsigned rename_flags(Step::Kind kind) {
  if (kind == Step::Kind::Rename) return RENAME_NOREPLACE;
  return kind == Step::Kind::Exchange ? RENAME_EXCHANGE : 0;
}

// Directories are created in the tier's temporary directory and renamed into place. A power cut can
// undo only the rename. The handle then leads to the temporary directory, which will be deleted
// with everything in it.
Result<bool> has_no_name_yet(const Tier& tier, const UniqueFd& directory) {
  const SharedFd temp = SLUICE_TRY(tier.temp_directory());
  struct stat above {
  }, temporary{};
  if (::fstatat(directory.get(), "..", &above, 0) < 0 || ::fstat(temp->get(), &temporary) < 0)
    return Error::last("stat");
  if (above.st_ino == temporary.st_ino && above.st_dev == temporary.st_dev) return true;
  return tier.is_hidden(directory.get());
}

}  // namespace

Result<OpenPlace> open_place(const Pool& pool, const Place& place) {
  const Tier* tier = pool.by_slot(place.slot);
  if (tier == nullptr) return Error(EIO, "the operation needs a tier that is not configured");
  OpenPlace target{tier, {}, place.name.c_str()};
  if (place.directory.empty()) {
    const SharedFd root = SLUICE_TRY(tier->root());
    target.dir = SLUICE_TRY(open_beneath(root->get(), place.path));
  } else {
    target.dir = SLUICE_TRY(tier->open(place.directory, O_RDONLY | O_DIRECTORY));
    if (SLUICE_TRY(has_no_name_yet(*tier, target.dir)))
      return Error(ESTALE, "the directory was not renamed into place");
  }
  return target;
}

Result<bool> is_there(const Pool& pool, const Place& place, const Identity& subject) {
  const auto target = open_place(pool, place);
  if (!target) return is_gone(target.error()) ? Result<bool>(false) : target.error();
  return SLUICE_TRY(target->identity()) == subject;
}

Result<void> apply(const Pool& pool, const Step& step) {
  if (step.kind == Step::Kind::NameTaken) return apply_name_taken(pool, step);
  const OpenPlace from = SLUICE_TRY(open_place(pool, step.from));
  if (step.kind == Step::Kind::MirrorDir) {
    const OpenPlace to = SLUICE_TRY(open_place(pool, step.to));
    const bool is_checked = step.subject != Identity{};
    if (is_checked && SLUICE_TRY(to.tier->identity_of(to.dir.get(), "")) != step.subject) return {};
    return copy_attributes(from.dir.get(), to.dir.get());
  }
  const auto there = SLUICE_TRY(from.identity());
  if (step.kind == Step::Kind::Link) {
    const OpenPlace to = SLUICE_TRY(open_place(pool, step.to));
    if (SLUICE_TRY(to.identity()) == step.subject) return {};
    if (there != step.subject) return Error(ESTALE, "the file to link is gone");
    if (::linkat(from.dir.get(), from.name, to.dir.get(), to.name, 0) < 0)
      return Error::last("link");
    return {};
  }
  if (renames(step.kind)) {
    const OpenPlace to = SLUICE_TRY(open_place(pool, step.to));
    if (there == step.subject) {
      if (::renameat2(from.dir.get(), from.name, to.dir.get(), to.name, rename_flags(step.kind)) <
          0) {
        return Error::last("rename");
      }
      return {};
    }
    const auto arrived = SLUICE_TRY(to.identity());
    if (arrived != step.subject) return Error(ESTALE, "the file to rename is gone");
    return {};
  }
  if (there != step.subject) return {};  // already removed
  if (step.kind == Step::Kind::Keep) {
    const auto to = open_place(pool, step.to);
    if (to && ::renameat(from.dir.get(), from.name, to->dir.get(), to->name) == 0) return {};
    // Without its twin, the file is merely copied when it goes back.
  }
  if (::unlinkat(from.dir.get(), from.name, step.kind == Step::Kind::Rmdir ? AT_REMOVEDIR : 0) <
      0) {
    return Error::last("unlink");
  }
  return {};
}

Result<void> undo(const Pool& pool, const Step& step) {
  if (!can_be_undone(step.kind)) return {};
  if (!SLUICE_TRY(is_there(pool, step.to, step.subject))) return {};
  const OpenPlace to = SLUICE_TRY(open_place(pool, step.to));
  if (step.kind == Step::Kind::Link) {
    if (::unlinkat(to.dir.get(), to.name, 0) < 0) return Error::last("undo a link");
    return {};
  }
  const OpenPlace from = SLUICE_TRY(open_place(pool, step.from));
  const unsigned flags = step.kind == Step::Kind::Exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(to.dir.get(), to.name, from.dir.get(), from.name, flags) < 0)
    return Error::last("undo a rename");
  return {};
}

bool is_reachable(const Pool& pool, const std::vector<Step>& steps) {
  const auto present = [&](unsigned slot) {
    const Tier* tier = pool.by_slot(slot);
    return tier != nullptr && tier->present();
  };
  return std::all_of(steps.begin(), steps.end(), [&](const Step& step) {
    return present(step.from.slot) && (!has_target(step.kind) || present(step.to.slot));
  });
}

Result<void> Syncer::sync(const Place& place) {
  std::string key = std::to_string(place.slot) + '/' + place.directory.bytes + '/' + place.path;
  if (done_.contains(key)) return {};
  const auto target = open_place(pool_, place);
  if (!target) return is_gone(target.error()) ? Result<void>() : target.error();
  if (::fsync(target->dir.get()) < 0) return Error::last("sync directory");
  done_.insert(std::move(key));
  return {};
}

Result<void> Syncer::sync(const Step& step) {
  SLUICE_TRY(sync(step.from));
  if (has_target(step.kind)) SLUICE_TRY(sync(step.to));
  return {};
}

}  // namespace sluice
