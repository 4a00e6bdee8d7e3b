// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/origin/check.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/file_at.hpp"

namespace sluice {

Result<ScratchDirectory> ScratchDirectory::make_in(const std::string& directory) {
  UniqueFd parent(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent) return Error::last("open the directory");
  std::string path = proc_path(parent.get()) + "/.sluice-check.XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return Error::last("make a directory there");
  std::string name = path.substr(path.rfind('/') + 1);
  UniqueFd fd(::openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) {
    const Error error = Error::last("open a directory there");
    ::unlinkat(parent.get(), name.c_str(), AT_REMOVEDIR);
    return error;
  }
  return ScratchDirectory(std::move(parent), std::move(name), std::move(fd));
}

ScratchDirectory::~ScratchDirectory() {
  if (!fd_) return;  // moved away
  if (const auto names = names_in(fd_.get())) {
    for (const std::string& name : *names) ::unlinkat(fd_.get(), name.c_str(), 0);
  }
  ::unlinkat(parent_.get(), name_.c_str(), AT_REMOVEDIR);
}

Result<RaceSight> run_race(int scratch, AttributeSpace space, CheckSide& other,
                           const std::function<bool(const RaceSight&)>& go_on) {
  RaceWriter writer = SLUICE_TRY(RaceWriter::create(scratch, space));
  RaceSight all;
  do {
    const std::uint64_t round = all.rounds + 1;
    SLUICE_TRY(writer.write(round));
    const auto seen = SLUICE_TRY(other.read_race(round));
    all.add(seen);
  } while (go_on(all));
  return all;
}

CloseToOpen judge(const std::vector<Ability>& abilities, const RaceSight& race) {
  const bool lacks = std::ranges::any_of(
      abilities, [](const Ability& each) { return each.state == Ability::State::Missing; });
  if (lacks || race.stale > 0) return CloseToOpen::No;
  return race.rounds > 0 ? CloseToOpen::Yes : CloseToOpen::Unknown;
}

std::string mount_advice(const std::string& type, const std::string& source) {
  if (source.starts_with("mfs#") || type == "fuse.mfs" || type == "fuse.moosefs")
    return "MooseFS: mount it on every machine with -o mfsxattrcacheto=0";
  if (type == "fuse.glusterfs")
    return "GlusterFS: mount it with --fopen-keep-cache=no, and set the volume's caches off: "
           "performance.quick-read, io-cache, read-ahead, readdir-ahead, write-behind, "
           "open-behind, "
           "stat-prefetch and nl-cache";
  if (type == "nfs" || type == "nfs4")
    return "NFS: only version 4.2 has extended attributes: mount it with -o vers=4.2";
  if (type == "fuse.sshfs" || type == "fuse.rclone")
    return "sshfs and rclone can't be shared: use a filesystem that is made for it";
  return "";
}

}  // namespace sluice
