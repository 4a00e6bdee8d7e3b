// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/taken_name.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/move/steps.hpp"
#include "tiering/pool/copier.hpp"

namespace sluice {
namespace {

// A name on a tier, with its directory open.
struct Named {
  Tier* tier = nullptr;
  UniqueFd directory;
  struct stat st {};
};

Result<UniqueFd> make_and_open(int parent, const std::string& name) {
  if (::mkdirat(parent, name.c_str(), 0700) < 0 && errno != EEXIST)
    return Error::last("create directory in .sluice/aside");
  UniqueFd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return Error::last("open directory in .sluice/aside");
  return fd;
}

Result<void> set_aside(const Named& what, const std::string& path, const std::string& name) {
  const SharedFd root = SLUICE_TRY(what.tier->root());
  UniqueFd at = SLUICE_TRY(open_beneath(root->get(), kPrivateDirectory));
  at = SLUICE_TRY(make_and_open(at.get(), kAsideDirectory));
  const std::string own = Tier::new_temp_name();
  at = SLUICE_TRY(make_and_open(at.get(), own));
  for (std::size_t from = 0; from < path.size();) {
    const std::size_t to = std::min(path.find('/', from), path.size());
    if (to > from) at = SLUICE_TRY(make_and_open(at.get(), path.substr(from, to - from)));
    from = to + 1;
  }
  if (::renameat2(what.directory.get(), name.c_str(), at.get(), name.c_str(), RENAME_NOREPLACE) < 0)
    return Error::last("move file to .sluice/aside");
  if (::fsync(at.get()) < 0) return Error::last("sync .sluice/aside");
  log::get().warn(
      "set a file aside, another file took its name while its tier was away: path={} tier={} "
      "kept={}",
      log::escaped(path + "/" + name), what.tier->name(),
      log::escaped(std::string(kPrivateDirectory) + "/" + kAsideDirectory + "/" + own));
  return {};
}

Result<void> make_one(const Named& older, const Named& newer, const std::string& name) {
  const auto open = [&](const Named& each) {
    return UniqueFd(::openat(each.directory.get(), name.c_str(),
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  };
  const UniqueFd from = open(newer), to = open(older);
  if (!from || !to) return Error::last("open directory");
  SLUICE_TRY(copy_attributes(from.get(), to.get()));
  const mode_t both = older.st.st_mode & newer.st.st_mode & 07777;
  if (both != (newer.st.st_mode & 07777) &&
      (::fchmod(from.get(), both) < 0 || ::fchmod(to.get(), both) < 0))
    return Error::last("chmod");
  return older.tier->carry_identity(
      to.get(), SLUICE_TRY(newer.tier->identity_of(newer.directory.get(), name.c_str())));
}

}  // namespace

Result<void> apply_name_taken(const Pool& pool, const Step& step) {
  const std::string &path = step.from.path, &name = step.from.name;
  const auto find = [&](Tier& tier) -> Result<Named> {
    const SharedFd root = SLUICE_TRY(tier.root());
    Named found{&tier, SLUICE_TRY(open_beneath(root->get(), path)), {}};
    if (::fstatat(found.directory.get(), name.c_str(), &found.st, AT_SYMLINK_NOFOLLOW) < 0)
      return Error::last("stat");
    return found;
  };
  Tier* const returned = pool.by_slot(step.from.slot);
  if (returned == nullptr) return Error(EIO, "the operation needs a tier that is not configured");
  const auto older = find(*returned);
  if (!older) return is_gone(older.error()) ? Result<void>() : older.error();
  for (const auto& tier : pool) {
    if (tier == returned) continue;
    const auto newer = find(*tier);
    if (!newer) continue;
    struct stat above {};
    if (::fstat(newer->directory.get(), &above) < 0) return Error::last("stat");
    const uid_t owner = newer->st.st_uid;
    const bool may_replace = !(above.st_mode & S_ISVTX) || owner == 0 || owner == above.st_uid ||
                             owner == older->st.st_uid;
    const bool is_older_dir = S_ISDIR(older->st.st_mode), is_newer_dir = S_ISDIR(newer->st.st_mode);
    if (is_older_dir && is_newer_dir && owner == older->st.st_uid)
      return make_one(*older, *newer, name);
    return set_aside(may_replace && !is_older_dir ? *older : *newer, path, name);
  }
  return {};
}

}  // namespace sluice
