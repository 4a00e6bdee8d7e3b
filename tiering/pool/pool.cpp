// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/pool.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/pool/tier_lock.hpp"
#include "tiering/pool/twins.hpp"

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

std::string advice_to_replace(const TierSettings& settings) {
  return "; for a new disk in place of a dead one, mount with --degraded and run 'sluice tier "
         "replace " +
         settings.name + "=PATH'";
}

Result<void> read_marker_of(Candidate& tier) {
  const TierSettings& s = *tier.settings;
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

// Restores a directory that cannot become a tier.
class Undo {
 public:
  explicit Undo(int root)
      : root_(::fcntl(root, F_DUPFD_CLOEXEC, 0)), is_needed_(!has_private_directory(root)) {}
  ~Undo() {
    if (is_needed_) remove_private_directory(root_.get());
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void cancel() { is_needed_ = false; }

 private:
  const UniqueFd root_;
  bool is_needed_;
};

// Opens a directory that is to become part of a mounted pool.
Result<Candidate> open_newcomer(const TierSettings& settings) {
  Candidate tier{&settings, {}, {}, {}, {}, {}};
  tier.root.reset(::open(settings.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!tier.root) {
    const int code = errno;
    return unusable(code, "tier " + settings.name + ": " + settings.path + ": " +
                              std::strerror(code) +
                              (code == ENOTDIR ? "; give a directory"
                                               : "; give a directory that exists, on the mounted "
                                                 "disk"));
  }
  SLUICE_TRY(read_marker_of(tier));
  return tier;
}

Result<void> open_candidate(Candidate& tier, Pool::Missing missing) {
  const TierSettings& s = *tier.settings;
  tier.root.reset(::open(s.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!tier.root) {
    const int code = errno;
    tier.offline = s.path + ": " + std::strerror(code);
    if (missing == Pool::Missing::Tolerate) return {};
    const bool is_forbidden = code == EACCES || code == EPERM;  // what a user gets who is not root
    return unusable(
        code, "tier " + s.name + ": " + tier.offline +
                  (is_forbidden ? ""
                                : "; is its disk mounted? --degraded mounts the pool without it" +
                                      advice_to_replace(s)));
  }
  return read_marker_of(tier);
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

// A disk that was replaced has come back where its successor should be.
Result<void> refuse_replaced(Candidate& tier, const Member& member, Pool::Missing missing) {
  const std::string name = member.name.substr(0, member.name.find('#'));
  tier.offline = tier.settings->path + " is the disk that was tier " + name +
                 " before another disk took its place";
  if (missing == Pool::Missing::Refuse) {
    return unusable(EEXIST, "tier " + tier.settings->name + ": " + tier.offline +
                                "; configure the path of the new disk. 'sluice tier add NAME=" +
                                tier.settings->path +
                                "' with another name brings back the files of this one");
  }
  tier.root.reset();
  tier.marker.reset();
  return {};
}

// What the markers on the present tiers say about the pool.
Result<void> read_roster(std::vector<Candidate>& tiers, Pool::Missing missing, std::string& pool,
                         Roster& roster) {
  Roster by_uuid;
  for (const Candidate& tier : tiers) {
    if (!tier.marker) continue;
    if (pool.empty()) pool = tier.marker->pool;
    if (pool != tier.marker->pool) {
      return unusable(EXDEV, "tier " + tier.settings->name + ": " + tier.settings->path +
                                 " belongs to another pool (" + tier.marker->pool +
                                 "); give each pool directories of its own");
    }
    std::vector<Member> members = tier.marker->members;
    members.push_back(tier.marker->self);
    for (const Member& m : members) {
      // A tier that was offline when another one retired or was replaced does not know that.
      Member& known = by_uuid.try_emplace(m.uuid, m).first->second;
      known.retired = known.retired || m.retired;
      if (m.is_replaced()) known.name = m.name;
    }
  }
  for (Candidate& tier : tiers) {
    if (!tier.marker) continue;
    const Member& member = by_uuid.at(tier.marker->self.uuid);
    if (member.is_replaced()) {
      SLUICE_TRY(refuse_replaced(tier, member, missing));
    } else if (member.name != tier.settings->name) {
      return unusable(EEXIST, "tier " + tier.settings->name + ": " + tier.settings->path +
                                  " is this pool's tier " + member.name +
                                  "; put the tiers' paths in the right order");
    }
  }
  for (const auto& entry : by_uuid) {
    const Member& member = entry.second;
    if (roster.emplace(member.name, member).second) continue;
    return unusable(EEXIST, "tier " + member.name +
                                ": two disks of this pool have that name; configure the path of "
                                "the one that the pool was last mounted with");
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
          return unusable(ENOENT, named + tier.offline +
                                      "; mount its disk, or the pool without it by --degraded" +
                                      advice_to_replace(*tier.settings));
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
      return unusable(
          ENOSPC, named + "a pool can have " + std::to_string(kMaxSlot) + " tiers over its life");
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

Marker marker_of(const Candidate& tier, const std::string& pool, const Roster& roster) {
  Marker marker{pool, tier.member, {}};
  for (const auto& entry : roster) marker.members.push_back(entry.second);
  return marker;
}

Result<void> write_roster(const Candidate& tier, const std::string& pool, const Roster& roster) {
  const auto written = write_marker(tier.root.get(), marker_of(tier, pool, roster));
  if (written) return {};
  const int code = written.error().code;
  const char* const advice = code == EROFS ? "mount its disk writable"
                             : code == ENOSPC || code == EDQUOT
                                 ? "make room there"
                                 : "give a directory on a disk, which "
                                   "can be written";
  return unusable(code, "tier " + tier.settings->name + ": can't write " + tier.settings->path +
                            "/.sluice: " + written.error().text() + "; " + advice);
}

// Writes the markers of new tiers: first each new tier gets a roster with itself and the tiers
// before it, then every tier gets the whole roster. A roster never names a tier without a marker,
// so after a failure half-way the same call can be repeated.
Result<void> enrol(std::vector<Candidate>& tiers, const std::string& pool, const Roster& known,
                   const Roster& roster, const std::string& user) {
  for (Candidate& tier : tiers) {
    if (!tier.root || tier.marker) continue;
    Roster so_far = known;
    so_far[tier.member.name] = tier.member;
    SLUICE_TRY(write_roster(tier, pool, so_far));
    SLUICE_TRY(lock_candidate(tier, user));
  }
  for (const Candidate& tier : tiers) {
    if (!tier.root) continue;
    const Marker wanted = marker_of(tier, pool, roster);
    if (tier.marker && tier.marker->self == wanted.self && tier.marker->members == wanted.members)
      continue;
    const auto told = write_roster(tier, pool, roster);
    if (told) continue;
    // News that a tier missed, because it was away, can wait.
    if (known != roster) return told;
    log::get().warn("cannot write a change of the pool to a tier, the next mount does it: why={}",
                    told.error().text());
  }
  return {};
}

// Whether the directory at `path` is that disk.
bool is_at(const std::string& path, const Member& disk) {
  const UniqueFd root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto marker = root ? read_marker(root.get()) : Error(ENOENT, "open tier");
  return marker && *marker && (*marker)->self.uuid == disk.uuid;
}

// Whether the directory may take the place of the tier `old` (nullptr: it is not configured), whose
// disk was `before`.
Result<void> check_replacement(const Pool& pool, const Candidate& tier, const Tier* old,
                               const Member& before, const std::string& id, const Roster& roster) {
  const std::string& path = tier.settings->path;
  const std::string named = "tier " + tier.settings->name + ": " + path + " ";
  if (tier.marker && tier.marker->pool != id) {
    return unusable(EEXIST, named + "belongs to another pool (" + tier.marker->pool +
                                "); give a directory that is new to Sluice");
  }
  if (tier.marker && tier.marker->self.uuid != before.uuid) {
    for (const auto& entry : roster) {
      const Member& member = entry.second;
      if (member.uuid != tier.marker->self.uuid) continue;
      return unusable(EEXIST,
                      named + (member.is_replaced()
                                   ? "is a disk that was replaced before; 'sluice tier add NAME=" +
                                         path + "' with a new name brings its files back"
                                   : "is this pool's tier " + member.name));
    }
    // Otherwise a replacement was interrupted before any other tier knew of it.
    if (tier.marker->self.name != tier.settings->name)
      return unusable(EEXIST, named + "was tier " + tier.marker->self.name + " of this pool");
  }
  struct stat st {};
  if (::fstat(tier.root.get(), &st) < 0) return Error::last("stat the new disk");
  std::vector<std::string> sharing;
  for (const Tier* other : pool) {
    if (other != old && other->online() && other->device() == st.st_dev)
      sharing.push_back(other->name());
  }
  // In a pool that tries Sluice out on one disk, tiers may share it.
  const bool shared_before = sharing.size() > 1 || (old != nullptr && old->device() == st.st_dev);
  if (!sharing.empty() && !shared_before) {
    return unusable(EXDEV, named + "is on the same filesystem as tier " + sharing[0] +
                               "; is the new disk mounted there?");
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
  SLUICE_TRY(read_roster(tiers, missing, pool->id_, roster));
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
    MutexLock lock(pool->roster_mutex_);
    pool->place(std::move(made));
  }
  pool->user_ = user;
  MutexLock lock(pool->roster_mutex_);
  pool->roster_ = std::move(roster);
  return pool;
}

// Puts it where its index says: after the others, or in the place of one of them.
void Pool::place(std::unique_ptr<Tier> tier) {
  const std::size_t at = tier->index();
  tiers_[at].store(tier.get(), std::memory_order_release);
  owned_.push_back(std::move(tier));
  if (at == size()) size_.store(at + 1, std::memory_order_release);
}

Result<void> Pool::add(const TierSettings& settings) {
  MutexLock lock(roster_mutex_);
  Candidate tier = SLUICE_TRY(open_newcomer(settings));
  if (tier.marker) return readmit(settings, tier.root.get(), *tier.marker);
  Undo undo(tier.root.get());
  std::vector<Candidate> newcomers;
  newcomers.push_back(std::move(tier));
  Roster roster = roster_;
  if (roster.contains(settings.name)) {
    return unusable(EEXIST, "the pool has had a tier " + settings.name +
                                " before; 'sluice tier replace " + settings.name + "=" +
                                settings.path +
                                "' puts this disk in its place, or give it another name");
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
  undo.cancel();
  roster_ = std::move(roster);
  place(std::move(fresh));
  tell_all_of_news();
  return {};
}

// The tiers that are present know of a change. If one cannot be told now, the next mount does it.
void Pool::tell_all_of_news() const {
  if (const auto told = tell_all(); !told)
    log::get().warn(
        "cannot write a change of the pool to every tier, the next mount does it: why={}",
        told.error().text());
}

// Adds a disk with a marker: one that was given up or replaced, and works again.
Result<void> Pool::readmit(const TierSettings& settings, int root, const Marker& marker) {
  const std::string named = "tier " + settings.name + ": " + settings.path + " ";
  if (marker.pool != id_) {
    return unusable(EEXIST, named + "belongs to a pool already (" + marker.pool +
                                "); give a directory that is new to Sluice, or one that was part "
                                "of this pool before");
  }
  const Member* known = nullptr;
  for (const auto& entry : roster_) {
    if (entry.second.slot == marker.self.slot && (known == nullptr || known->is_replaced()))
      known = &entry.second;
  }
  const bool was_replaced = known != nullptr && known->is_replaced();
  if (known != nullptr && !was_replaced) {
    if (known->uuid != marker.self.uuid || by_slot(known->slot) != nullptr) {
      return unusable(EEXIST, named + (known->uuid == marker.self.uuid
                                           ? "is this pool's tier " + known->name + " already"
                                           : "was part of this pool, and tier " + known->name +
                                                 " has its place now; copy its files into the "
                                                 "mount"));
    }
    if (known->name != settings.name) {
      return unusable(EEXIST,
                      named + "is this pool's tier " + known->name + "; add it under that name");
    }
  }
  if ((known == nullptr || was_replaced) && roster_.contains(settings.name)) {
    return unusable(EEXIST, named + "was tier " + marker.self.name +
                                " of this pool, and the pool has or had another tier " +
                                settings.name + "; give it a new name to get its files back");
  }
  // A new UUID, because tiers that are away remember the old one under its old name.
  const Member member{settings.name,
                      known != nullptr && !was_replaced ? marker.self.uuid : new_uuid(),
                      marker.self.slot, false};
  Roster roster = roster_;
  roster[member.name] = member;
  Marker written{id_, member, {}};
  for (const auto& entry : roster) written.members.push_back(entry.second);
  if (const auto done = write_marker(root, written); !done)
    return unusable(done.error().code, named + "can't be written: " + done.error().text());
  roster_ = std::move(roster);
  place(std::make_unique<Tier>(static_cast<TierIndex>(size()), settings, member, UniqueFd{},
                               "the tier is being brought up to date", UniqueFd{}, user_));
  tell_all_of_news();
  return {};
}

Result<Pool::Replacement> Pool::prepare_replacement(const TierSettings& settings) {
  MutexLock lock(roster_mutex_);
  const std::string& name = settings.name;
  const auto known = roster_.find(name);
  if (known == roster_.end() || known->second.is_replaced()) {
    return unusable(ENOENT, "the pool has had no tier " + name + "; 'sluice tier add " + name +
                                "=" + settings.path + "' adds one");
  }
  Replacement out{.before = known->second, .is_same_disk = false, .tier = nullptr};
  const Member& before = out.before;
  Tier* const old = by_name(name);
  if (old != nullptr && (old->present() || is_at(old->path(), before))) {
    return unusable(EBUSY, "tier " + name + " is not lost: its disk is at " + old->path() +
                               "; 'sluice tier drain " + name +
                               "' moves its files to other tiers. If the disk is broken, unmount "
                               "it first");
  }
  Candidate tier = SLUICE_TRY(open_newcomer(settings));
  out.is_same_disk = tier.marker && tier.marker->self.uuid == before.uuid;
  SLUICE_TRY(check_replacement(*this, tier, old, before, id_, roster_));
  Roster roster = roster_;
  tier.member = before;
  tier.member.retired = false;
  if (!out.is_same_disk) {
    unsigned last_slot = 0;
    for (const auto& entry : roster_) last_slot = std::max(last_slot, entry.second.slot);
    if (last_slot == kMaxSlot) {
      return unusable(ENOSPC, "tier " + name + ": a pool can have " + std::to_string(kMaxSlot) +
                                  " disks over its life");
    }
    tier.member.uuid = new_uuid();
    tier.member.slot = last_slot + 1;
    const Member gone = replaced(before);
    roster[gone.name] = gone;
  }
  roster[name] = tier.member;
  // From here on, the new disk is the tier wherever it is present. If the daemon dies before the
  // other tiers know, the next mount with the new disk tells them.
  Undo undo(tier.root.get());
  SLUICE_TRY(write_roster(tier, id_, roster));
  undo.cancel();
  out.tier = std::make_unique<Tier>(old != nullptr ? old->index() : static_cast<TierIndex>(size()),
                                    settings, tier.member, UniqueFd{},
                                    "the tier is being brought up to date", UniqueFd{}, user_);
  return out;
}

std::optional<unsigned> Pool::replace(Replacement replacement) {
  MutexLock lock(roster_mutex_);
  const Member& before = replacement.before;
  const Tier& tier = *replacement.tier;
  if (!replacement.is_same_disk) {
    const Member gone = replaced(before);
    roster_[gone.name] = gone;
  }
  roster_[tier.name()] = tier.member();
  log::get().info("a new disk took the place of a tier: tier={} path={} slot={} before={}",
                  tier.name(), tier.path(), tier.member().slot, before.slot);
  place(std::move(replacement.tier));
  return replacement.is_same_disk ? std::optional<unsigned>() : before.slot;
}

void Pool::announce() const {
  MutexLock lock(roster_mutex_);
  tell_all_of_news();
}

std::vector<Member> Pool::members() const {
  MutexLock lock(roster_mutex_);
  std::vector<Member> out;
  for (const auto& entry : roster_) out.push_back(entry.second);
  return out;
}

bool Pool::is_lost(unsigned slot) const {
  if (by_slot(slot) != nullptr) return false;
  MutexLock lock(roster_mutex_);
  bool is_replaced = false;
  for (const auto& entry : roster_) {
    if (entry.second.slot != slot) continue;
    // The disk came back under another name, and is only not part of this mount.
    if (!entry.second.is_replaced()) return false;
    is_replaced = true;
  }
  return is_replaced;
}

Result<void> Pool::set_retired(TierIndex index, bool retired) {
  MutexLock lock(roster_mutex_);
  bool& is_retired = roster_[(*this)[index].name()].retired;
  // A full disk has no room for another marker: a drain of it can be cancelled all the same.
  if (is_retired == retired) return {};
  is_retired = retired;
  const auto told = tell_all();
  if (!told) is_retired = !retired;  // the next attempt writes again
  return told;
}

void Pool::take_back_tiers() {
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
    log::get().warn("cannot note on every tier that a tier is back, the next mount does it: why={}",
                    told.error().text());
}

bool Pool::is_retired(TierIndex index) const {
  MutexLock lock(roster_mutex_);
  const auto member = roster_.find((*this)[index].name());
  return member != roster_.end() && member->second.retired;
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
    if (tier->member().slot == slot) return tier;
  }
  return nullptr;
}

Tier* Pool::by_name(std::string_view name) const {
  for (const auto& tier : *this) {
    if (tier->name() == name) return tier;
  }
  return nullptr;
}

std::vector<TierIndex> Pool::placement() const {
  std::vector<std::pair<Intake, TierIndex>> takers;
  takers.reserve(size());
  for (const auto& tier : *this) {
    const Intake intake = tier->intake();
    if (intake <= Intake::Failing) takers.emplace_back(intake, tier->index());
  }
  std::sort(takers.begin(), takers.end());
  std::vector<TierIndex> out;
  out.reserve(takers.size());
  for (const auto& [intake, tier] : takers) {
    // A draining or failing tier gets new files only if there is no other tier.
    if (intake >= Intake::Draining && takers.front().first != intake) break;
    out.push_back(tier);
  }
  return out;
}

void Pool::note_file_size(std::uint64_t bytes) {
  std::uint64_t largest = largest_.load(std::memory_order_relaxed);
  while (bytes > largest && !largest_.compare_exchange_weak(largest, bytes)) {
  }
}

bool Pool::may_outgrow(TierIndex at, std::uint64_t bytes, std::uint64_t growth) const {
  const Tier& here = (*this)[at];
  const Space space = here.space();
  if (space.free_now() < here.reserve()) return true;
  const std::uint64_t room = here.room();
  if (room >= growth) return false;
  // Twins may have to go for the file, and the kernel does not ask us before it answers ENOSPC.
  if (space.twins > 0) return true;
  // Moving helps only if another tier has more room than the file could get here.
  return std::any_of(begin(), end(), [&](const auto& tier) {
    return tier->device() != here.device() && tier->room() > room + bytes &&
           is_usable(tier->facts());
  });
}

std::vector<TierIndex> Pool::refuges(TierIndex from, std::uint64_t bytes) const {
  constexpr std::uint64_t kAmple = 4;  // times as much
  std::vector<TierIndex> ample, tight;
  for (const TierIndex index : placement()) {
    const Tier& tier = (*this)[index];
    tier.refresh_space();
    if (index == from || tier.space().free < bytes) continue;
    (tier.room() / kAmple >= bytes ? ample : tight).push_back(index);
  }
  std::stable_sort(tight.begin(), tight.end(),
                   [&](TierIndex a, TierIndex b) { return (*this)[a].room() > (*this)[b].room(); });
  ample.insert(ample.end(), tight.begin(), tight.end());
  return ample;
}

void Pool::clear_temporaries(const TemporaryNames& needed) const {
  for (const auto& tier : *this) {
    const auto temp = tier->temp_directory();
    if (!temp) continue;
    const auto names = names_in((*temp)->get());
    if (!names) continue;
    for (const std::string& name : *names) {
      if (needed.contains({tier->member().slot, name})) continue;
      // Directories here are empty, because they are renamed into place before they are filled.
      if (::unlinkat((*temp)->get(), name.c_str(), 0) < 0) {
        [[maybe_unused]] const int removed = ::unlinkat((*temp)->get(), name.c_str(), AT_REMOVEDIR);
      }
    }
  }
}

}  // namespace sluice
