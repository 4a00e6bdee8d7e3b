// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/census.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "base/file_at.hpp"
#include "metadata/decay.hpp"
#include "tiering/pool/kept_times.hpp"
#include "tiering/pool/pin.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kProgressEvery = 1000;
constexpr std::size_t kBlock = 512;  // unit of st_blocks

// A directory that the walk will visit. Descriptors are opened only when the visit begins.
struct Visit {
  std::string path;  // below the tiers' roots
  std::vector<TierIndex> tiers;
  TierIndex pin = kNoTier;
};

// An open directory stream that does not update the directory's atime.
struct Stream {
  explicit Stream(int fd) : dir(::fdopendir(fd)) {
    if (dir == nullptr && fd >= 0) ::close(fd);
    if (dir != nullptr) ::fcntl(fd, F_SETFL, O_NOATIME);
  }
  ~Stream() {
    if (dir != nullptr) ::closedir(dir);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  DIR* dir;
};

}  // namespace

class Census::Walk {
 public:
  Walk(Census& census, const Request& request) : census_(census), request_(request) {}

  Result<void> run() {
    Visit root;
    for (const auto& tier : request_.pool) {
      census_.whole_slots_.push_back(tier->online() ? tier->member().slot : 0);
      if (tier->online()) {
        root.tiers.push_back(tier->index());
      } else {
        census_.is_whole_ = false;
      }
    }
    stack_.push_back(std::move(root));
    while (!stack_.empty()) {
      const Visit visit = std::move(stack_.back());
      stack_.pop_back();
      SLUICE_TRY(look_into(visit));
    }
    return {};
  }

 private:
  // Handles a failure to read something. It is not a problem if the file was only removed
  // meanwhile.
  void leave_out(TierIndex tier, int code) {
    // This does not make the census incomplete. Otherwise one deep tree would keep the heat of
    // deleted files forever.
    if (code == ENAMETOOLONG) {
      ++census_.too_deep_;
      return;
    }
    if (code == ENOENT || code == ENOTDIR) return;
    census_.is_whole_ = false;
    census_.whole_slots_[tier] = 0;
  }

  // A directory that cannot be read is skipped; its files stay where they are.
  Result<void> look_into(const Visit& visit) {
    census_.directories_.push_back(visit.path);
    std::unordered_set<std::string> seen;  // names of non-directories on faster tiers
    std::map<std::string, Visit> below;
    TierIndex pin = visit.pin;
    bool first = true;
    for (const TierIndex index : visit.tiers) {
      const Tier& tier = request_.pool[index];
      const auto root = tier.root();
      auto fd = root ? open_beneath((*root)->get(), visit.path) : root.error();
      if (!fd) {
        leave_out(index, fd.error().code);
        continue;
      }
      const Stream stream(fd->release());
      if (stream.dir == nullptr) {
        leave_out(index, errno);
        continue;
      }
      const int dirfd = ::dirfd(stream.dir);
      if (std::exchange(first, false)) {
        const auto own = own_pin(request_.pool, dirfd, "");
        const auto here = static_cast<std::uint32_t>(census_.directories_.size() - 1);
        if (own) census_.pins_.push_back({{here, 0}, *own, true});
        pin = own.value_or(pin);
      }
      for (;;) {
        errno = 0;
        const dirent* entry = ::readdir(stream.dir);
        if (entry == nullptr) {
          if (errno != 0) leave_out(index, errno);
          break;
        }
        const std::string_view name = entry->d_name;
        if (name == "." || name == "..") continue;
        if (visit.path.empty() && name == kPrivateDirectory) continue;
        struct statx st {};
        unsigned char type = entry->d_type;
        if (type == DT_UNKNOWN || type == DT_REG) {
          if (::statx(dirfd, entry->d_name, AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC,
                      STATX_BASIC_STATS | STATX_BTIME, &st) < 0) {
            leave_out(index, errno);
            continue;
          }
          type = static_cast<unsigned char>(IFTODT(st.stx_mode));
        }
        if (type == DT_DIR) {
          if (seen.contains(std::string(name))) continue;
          Visit& child = below[std::string(name)];
          child.path = visit.path + "/" + std::string(name);
          child.tiers.push_back(index);
          continue;
        }
        if (visit.tiers.size() > 1 && !seen.emplace(name).second) continue;
        if (below.contains(std::string(name)) || type != DT_REG) continue;
        SLUICE_TRY(add_file(tier, dirfd, entry->d_name, st, pin));
      }
    }
    for (auto& [name, child] : below) {
      child.pin = pin;
      stack_.push_back(std::move(child));
    }
    return {};
  }

