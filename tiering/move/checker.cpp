// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/checker.hpp"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>

#include "base/file_at.hpp"
#include "tiering/move/intent.hpp"
#include "tiering/pool/copier.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {
namespace {

// The copies (by index) of a directory that contain some name, and what the name is there.
using Places = std::vector<std::pair<std::size_t, struct stat>>;
using Names = std::map<std::string, Places>;

Result<bool> same_bytes(int dir_a, int dir_b, const char* name) {
  constexpr std::size_t kChunk = 256 << 10;
  const UniqueFd a(::openat(dir_a, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  const UniqueFd b(::openat(dir_b, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!a || !b) return Error::last("open for comparison");
  std::string left(kChunk, '\0'), right(kChunk, '\0');
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(a.get(), left.data(), kChunk, at);
    const ssize_t other = ::pread(b.get(), right.data(), kChunk, at);
    if (got < 0 || other < 0) return Error::last("read for comparison");
    // A read of a regular file is short only at the end of the file.
    if (got != other || std::memcmp(left.data(), right.data(), static_cast<std::size_t>(got)) != 0)
      return false;
    if (got == 0) return true;
    at += got;
  }
}

class Checker {
 public:
  Checker(const Pool& pool, Repair repair, const std::function<void(std::uint64_t)>& progress)
      : pool_(pool), repair_(repair), progress_(progress) {}

  CheckReport run(Store* store) {
    if (store != nullptr) check_intents(*store);
    std::vector<Copy> roots;
    for (const auto& tier : pool_) {
      check_leftovers(*tier);
      check_twins(*tier);
      if (auto root = tier->root()) roots.push_back({tier, *root, {}});
    }
    for (const Copy& root : roots) check_aliases(root, "", "", nullptr);
    walk(std::move(roots));
    return std::move(report_);
  }

 private:
  struct Copy {
    Tier* tier;
    SharedFd fd;
    FileHandle handle;  // set while `fd` is closed
    int get() const { return fd->get(); }
  };

  // A file or directory that may share its identity with another.
  struct Holder {
    std::string path;
    const Tier* tier = nullptr;
    ino_t inode = 0;
  };

  Finding& found(Finding::Kind kind, const std::string& path, std::string detail) {
    return report_.findings.emplace_back(
        Finding{kind, path.empty() ? "/" : path, std::move(detail), false});
  }

  void check_intents(Store& store) {
    const auto intents = store.intents();
    if (!intents) {
      found(Finding::Kind::Unreadable, "", intents.error().text());
      return;
    }
    if (intents->empty()) return;
    Finding& finding = found(Finding::Kind::Unfinished, "",
                             std::to_string(intents->size()) +
                                 " operations across tiers are unfinished; "
                                 "mounting the pool finishes them, too");
    if (repair_ == Repair::No) return;
    const auto replayed = replay_intents(store, pool_);
    const auto left = store.intents();
    finding.repaired = replayed && left && left->empty();
  }

  void check_leftovers(const Tier& tier) {
    const auto temp = tier.temp_directory();
    if (!temp) {
      found(Finding::Kind::Unreadable, "", "tier " + tier.name() + ": " + tier.why_offline());
      return;
    }
    const auto names = names_in((*temp)->get());
    if (!names || names->empty()) return;
    Finding& finding = found(Finding::Kind::LeftOver, std::string("/") + kPrivateDirectory + "/tmp",
                             std::to_string(names->size()) + " unfinished copies on tier " +
                                 tier.name() + "; mounting the pool removes them, too");
    // While a disk is away, a copy here may be all that is left of a file on it.
    const bool is_whole =
        std::all_of(pool_.begin(), pool_.end(), [](const auto& each) { return each->online(); });
    if (repair_ == Repair::Yes && is_whole) {
      pool_.clear_temporaries();
      const auto left = names_in((*temp)->get());
      finding.repaired = left && left->empty();
    }
  }

  void check_twins(Tier& tier) {
    if (!tier.online()) return;
    const Twins::Check found = pool_.twins().check(tier, repair_ == Repair::Yes);
    report_.twins += found.good.files;
    report_.twin_bytes += found.good.bytes;
    report_.stale_twins += found.stale.files;
    report_.stale_twin_bytes += found.stale.bytes;
  }

  // One directory on the path to the current directory.
  struct Level {
    std::vector<Copy> copies;
    Names names;
    Names::const_iterator next;
    std::size_t path_size = 0;  // length of path_ for this directory
  };

  // Depth first. The tree may be deeper than the stack, PATH_MAX or the limit on descriptors allow.
  // So there is no recursion, and only the last levels keep their descriptors open.
  void walk(std::vector<Copy> roots) {
    constexpr std::size_t kOpenLevels = 64;
    enter(std::move(roots));
    while (!levels_.empty()) {
      Level& level = levels_.back();
      path_.resize(level.path_size);
      if (level.next == level.names.end()) {
        levels_.pop_back();
        continue;
      }
      open_again(level);
      const auto& [name, places] = *level.next++;
      path_ += "/" + name;
      std::vector<Copy> inside = examine(level.copies, path_, name, places);
      if (inside.empty()) continue;
      enter(std::move(inside));
      if (levels_.size() > kOpenLevels) close(levels_[levels_.size() - 1 - kOpenLevels]);
    }
  }

  // If the tier has no handles, the descriptors stay open.
  static void close(Level& level) {
    for (Copy& copy : level.copies) {
      const auto self = copy.tier->identify(copy.get(), "");
      if (!self || self->handle.empty()) continue;
      copy.handle = self->handle;
      copy.fd = nullptr;
    }
  }

  // If a copy was removed meanwhile, it is treated as empty.
  static void open_again(Level& level) {
    for (Copy& copy : level.copies) {
      if (copy.fd) continue;
      auto fd = copy.tier->open(copy.handle, O_RDONLY | O_DIRECTORY);
      copy.fd = std::make_shared<UniqueFd>(fd ? *std::move(fd) : UniqueFd());
    }
  }

  // Enters the directory path_, which has these copies.
  void enter(std::vector<Copy> copies) {
    ++report_.directories;
    Names names;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const auto here = names_in(copies[i].get());
      if (!here) {
        found(Finding::Kind::Unreadable, path_,
              "on tier " + copies[i].tier->name() + ": " + here.error().text());
        continue;
      }
      for (const std::string& name : *here) {
        if (path_.empty() && name == kPrivateDirectory) continue;
        struct stat st {};
        if (::fstatat(copies[i].get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0)
          names[name].emplace_back(i, st);
      }
    }
    levels_.push_back({std::move(copies), std::move(names), {}, path_.size()});
    levels_.back().next = levels_.back().names.begin();
  }

  // If the name is a directory, returns its copies, which the walk then enters.
  std::vector<Copy> examine(const std::vector<Copy>& copies, const std::string& path,
                            const std::string& name, const Places& places) {
    const bool directory = S_ISDIR(places[0].second.st_mode);
    std::vector<Copy> inside;
    for (const auto& [index, st] : places) {
      check_aliases(copies[index], path, name, &st);
      check_identity(copies, places, index, path, name, st);
      if (S_ISDIR(st.st_mode) != directory) {
        found(Finding::Kind::TypeClash, path,
              "on tiers " + copies[places[0].first].tier->name() + " and " +
                  copies[index].tier->name() + "; rename one of them on its tier");
        continue;
      }
      if (!directory) continue;
      UniqueFd fd(::openat(copies[index].get(), name.c_str(),
                           O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (fd) inside.push_back({copies[index].tier, std::make_shared<UniqueFd>(std::move(fd)), {}});
    }
    if (directory) {
      if (inside.empty()) found(Finding::Kind::Unreadable, path, "cannot be opened");
      compare_directories(inside, path);
      return inside;
    }
    if (++report_.files % 1000 == 0) progress_(report_.files);
    for (std::size_t i = 1; i < places.size(); ++i) {
      if (!S_ISDIR(places[i].second.st_mode))
        compare_files(copies[places[0].first], copies[places[i].first], path, name,
                      places[0].second, places[i].second);
    }
    return {};
  }

  void compare_directories(const std::vector<Copy>& copies, const std::string& path) {
    struct stat first {};
    if (copies.empty() || ::fstat(copies[0].get(), &first) < 0) return;
    for (std::size_t i = 1; i < copies.size(); ++i) {
      struct stat other {};
      if (::fstat(copies[i].get(), &other) < 0) continue;
      const bool same = first.st_mode == other.st_mode && first.st_uid == other.st_uid &&
                        first.st_gid == other.st_gid &&
                        same_xattrs(copies[0].get(), copies[i].get());
      if (same) continue;
      Finding& finding =
          found(Finding::Kind::DirectoryAttributes, path,
                "owner, mode or xattrs on tier " + copies[i].tier->name() +
                    " differ from those on " + copies[0].tier->name() + ", which take precedence");
      if (repair_ == Repair::Yes)
        finding.repaired = copy_attributes(copies[0].get(), copies[i].get()).has_value();
    }
  }

  void compare_files(const Copy& fast, const Copy& slow, const std::string& path,
                     const std::string& name, const struct stat& a, const struct stat& b) {
    const std::string where =
        "on tiers " + fast.tier->name() + " (which takes precedence) and " + slow.tier->name();
    bool same = S_ISREG(a.st_mode) && S_ISREG(b.st_mode) && a.st_size == b.st_size;
    if (same) {
      const auto equal = same_bytes(fast.get(), slow.get(), name.c_str());
      if (!equal) {
        found(Finding::Kind::Unreadable, path, where + ": " + equal.error().text());
        return;
      }
      same = *equal;
    }
    if (!same) {
      found(Finding::Kind::TwoFiles, path,
            where + ", with different contents; keep one and move the other away on its tier");
      return;
    }
    Finding& finding = found(Finding::Kind::SameFileTwice, path, where + ", with equal contents");
    if (repair_ == Repair::Yes) finding.repaired = ::unlinkat(slow.get(), name.c_str(), 0) == 0;
  }

  // `st` is the stat of `name` in `copies[index]`.
  void check_identity(const std::vector<Copy>& copies, const Places& places, std::size_t index,
                      const std::string& path, const std::string& name, const struct stat& st) {
    const Copy& copy = copies[index];
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return;
    const auto identity = copy.tier->identity_of(copy.get(), name.c_str());
    if (!identity) return;
    // If two files share an identity, at least one of them carries it in an xattr. Directories
    // whose natural identity is a hash are remembered, too, because a hash cannot be looked up.
    // Files with a hash are not: there are too many.
    const bool carries = getxattr_at(copy.get(), name.c_str(), kIdentityXattr, nullptr, 0) >= 0;
    if (!carries && (slot_of(identity->id) != kOpaqueSlot || !S_ISDIR(st.st_mode))) return;
    Holder other = born_with(*identity);
    const bool is_here = std::any_of(places.begin(), places.end(), [&](const auto& place) {
      return copies[place.first].tier == other.tier && place.second.st_ino == other.inode;
    });
    if (is_here) return;
    if (other.tier == nullptr) {
      other = holders_.emplace(to_number(identity->id), Holder{path, copy.tier, st.st_ino})
                  .first->second;
    }
    // Hard links and copies of a directory share an identity legitimately.
    if (other.path == path || (other.tier == copy.tier && other.inode == st.st_ino)) return;
    Finding& finding = found(Finding::Kind::SharedIdentity, path, shared_text(copy, path, other));
    if (repair_ == Repair::No || !carries) return;
    const UniqueFd fd(::openat(copy.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return;
    // A directory may have been renamed on its tier together with its contents.
    if (S_ISDIR(st.st_mode)) {
      const auto inside = names_in(fd.get(), 1);
      if (!inside || !inside->empty()) return;
    }
    finding.repaired = ::fremovexattr(fd.get(), kIdentityXattr) == 0;
  }

  static std::string shared_text(const Copy& copy, const std::string& path, const Holder& other) {
    std::string text = "on tier " + copy.tier->name() + ", has the identity of " + other.path +
                       " on tier " + other.tier->name();
    struct stat st {};
    const std::string place = copy.tier->path() + path;
    if (::lstat(place.c_str(), &st) < 0 || !S_ISDIR(st.st_mode)) return text;
    return text + "; if the contents of " + place +
           " belong there, rename it to that on its tier; otherwise run: "
           "setfattr -x " +
           kIdentityXattr + " " + place;
  }

  // The file or directory whose natural identity is `identity`. The result has no tier if it is
  // gone.
  Holder born_with(const Identity& identity) const {
    const Tier* tier = pool_.by_slot(slot_of(identity.id));
    if (tier == nullptr) return {};
    const auto there = tier->find(identity.id);
    if (!there || there->handle.empty()) return {};
    const auto fd = tier->open(there->handle, O_PATH);
    const auto path = fd ? current_path(fd->get()) : Result<std::string>(fd.error());
    const auto root = tier->root();
    const auto top = root ? current_path((*root)->get()) : Result<std::string>(root.error());
    Holder holder{"inode " + std::to_string(there->st.st_ino), tier, there->st.st_ino};
    // The kernel always knows the path of a directory, but not always that of a file.
    if (path && top && path->starts_with(*top + "/")) holder.path = path->substr(top->size());
    const bool is_private = holder.path.starts_with(std::string("/") + kPrivateDirectory + "/");
    return is_private ? Holder{} : holder;
  }

  // `st` is null for the root of a tier itself.
  void check_aliases(const Copy& copy, const std::string& path, const std::string& name,
                     const struct stat* st) {
    // On XFS these attributes are the ACL itself. Stacked filesystems and mounts inside a directory
    // may have XFS below them, so only these filesystems are known not to be XFS.
    constexpr std::array<std::string_view, 6> kNotXfs{"ext4", "btrfs", "tmpfs",
                                                      "f2fs", "zfs",   "bcachefs"};
    const std::string filesystem = copy.tier->filesystem();
    if (std::find(kNotXfs.begin(), kNotXfs.end(), filesystem) == kNotXfs.end()) return;
    if (st != nullptr && (S_ISLNK(st->st_mode) || st->st_dev != copy.tier->device())) return;
    for (const char* alias : acl_aliases()) {
      if (getxattr_at(copy.get(), name.c_str(), alias, nullptr, 0) < 0) continue;
      Finding& finding =
          found(Finding::Kind::AclAlias, path,
                std::string(alias) + " on tier " + copy.tier->name() + ": not an ACL on " +
                    filesystem + ", but it becomes one if it is copied to xfs");
      if (repair_ == Repair::No) continue;
      const UniqueFd fd(name.empty()
                            ? ::fcntl(copy.get(), F_DUPFD_CLOEXEC, 0)
                            : ::openat(copy.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      finding.repaired = fd && ::removexattr(proc_path(fd.get()).c_str(), alias) == 0;
    }
  }

  static bool same_xattrs(int a, int b) {
    const auto left = read_xattrs(a), right = read_xattrs(b);
    return left == right;
  }

  static std::map<std::string, std::string> read_xattrs(int fd) {
    std::map<std::string, std::string> out;
    std::string list(64 << 10, '\0'), value(64 << 10, '\0');
    const ssize_t size = ::flistxattr(fd, list.data(), list.size());
    for (ssize_t at = 0; at < size;) {
      const std::string name = list.data() + at;
      at += static_cast<ssize_t>(name.size()) + 1;
      if (!is_copied_xattr(name)) continue;
      const ssize_t got = ::fgetxattr(fd, name.c_str(), value.data(), value.size());
      if (got >= 0) out[name] = value.substr(0, static_cast<std::size_t>(got));
    }
    return out;
  }

  const Pool& pool_;
  const Repair repair_;
  const std::function<void(std::uint64_t)>& progress_;
  CheckReport report_;
  std::unordered_map<std::uint64_t, Holder> holders_;  // by identity
  // A deque keeps its elements in place when it grows; `next` may be an end iterator.
  std::deque<Level> levels_;
  std::string path_;  // path of the current directory
};

}  // namespace

const char* name_of(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::SameFileTwice:
      return "same-file-twice";
    case Finding::Kind::TwoFiles:
      return "two-files";
    case Finding::Kind::TypeClash:
      return "type-clash";
    case Finding::Kind::DirectoryAttributes:
      return "directory-attributes";
    case Finding::Kind::SharedIdentity:
      return "shared-identity";
    case Finding::Kind::AclAlias:
      return "acl-alias";
    case Finding::Kind::LeftOver:
      return "left-over";
    case Finding::Kind::Unfinished:
      return "unfinished";
    case Finding::Kind::Unreadable:
      return "unreadable";
  }
  return "unknown";
}

bool CheckReport::clean() const {
  return std::all_of(findings.begin(), findings.end(), [](const Finding& f) { return f.repaired; });
}

CheckReport check_pool(const Pool& pool, Store* store, Repair repair,
                       const std::function<void(std::uint64_t files)>& progress) {
  return Checker(pool, repair, progress).run(store);
}

}  // namespace sluice
