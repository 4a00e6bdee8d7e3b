// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/tier_lock.hpp"
#include "tiering/twins.hpp"

namespace sluice {
namespace {

// A configured tier that is being opened.
struct Candidate {
  const TierSettings* settings;
  UniqueFd root;
  std::optional<Marker> marker;
  Member member;
  std::string offline;  // why it can't take part; empty if it can
  UniqueFd lock;
};

// An error of opening a pool, with a complete sentence for the user.
Error unusable(int code, std::string text) { return {code, "open the pool", std::move(text)}; }

Result<void> open_candidate(Candidate& tier, Pool::Missing missing) {
  const TierSettings& s = *tier.settings;
  tier.root.reset(::open(s.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!tier.root) {
    const int code = errno;
    tier.offline = s.path + ": " + std::strerror(code);
    if (missing == Pool::Missing::Tolerate) return {};
    return unusable(code, "tier " + s.name + ": " + tier.offline +
                              "; create it, mount its disk, or pass --degraded to go without it");
  }
  auto marker = read_marker(tier.root.get());
  if (!marker) {
    const std::string why = marker.error().code == EPROTONOSUPPORT
                                ? "it was written by a newer Sluice; upgrade this one"
                                : marker.error().text() + "; restore it from a backup";
    return unusable(marker.error().code,
                    "tier " + s.name + ": " + s.path + "/.sluice/tier.json: " + why);
  }
  tier.marker = *std::move(marker);
  return {};
}

Result<void> lock_candidate(Candidate& tier, const std::string& user) {
  auto lock = lock_tier(tier.root.get(), user);
  if (lock) {
    tier.lock = *std::move(lock);
    return {};
  }
  const std::string why =
      lock.error().code == EBUSY
          ? "the pool is already in use (" + lock.error().text() + "); unmount it there first"
          : tier.settings->path + "/.sluice: " + lock.error().text();
  return unusable(lock.error().code, "tier " + tier.settings->name + ": " + why);
}

using Roster = std::map<std::string, Member>;  // by name: every tier that a pool has had

// What the markers on the present tiers say about the pool.
Result<void> read_roster(const std::vector<Candidate>& tiers, std::string& pool, Roster& roster) {
  for (const Candidate& tier : tiers) {
    if (!tier.marker) continue;
    if (pool.empty()) pool = tier.marker->pool;
    if (pool != tier.marker->pool) {
      return unusable(EXDEV, "tier " + tier.settings->name + ": " + tier.settings->path +
                                 " belongs to another pool (" + tier.marker->pool +
                                 "); give each pool directories of its own");
    }
    if (tier.marker->self.name != tier.settings->name) {
      return unusable(EEXIST, "tier " + tier.settings->name + ": " + tier.settings->path +
                                  " is this pool's tier " + tier.marker->self.name +
                                  "; put the tiers' paths in the right order");
    }
    std::vector<Member> members = tier.marker->members;
    members.push_back(tier.marker->self);
    for (Member& m : members) {
      // A tier that was offline when another one retired does not know that.
      if (const auto known = roster.find(m.name); known != roster.end())
        m.retired = m.retired || known->second.retired;
      roster[m.name] = m;
    }
  }
  return {};
}

// Assigns each tier its entry of the roster, or a new one.
Result<void> assign_members(std::vector<Candidate>& tiers, Pool::Missing missing,
                            Pool::NewTiers new_tiers, Roster& roster) {
  unsigned last_slot = 0;
  for (const auto& entry : roster) last_slot = std::max(last_slot, entry.second.slot);
  for (Candidate& tier : tiers) {
    const std::string named = "tier " + tier.settings->name + ": ";
    if (const auto known = roster.find(tier.settings->name); known != roster.end()) {
      tier.member = known->second;
      if (tier.root && !tier.marker) {
        tier.offline = tier.settings->path +
                       " has no .sluice/tier.json: its disk is not mounted, or not this one";
        if (missing == Pool::Missing::Refuse) {
          return unusable(ENOENT,
                          named + tier.offline + "; mount it, or pass --degraded to go without it");
        }
        tier.root.reset();
      }
      continue;
    }
    if (!tier.root) {
      return unusable(ENOENT, named + tier.offline + "; the pool does not know this tier yet");
    }
    if (new_tiers == Pool::NewTiers::Refuse) {
      return unusable(ENOENT,
                      named + tier.settings->path +
                          " has never been part of a pool: there is no .sluice/tier.json in it");
    }
    if (++last_slot > kMaxSlot) {
      return unusable(ENOSPC,
                      named + "a pool can have " + std::to_string(kMaxSlot) + " tiers in its life");
    }
    tier.member = {tier.settings->name, new_uuid(), last_slot, false};
    roster[tier.member.name] = tier.member;
  }
  for (const auto& entry : roster) {
    const Member& member = entry.second;
    const bool configured = std::any_of(tiers.begin(), tiers.end(),
                                        [&](const Candidate& t) { return t.member == member; });
    if (!configured && !member.retired && missing == Pool::Missing::Refuse) {
      return unusable(
          ENOENT,
          "the pool also has a tier " + entry.first +
              ", which is not configured: its files would be missing; add it, or pass --degraded");
    }
  }
  return {};
}

Result<void> write_roster(const Candidate& tier, const std::string& pool, const Roster& roster) {
  Marker marker{pool, tier.member, {}};
  for (const auto& entry : roster) marker.members.push_back(entry.second);
  const auto written = write_marker(tier.root.get(), marker);
  if (written) return {};
  return unusable(written.error().code,
                  "tier " + tier.settings->name + ": can't write " + tier.settings->path +
                      "/.sluice: " + written.error().text() + "; make the directory writable");
}

// Writes the markers of new tiers: first each new tier gets a roster with itself and the tiers
// before it, then every tier gets the whole roster. A roster never names a tier without a marker,
// so after a failure half-way the same call can be repeated.
Result<void> enrol(std::vector<Candidate>& tiers, const std::string& pool, const Roster& known,
                   const Roster& roster, const std::string& user) {
  if (known == roster) return {};
  for (Candidate& tier : tiers) {
    if (!tier.root || tier.marker) continue;
    Roster so_far = known;
    so_far[tier.member.name] = tier.member;
    SLUICE_TRY(write_roster(tier, pool, so_far));
    SLUICE_TRY(lock_candidate(tier, user));
  }
  for (const Candidate& tier : tiers) {
    if (tier.root) SLUICE_TRY(write_roster(tier, pool, roster));
  }
  return {};
}

}  // namespace

Pool::Pool() : twins_(std::make_unique<Twins>(*this)) {}

Pool::~Pool() = default;

Result<std::unique_ptr<Pool>> Pool::open(const std::vector<TierSettings>& settings, Missing missing,
                                         NewTiers new_tiers, const std::string& user) {
  std::vector<Candidate> tiers;
  for (const TierSettings& s : settings) {
    Candidate tier{&s, {}, {}, {}, {}, {}};
    SLUICE_TRY(open_candidate(tier, missing));
    tiers.push_back(std::move(tier));
  }
  auto pool = std::unique_ptr<Pool>(new Pool);
  Roster roster;
  SLUICE_TRY(read_roster(tiers, pool->id_, roster));
  if (pool->id_.empty()) pool->id_ = new_uuid();
  // Lock first, so that a caller that is refused has changed nothing.
  for (Candidate& tier : tiers) {
    if (tier.marker) SLUICE_TRY(lock_candidate(tier, user));
  }
  const Roster known = roster;
  SLUICE_TRY(assign_members(tiers, missing, new_tiers, roster));
  SLUICE_TRY(enrol(tiers, pool->id_, known, roster, user));

  for (Candidate& tier : tiers) {
    const bool present = static_cast<bool>(tier.root);
    auto made =
        std::make_unique<Tier>(static_cast<TierIndex>(pool->size()), *tier.settings, tier.member,
                               std::move(tier.root), tier.offline, std::move(tier.lock), user);
    if (present && !made->online()) {
      return unusable(EIO,
                      "tier " + made->name() + ": " + made->path() + ": " + made->why_offline());
    }
    pool->append(std::move(made));
  }
  pool->user_ = user;
  MutexLock lock(pool->roster_mutex_);
  pool->roster_ = std::move(roster);
  return pool;
}

void Pool::append(std::unique_ptr<Tier> tier) {
  const std::size_t at = size_.load(std::memory_order_relaxed);
  tiers_[at] = std::move(tier);
  size_.store(at + 1, std::memory_order_release);
}

Result<void> Pool::add(const TierSettings& settings) {
  MutexLock lock(roster_mutex_);
  Candidate tier{&settings, {}, {}, {}, {}, {}};
  SLUICE_TRY(open_candidate(tier, Missing::Refuse));
  if (tier.marker) {
    return unusable(EEXIST, "tier " + settings.name + ": " + settings.path +
                                " belongs to a pool already (" + tier.marker->pool + ")");
  }
  std::vector<Candidate> newcomers;
  newcomers.push_back(std::move(tier));
  Roster roster = roster_;
  if (roster.contains(settings.name)) {
    return unusable(EEXIST, "the pool has had a tier " + settings.name +
                                " before; give the new one another name");
  }
  SLUICE_TRY(assign_members(newcomers, Missing::Tolerate, NewTiers::Adopt, roster));
  SLUICE_TRY(enrol(newcomers, id_, roster_, roster, user_));
  Candidate& made = newcomers[0];
  auto fresh = std::make_unique<Tier>(static_cast<TierIndex>(size()), settings, made.member,
                                      std::move(made.root), "", std::move(made.lock), user_);
  if (!fresh->online()) {
    return unusable(EIO,
                    "tier " + settings.name + ": " + settings.path + ": " + fresh->why_offline());
  }
  roster_ = std::move(roster);
  append(std::move(fresh));
  // The new tier knows the others. If they cannot be told of it now, the next mount tells them.
  if (const auto told = tell_all(); !told)
    log::get().warn("not every tier could be told of the new one: why={}", told.error().text());
  return {};
}

Result<void> Pool::set_retired(TierIndex index, bool retired) {
  MutexLock lock(roster_mutex_);
  roster_[tiers_[index]->name()].retired = retired;
  return tell_all();
}

void Pool::welcome_back() {
  MutexLock lock(roster_mutex_);
  bool is_back = false;
  for (const auto& tier : *this) {
    Member& member = roster_[tier->name()];
    if (!member.retired || !tier->online() || tier->is_draining()) continue;
    member.retired = false;
    is_back = true;
  }
  if (!is_back) return;
  if (const auto told = tell_all(); !told)
    log::get().warn("not every tier could be told of one that is back: why={}",
                    told.error().text());
}

// Writes the roster to every tier that is online.
Result<void> Pool::tell_all() const {
  for (const auto& tier : *this) {
    const auto root = tier->root();
    if (!root) continue;
    Marker marker{id_, roster_.at(tier->name()), {}};
    for (const auto& entry : roster_) marker.members.push_back(entry.second);
    SLUICE_TRY(write_marker((*root)->get(), marker));
  }
  return {};
}

Tier* Pool::by_slot(unsigned slot) const {
  for (const auto& tier : *this) {
    if (tier->member().slot == slot) return tier.get();
  }
  return nullptr;
}

Tier* Pool::by_name(std::string_view name) const {
  for (const auto& tier : *this) {
    if (tier->name() == name) return tier.get();
  }
  return nullptr;
}

std::vector<TierIndex> Pool::placement() const {
  std::vector<TierIndex> best, roomy, rest, leaving;
  for (const auto& tier : *this) {
    if (!tier->online()) continue;
    auto& group = tier->is_draining()            ? leaving
                  : tier->low_on_space()         ? rest
                  : tier->above_high_watermark() ? roomy
                                                 : best;
    group.push_back(tier->index());
  }
  best.insert(best.end(), roomy.begin(), roomy.end());
  best.insert(best.end(), rest.begin(), rest.end());
  // A draining tier gets new files only if there is no other tier.
  return best.empty() ? leaving : best;
}

void Pool::note_file_size(std::uint64_t bytes) {
  std::uint64_t largest = largest_.load(std::memory_order_relaxed);
  while (bytes > largest && !largest_.compare_exchange_weak(largest, bytes)) {
  }
}

bool Pool::may_outgrow(TierIndex at, std::uint64_t bytes, std::uint64_t growth) const {
  const Tier& here = *tiers_[at];
  const Space space = here.space();
  if (space.free_now() < here.reserve()) return true;
  const std::uint64_t room = here.room();
  if (room >= growth) return false;
  // Twins may have to go for the file, and the kernel does not ask us before it answers ENOSPC.
  if (space.twins > 0) return true;
  // Moving helps only if another tier has more room than the file could get here.
  return std::any_of(begin(), end(), [&](const auto& tier) {
    return tier->online() && !tier->is_draining() && tier->device() != here.device() &&
           tier->room() > room + bytes;
  });
}

std::vector<TierIndex> Pool::refuges(TierIndex from, std::uint64_t bytes) const {
  constexpr std::uint64_t kAmple = 4;  // times as much
  std::vector<TierIndex> ample, tight;
  for (const TierIndex index : placement()) {
    const Tier& tier = *tiers_[index];
    tier.refresh_space();
    if (index == from || tier.space().free < bytes) continue;
    (tier.room() / kAmple >= bytes ? ample : tight).push_back(index);
  }
  std::stable_sort(tight.begin(), tight.end(),
                   [&](TierIndex a, TierIndex b) { return tiers_[a]->room() > tiers_[b]->room(); });
  ample.insert(ample.end(), tight.begin(), tight.end());
  return ample;
}

void Pool::clear_temporaries() const {
  for (const auto& tier : *this) {
    const auto temp = tier->temp_directory();
    if (!temp) continue;
    const auto names = names_in((*temp)->get());
    if (!names) continue;
    for (const std::string& name : *names) {
      // Directories here are empty, because they are renamed into place before they are filled.
      if (::unlinkat((*temp)->get(), name.c_str(), 0) < 0) {
        [[maybe_unused]] const int removed = ::unlinkat((*temp)->get(), name.c_str(), AT_REMOVEDIR);
      }
    }
  }
}

}  // namespace sluice
