// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/log.hpp"

namespace sluice {
namespace {

constexpr const char* kLockName = "lock";
constexpr unsigned kMaxSlot = 30;

std::string reason(const Error& error) {
  return std::string(error.operation) + ": " + std::strerror(error.code);
}

// A configured tier on its way into the pool.
struct Candidate {
  const TierSettings* settings;
  UniqueFd root;
  std::optional<Marker> marker;
  Member member;
  std::string offline;  // why it can't take part; empty if it can
};

constexpr std::string_view kMountedAt = "mounted at ";

// Whether the daemon that wrote `owner` into its lock still has its mount. One that has not is
// about to end: umount(8) returns before it does.
bool is_mounted(std::string_view owner) {
  const auto at = owner.find(kMountedAt);
  if (at == std::string_view::npos) return true;
  struct statfs fs {};
  const std::string mountpoint(owner.substr(at + kMountedAt.size()));
  return ::statfs(mountpoint.c_str(), &fs) < 0 || fs.f_type == FUSE_SUPER_MAGIC;
}

// Takes the lock file of one tier, or says who has it.
bool lock_tier(const Candidate& tier, const std::string& user, UniqueFd& lock, std::string& why) {
  constexpr auto kPatience = std::chrono::seconds(30);
  const std::string name = std::string(kPrivateDirectory) + "/" + kLockName;
  lock.reset(
      ::openat(tier.root.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) {
    why = "tier " + tier.settings->name + ": can't open " + tier.settings->path + "/" + name +
          ": " + std::strerror(errno);
    return false;
  }
  std::string owner;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    owner.assign(4200, '\0');
    const ssize_t got = ::pread(lock.get(), owner.data(), owner.size(), 0);
    owner.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (is_mounted(owner) || std::chrono::steady_clock::now() > deadline) {
      why = "tier " + tier.settings->name + ": the pool is already in use (" +
            (owner.empty() ? "another process" : owner) + "); unmount it there first";
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  owner = "pid " + std::to_string(::getpid()) + ", " + user;
  if (::ftruncate(lock.get(), 0) == 0) {
    // Only a courtesy to whoever comes second.
    [[maybe_unused]] const ssize_t wrote = ::pwrite(lock.get(), owner.data(), owner.size(), 0);
  }
  return true;
}

bool open_candidate(Candidate& tier, Pool::Missing missing, std::string& why) {
  const TierSettings& s = *tier.settings;
  tier.root.reset(::open(s.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!tier.root) {
    tier.offline = s.path + ": " + std::strerror(errno);
    if (missing == Pool::Missing::Tolerate) return true;
    why = "tier " + s.name + ": " + tier.offline +
          "; create it, mount its disk, or pass --degraded to go without it";
    return false;
  }
  auto marker = read_marker(tier.root.get());
  if (!marker) {
    why = "tier " + s.name + ": " + s.path + "/.sluice/tier.json: ";
    why += marker.error().code == EPROTONOSUPPORT
               ? "it was written by a newer Sluice; upgrade this one"
               : reason(marker.error()) + "; restore it from a backup";
    return false;
  }
  tier.marker = *std::move(marker);
  return true;
}

}  // namespace

std::unique_ptr<Pool> Pool::open(const std::vector<TierSettings>& settings, Missing missing,
                                 NewTiers new_tiers, const std::string& user, std::string& why) {
  std::vector<Candidate> tiers;
  for (const TierSettings& s : settings) {
    Candidate tier{&s, {}, {}, {}, {}};
    if (!open_candidate(tier, missing, why)) return nullptr;
    tiers.push_back(std::move(tier));
  }

  auto pool = std::unique_ptr<Pool>(new Pool);
  std::map<std::string, Member> roster;  // by name: every tier that any marker knows
  unsigned last_slot = 0;
  for (const Candidate& tier : tiers) {
    if (!tier.marker) continue;
    if (pool->id_.empty()) pool->id_ = tier.marker->pool;
    if (pool->id_ != tier.marker->pool) {
      why = "tier " + tier.settings->name + ": " + tier.settings->path +
            " belongs to another pool (" + tier.marker->pool +
            "); give each pool directories of its own";
      return nullptr;
    }
    if (tier.marker->self.name != tier.settings->name) {
      why = "tier " + tier.settings->name + ": " + tier.settings->path + " is this pool's tier " +
            tier.marker->self.name + "; put the tiers' paths in the right order";
      return nullptr;
    }
    for (const Member& m : tier.marker->members) {
      roster[m.name] = m;
      last_slot = std::max(last_slot, m.slot);
    }
  }
  const bool new_pool = pool->id_.empty();
  if (new_pool) pool->id_ = new_uuid();

  bool changed = false;
  for (Candidate& tier : tiers) {
    const auto known = roster.find(tier.settings->name);
    if (known != roster.end()) {
      tier.member = known->second;
      if (tier.root && !tier.marker) {
        tier.offline = tier.settings->path +
                       " has no .sluice/tier.json: its disk is not mounted, or not this one";
        if (missing == Missing::Refuse) {
          why = "tier " + tier.settings->name + ": " + tier.offline +
                "; mount it, or pass --degraded to go without it";
          return nullptr;
        }
        tier.root.reset();
      }
      continue;
    }
    if (!tier.root) {
      why = "tier " + tier.settings->name + ": " + tier.offline +
            "; the pool does not know this tier yet";
      return nullptr;
    }
    if (new_tiers == NewTiers::Refuse) {
      why = "tier " + tier.settings->name + ": " + tier.settings->path +
            " has never been part of a pool: there is no .sluice/tier.json in it";
      return nullptr;
    }
    if (++last_slot > kMaxSlot) {
      why = "tier " + tier.settings->name + ": a pool can have " + std::to_string(kMaxSlot) +
            " tiers in its life";
      return nullptr;
    }
    tier.member = {tier.settings->name, new_uuid(), last_slot};
    roster[tier.member.name] = tier.member;
    changed = true;
  }
  for (const auto& [name, member] : roster) {
    const bool configured = std::any_of(tiers.begin(), tiers.end(),
                                        [&](const Candidate& t) { return t.member == member; });
    if (!configured && missing == Missing::Refuse) {
      why = "the pool also has a tier " + name +
            ", which is not configured: its files would be missing; add it, or pass --degraded";
      return nullptr;
    }
  }

  std::vector<Member> members;
  for (const auto& entry : roster) members.push_back(entry.second);
  for (const Candidate& tier : tiers) {
    if (!tier.root || (!changed && tier.marker)) continue;
    const auto written = write_marker(tier.root.get(), {pool->id_, tier.member, members});
    if (!written) {
      why = "tier " + tier.settings->name + ": can't write " + tier.settings->path +
            "/.sluice: " + reason(written.error()) + "; make the directory writable";
      return nullptr;
    }
  }
  for (Candidate& tier : tiers) {
    if (tier.root) {
      UniqueFd held;
      if (!lock_tier(tier, user, held, why)) return nullptr;
      pool->locks_.push_back(std::move(held));
    }
  }
  for (Candidate& tier : tiers) {
    const bool present = static_cast<bool>(tier.root);
    auto made = std::make_unique<Tier>(static_cast<TierIndex>(pool->tiers_.size()), *tier.settings,
                                       tier.member, std::move(tier.root), tier.offline);
    if (present && !made->online()) {
      why = "tier " + made->name() + ": " + made->path() + ": " + made->why_offline();
      return nullptr;
    }
    pool->tiers_.push_back(std::move(made));
  }
  return pool;
}

Tier* Pool::by_slot(unsigned slot) const {
  for (const auto& tier : tiers_) {
    if (tier->member().slot == slot) return tier.get();
  }
  return nullptr;
}

std::vector<TierIndex> Pool::placement() const {
  std::vector<TierIndex> best, roomy, rest;
  for (const auto& tier : tiers_) {
    if (!tier->online()) continue;
    const bool low = tier->low_on_space();
    auto& group = low ? rest : tier->above_high_watermark() ? roomy : best;
    group.push_back(tier->index());
  }
  best.insert(best.end(), roomy.begin(), roomy.end());
  best.insert(best.end(), rest.begin(), rest.end());
  return best;
}

void Pool::clear_temporaries() const {
  for (const auto& tier : tiers_) {
    const auto temp = tier->temp_directory();
    if (!temp) continue;
    DIR* dir = ::fdopendir(::openat((*temp)->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir == nullptr) continue;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      // A directory here is empty: it is renamed into place before anything is put in it.
      if (::unlinkat((*temp)->get(), entry->d_name, 0) < 0) {
        [[maybe_unused]] const int removed =
            ::unlinkat((*temp)->get(), entry->d_name, AT_REMOVEDIR);
      }
    }
    ::closedir(dir);
  }
}

}  // namespace sluice