  Result<void> add_file(const Tier& tier, int dirfd, const char* name, const struct statx& st,
                        TierIndex inherited) {
    const auto identity = tier.identity_of(dirfd, name);
    if (!identity) {
      leave_out(tier.index(), identity.error().code);
      return {};
    }
    const Name where{static_cast<std::uint32_t>(census_.directories_.size() - 1),
                     census_.text_.size()};
    census_.text_.append(name).push_back('\0');
    if (st.stx_nlink > 1) {
      Links& links = census_.links_[identity->id];
      links.expected = st.stx_nlink;
      links.names.push_back(where);
      if (links.names.size() > 1) {
        // The pins of all its directories count, and of several the one to the fastest tier.
        TierIndex& pin = census_.files_[links.file].pin;
        if (!links.has_own_pin) pin = std::min(pin, inherited);
        return {};
      }
      links.file = census_.files_.size();
    }
    FileFacts file;
    file.id = identity->id;
    file.bytes = st.stx_blocks * kBlock;
    file.slack = slack_of(st.stx_size, file.bytes);
    file.arrived = made_at(st);
    file.tier = tier.index();
    const auto own = own_pin(request_.pool, dirfd, name);
    file.pin = own.value_or(inherited);
    if (st.stx_nlink > 1) census_.links_[identity->id].has_own_pin = own.has_value();
    census_.files_.push_back(file);
    census_.names_.push_back(where);
    if (own) census_.pins_.push_back({where, *own, false});
    if (!request_.policy.rules.empty()) {
      census_.sizes_.push_back(static_cast<std::int64_t>(st.stx_size));
      census_.mtimes_.push_back(st.stx_mtime.tv_sec);
    }
    const std::uint64_t count = census_.files_.size();
    if (count % kProgressEvery == 0 && request_.progress && !request_.progress(count))
      return Error(ECANCELED, "take a census");
    return {};
  }

  Census& census_;
  const Request& request_;
  std::vector<Visit> stack_;
};

namespace {

template <typename T>
void reorder(std::vector<T>& values, const std::vector<std::uint32_t>& order) {
  if (values.empty()) return;
  std::vector<T> sorted;
  sorted.reserve(values.size());
  for (const std::uint32_t i : order) sorted.push_back(values[i]);
  values = std::move(sorted);
}

}  // namespace

Result<Census> Census::take(const Request& request) {
  Census census;
  SLUICE_TRY(Walk(census, request).run());
  std::vector<std::uint32_t> order(census.files_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return census.files_[a].id < census.files_[b].id;
  });
  reorder(census.files_, order);
  reorder(census.names_, order);
  reorder(census.sizes_, order);
  reorder(census.mtimes_, order);
  SLUICE_TRY(census.join_heat(request));
  SLUICE_TRY(census.join_ghosts(request));
  census.join_times(request);
  census.match_rules(request);
  return census;
}

// A file that was created or moved after the walk passed its directory is not found. Only files
// last used longer ago than this many seconds are certainly gone.
constexpr std::int64_t kStaleAfter = 86400;

void set_heat(FileFacts& file, const Heat& heat, std::chrono::seconds half_life, std::int64_t now) {
  file.score = static_cast<float>(decayed(heat.score, heat.last_access, now, half_life));
  file.recent = static_cast<float>(decayed(heat.recent, heat.last_access, now, kRecentHalfLife));
  file.last_use = heat.last_access;
  file.since = heat.since;
  file.opens = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(heat.opens, std::numeric_limits<std::uint32_t>::max()));
}

// Both lists are sorted by id, so one pass over each is enough.
Result<void> Census::join_heat(const Request& request) {
  std::size_t at = 0;
  const auto joined = request.store.each_heat([&](InodeId id, const Heat& heat) {
    while (at < files_.size() && files_[at].id < id) ++at;
    if (at == files_.size() || files_[at].id != id) {
      if (is_whole_ && heat.last_access + kStaleAfter < request.now) stale_heat_.push_back(id);
      return true;
    }
    set_heat(files_[at], heat, request.half_life, request.now);
    return true;
  });
  // If the database is damaged, files whose heat could not be read count as cold.
  if (!joined && joined.error().code != EUCLEAN) return joined;
  return {};
}

Result<void> Census::join_ghosts(const Request& request) {
  // A ghost is useful only as long as the heat from before the file left.
  const auto memory = std::max<std::int64_t>(request.half_life.count(), 86400);
  std::size_t at = 0;
  return request.store.each_ghost([&](InodeId id, const Ghost& ghost) {
    while (at < files_.size() && files_[at].id < id) ++at;
    const Tier* tier = request.pool.by_slot(ghost.slot);
    const bool found = at < files_.size() && files_[at].id == id;
    if (!found || tier == nullptr || ghost.left_at + memory < request.now) {
      if (found || is_whole_) stale_ghosts_.push_back(id);
      return true;
    }
    FileFacts& file = files_[at];
    if (file.last_use > ghost.left_at && tier->index() < file.tier) file.ghost_of = tier->index();
    return true;
  });
}

// The times of a directory are deleted together with the directory.
void Census::join_times(const Request& request) {
  const std::int64_t old = (request.now - kStaleAfter) * 1'000'000'000;
  std::size_t at = 0;
  // If they cannot be read, none are deleted, and files arrived when their copies were made.
  [[maybe_unused]] const auto walked =
      request.store.each_times([&](InodeId id, const KeptTimes& times) {
        while (at < files_.size() && files_[at].id < id) ++at;
        const bool found = at < files_.size() && files_[at].id == id;
        if (found) {
          FileFacts& file = files_[at];
          const unsigned slot = request.pool[file.tier].member().slot;
          file.arrived = std::max(file.arrived, moved_at(times, slot));
        }
        if (!is_whole_) return true;
        const bool is_old = std::all_of(times.copies.begin(), times.copies.end(),
                                        [&](const auto& copy) { return copy.ctime < old; });
        if (!found && !times.is_directory && is_old) stale_times_.push_back(id);
        return true;
      });
}

void Census::match_rules(const Request& request) {
  const auto& rules = request.policy.rules;
  if (rules.empty()) return;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const std::int64_t used = std::max(mtimes_[i], files_[i].last_use);
    const auto rule =
        matching_rule(rules, path(i), static_cast<std::uint64_t>(sizes_[i]),
                      std::chrono::seconds(std::max<std::int64_t>(request.now - used, 0)));
    if (rule) files_[i].rule = static_cast<std::uint16_t>(*rule);
  }
}

std::string Census::path_of(const Name& name) const {
  return directories_[name.directory] + "/" + (text_.c_str() + name.at);
}

Census::Pinned Census::pin(std::size_t index) const {
  const PinnedName& pin = pins_[index];
  return {pin.is_directory ? directories_[pin.name.directory] : path_of(pin.name), pin.tier,
          pin.is_directory};
}

bool Census::has_all_names(std::size_t file) const {
  const auto found = links_.find(files_[file].id);
  return found == links_.end() || found->second.names.size() == found->second.expected;
}

std::vector<std::string> Census::paths(std::size_t file) const {
  const auto found = links_.find(files_[file].id);
  if (found == links_.end()) return {path(file)};
  std::vector<std::string> out;
  for (const Name& name : found->second.names) out.push_back(path_of(name));
  return out;
}

Result<std::vector<std::string>> find_names(const Tier& tier, ino_t number, nlink_t count) {
  const SharedFd root = SLUICE_TRY(tier.root());
  std::vector<std::string> found, stack{""};
  while (!stack.empty() && found.size() < count) {
    const std::string path = std::move(stack.back());
    stack.pop_back();
    auto fd = open_beneath(root->get(), path);
    if (!fd) continue;
    const Stream stream(fd->release());
    if (stream.dir == nullptr) continue;
    while (const dirent* entry = ::readdir(stream.dir)) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == ".." || (path.empty() && name == kPrivateDirectory)) continue;
      std::string below = path + "/" + entry->d_name;
      struct stat st {};
      if (entry->d_type == DT_DIR ||
          (entry->d_type == DT_UNKNOWN &&
           ::fstatat(::dirfd(stream.dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISDIR(st.st_mode))) {
        stack.push_back(std::move(below));
      } else if (entry->d_ino == number) {
        found.push_back(std::move(below));
      }
    }
  }
  return found;
}

}  // namespace sluice
