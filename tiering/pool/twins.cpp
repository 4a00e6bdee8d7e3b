// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/twins.hpp"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <numeric>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "tiering/pool/copier.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kSecond = 1'000'000'000;
// A file written in this time before its move may have had two writes with one mtime.
constexpr std::int64_t kQuiet = kSecond / 10;
// A twin gets its note right after its name.
constexpr std::int64_t kNoteComesWithin = 60 * kSecond;
constexpr milliseconds kLook{1000}, kLookOften{100};
// Nothing depends on these checks, only how early the room of a useless twin is free. They must not
// keep a slow disk busy.
constexpr std::size_t kChecksPerLook = 16;
constexpr std::chrono::seconds kBetweenRounds{60};
// The first round finds what a daemon that was killed left behind, which may be many. It takes this
// part of each kLookOften, without the time in which twins are dropped.
constexpr milliseconds kFirstRound{50};
constexpr std::size_t kMostRanked = 4096;
// Room that a writer may need; see Files::may_outgrow().
constexpr std::uint64_t kAmple = std::uint64_t{64} << 30;
// Dropping costs a journal commit, so a few small twins go at once.
constexpr std::uint64_t kLeastDropped = 4 << 20;

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds_of(now);
}

std::uint64_t allocated(const struct stat& st) {
  return static_cast<std::uint64_t>(st.st_blocks) * 512;
}

UniqueFd open_twin(const SharedFd& directory, const std::string& name, int flags) {
  return UniqueFd(::openat(directory->get(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

void Twins::start(Mode mode, Standing standing) {
  {
    const MutexLock lock(mutex_);
    // The clock of ctimes.
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    started_ = nanoseconds_of(now);
    mode_ = mode;
    is_keeping_ = mode == Mode::Keep;
    standing_ = std::move(standing);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-twins");
    work(stop);
  });
}

void Twins::stop() {
  {
    const MutexLock lock(mutex_);
    is_keeping_ = false;
  }
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  drop_forgotten();
  const MutexLock lock(mutex_);
  standing_ = nullptr;
}

bool Twins::may_keep(const Tier& from, const Tier& to, const struct stat& st) const {
  {
    const MutexLock lock(mutex_);
    if (!is_keeping_) return false;
  }
  // A twin of a file that is still being written would be wrong soon.
  const bool is_quiet = nanoseconds_of(st.st_mtim) < now_ns() - kQuiet;
  return to.index() < from.index() && S_ISREG(st.st_mode) && st.st_size > 0 && is_quiet &&
         !from.is_draining() && to.has_handles() && from.twins_directory().has_value();
}

void Twins::note(const Departed& file) {
  const std::string name = twin_name(file.file);
  const auto make_note = [&]() -> Result<std::uint64_t> {
    struct stat twin {
    }, there{};
    if (::fstat(file.original, &twin) < 0 || ::fstat(file.copy, &there) < 0)
      return Error::last("stat a twin");
    // It was unlinked because it could not be kept, or somebody works on the tiers directly.
    if (twin.st_nlink != 1 || there.st_size != twin.st_size ||
        nanoseconds_of(there.st_mtim) != nanoseconds_of(twin.st_mtim))
      return Error(ESTALE, "keep a twin");
    int mount_id = 0;
    TwinNote note;
    note.file = file.file;
    note.slot = file.to.member().slot;
    note.handle = SLUICE_TRY(handle_at(file.copy, "", &mount_id));
    note.size = there.st_size;
    note.mtime = nanoseconds_of(there.st_mtim);
    note.ctime = nanoseconds_of(there.st_ctim);
    // Otherwise a write in the same tick of the clock would not change the ctime.
    timespec tick{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &tick);
    if (nanoseconds_of(tick) <= note.ctime) return Error(EAGAIN, "keep a twin");
    // A filesystem that keeps whole seconds (ext4 with small inodes) gives a write in the same
    // second the same ctime. Without a session, the bytes are compared.
    const bool is_fine = note.ctime % kSecond != 0;
    note.session = is_fine ? file.to.session() : 0;
    note.hash = file.hash;
    note.made = now_ns() / kSecond;
    note.mode = twin.st_mode & 07777;
    note.uid = twin.st_uid;
    note.gid = twin.st_gid;
    for (const Departed::Name& each : file.names) {
      const auto directory = handle_at(each.directory, "", &mount_id);
      if (directory) note.names.push_back({*directory, each.text});
    }
    // Its owner must not pay for it with a quota.
    if (::fchown(file.original, 0, 0) < 0) return Error::last("chown a twin");
    const std::string value = encode_note(note);
    if (::fsetxattr(file.original, kTwinXattr, value.data(), value.size(), 0) < 0)
      return Error::last("note on a twin");
    return allocated(twin);
  };
  const auto bytes = make_note();
  if (!bytes) {
    if (const auto directory = file.from.twins_directory())
      ::unlinkat((*directory)->get(), name.c_str(), 0);
    return;
  }
  const MutexLock lock(mutex_);
  put(file.from, {file.file, *bytes});
  ++totals_.kept;
}

Result<std::optional<HiddenCopy>> Twins::take(const Identity& file, int source, const Tier& from,
                                              Tier& to, const Pace& pace) {
  using Nothing = std::optional<HiddenCopy>;
  const std::string name = twin_name(file);
  const auto directory = to.twins_directory();
  if (!directory) return Nothing{};
  {
    const MutexLock lock(mutex_);
    if (!is_keeping_) return Nothing{};
    in_use_.insert(file.id);
  }
  std::optional<Error> stopped;
  const auto prepare = [&]() -> Result<HiddenCopy> {
    HiddenCopy copy;
    copy.fd = open_twin(*directory, name, O_RDWR | O_NOATIME);
    if (!copy.fd) return Error::last("open a twin");
    const auto note = read_note(copy.fd.get());
    struct stat st {};
    int mount_id = 0;
    const FileHandle handle = SLUICE_TRY(handle_at(source, "", &mount_id));
    if (::fstat(source, &st) < 0) return Error::last("stat");
    if (!note || note->file != file || note->slot != from.member().slot ||
        !is_intact(to, copy.fd.get(), *note)) {
      return Error(ESTALE, "the twin is not valid");
    }
    const TwinState state = compare(*note, handle, st, from.session());
    if (state == TwinState::Differs) return Error(ESTALE, "the file was changed");
    if (state == TwinState::Perhaps) {
      const auto read = hash_data(source, [&](std::uint64_t bytes) -> Result<void> {
        const auto goes_on = pace ? pace(bytes) : Result<void>();
        if (!goes_on) stopped = goes_on.error();
        return goes_on;
      });
      if (!read) return read.error();
      if (read->hash != note->hash) return Error(ESTALE, "the file was changed");
    }
    copy.name = name;
    copy.is_twin = true;
    copy.original = file;
    copy.copied = {.ranges = SLUICE_TRY(ranges_of(copy.fd.get())),
                   .size = note->size,
                   .bytes = 0,
                   .hash = note->hash};
    SLUICE_TRY(copy_inode_flags(source, copy.fd.get()));
    // Also if it is the natural one: this tells that the file was moved, and has kept times.
    SLUICE_TRY(to.carry_identity(copy.fd.get(), file));
    SLUICE_TRY(copy_attributes(source, copy.fd.get()));
    copy.located = SLUICE_TRY(to.identify(copy.fd.get(), ""));
    return copy;
  };
  auto copy = prepare();
  if (copy) return Nothing(*std::move(copy));
  taken(file, to, false);
  if (stopped) return *stopped;
  if (copy.error().code != ENOENT) {
    log::get().debug("a twin cannot take its file's place: tier={} name={} why={}", to.name(), name,
                     copy.error().text());
    drop(to, file);
  }
  return Nothing{};
}

void Twins::taken(const Identity& file, const Tier& tier, bool is_file) {
  const MutexLock lock(mutex_);
  in_use_.erase(file.id);
  if (!is_file) return;
  ++totals_.used;
  const auto known = known_.find(tier.index());
  if (known == known_.end()) return;
  const auto at = known->second.files.find(to_number(file.id));
  if (at != known->second.files.end()) totals_.used_bytes += at->second.bytes;
  erase(pool_[tier.index()], file.id);
}

void Twins::forget(InodeId file, std::initializer_list<TierIndex> except) {
  const MutexLock lock(mutex_);
  for (const auto& [tier, known] : known_) {
    const auto at = known.files.find(to_number(file));
    if (at == known.files.end() || std::ranges::find(except, tier) != except.end()) continue;
    forgotten_.emplace_back(tier, at->second.file);
    wake_.notify_all();
  }
}

void Twins::put(Tier& tier, const Entry& entry) {
  erase(tier, entry.file.id);
  Known& known = known_[tier.index()];
  known.files[to_number(entry.file.id)] = entry;
  known.bytes += entry.bytes;
  tier.set_twin_bytes(known.bytes);
}

void Twins::erase(Tier& tier, InodeId file) {
  Known& known = known_[tier.index()];
  const auto at = known.files.find(to_number(file));
  if (at == known.files.end()) return;
  known.bytes -= at->second.bytes;
  known.files.erase(at);
  tier.set_twin_bytes(known.bytes);
}

void Twins::drop(Tier& tier, const Identity& file) {
  const auto directory = tier.twins_directory();
  if (!directory) return;
  const bool dropped = ::unlinkat((*directory)->get(), twin_name(file).c_str(), 0) == 0;
  const MutexLock lock(mutex_);
  erase(tier, file.id);
  if (dropped) ++totals_.dropped;
}

void Twins::drop_all(Tier& tier) {
  const auto directory = tier.twins_directory();
  if (!directory) return;
  const auto names = names_in((*directory)->get());
  if (!names) return;
  for (const std::string& name : *names) {
    if (const auto file = identity_in_twin_name(name)) {
      drop(tier, *file);
    } else {
      ::unlinkat((*directory)->get(), name.c_str(), 0);
    }
  }
}

// Some of the twins on a tier that nobody is about to use; others the next time.
std::vector<Twins::Entry> Twins::some_unused(TierIndex tier) {
  std::vector<Entry> out;
  const MutexLock lock(mutex_);
  const auto found = known_.find(tier);
  if (found == known_.end()) return out;
  Known& known = found->second;
  auto at = known.files.upper_bound(known.next_ranked);
  for (std::size_t i = 0; i < known.files.size() && out.size() < kMostRanked; ++i, ++at) {
    if (at == known.files.end()) at = known.files.begin();
    known.next_ranked = at->first;
    if (!in_use_.contains(at->second.file.id)) out.push_back(at->second);
  }
  return out;
}

// Whether the file itself is on a disk that is away or lost. 'sluice tier replace' and 'drain
// --lost' make a file of such a twin.
bool Twins::may_be_the_last_copy(Tier& tier, const Identity& file) const {
  const auto directory = tier.twins_directory();
  if (!directory) return false;
  const UniqueFd twin = open_twin(*directory, twin_name(file), O_PATH);
  const auto note = twin ? read_note(twin.get()) : std::nullopt;
  if (!note) return false;
  const Tier* there = pool_.by_slot(note->slot);
  return there != nullptr ? !there->online() : pool_.is_lost(note->slot);
}

bool Twins::make_room(Tier& tier, std::uint64_t bytes) {
  const std::vector<Entry> some = some_unused(tier.index());
  if (some.empty()) return false;
  Standing standing;
  {
    const MutexLock lock(mutex_);
    standing = standing_;
  }
  // Called without the lock: it reads the database. stop() waits for the callers' threads.
  std::vector<double> firm(some.size());
  if (standing) {
    std::vector<Sized> sized;
    for (const Entry& entry : some) sized.push_back({entry.file.id, entry.bytes});
    firm = standing(tier.index(), sized);
  }
  std::vector<std::size_t> order(some.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return firm[i]; });
  const std::uint64_t wanted = std::max(bytes, kLeastDropped);
  std::uint64_t dropped = 0;
  for (const std::size_t i : order) {
    if (dropped >= wanted) break;
    if (may_be_the_last_copy(tier, some[i].file)) continue;
    drop(tier, some[i].file);
    dropped += some[i].bytes;
  }
  if (dropped == 0) return false;
  // ext4 frees blocks when it commits its journal. Until then the tier seems to be full, and more
  // twins would be dropped. An error only means that the room comes later.
  if (const auto directory = tier.twins_directory()) [[maybe_unused]]
    const int synced = ::fsync((*directory)->get());
  tier.refresh_space();
  log::get().debug("dropped twins for their room: tier={} bytes={}", tier.name(), dropped);
  return true;
}

bool Twins::make_room_where_full() {
  bool any = false;
  for (const auto& tier : pool_) {
    if (!tier->online()) continue;
    tier->refresh_space();
    if (tier->space().free_now() < tier->reserve() + kLeastDropped)
      any = make_room(*tier, 0) || any;
  }
  return any;
}

Twins::Figures Twins::figures(TierIndex tier) const {
  const MutexLock lock(mutex_);
  const auto known = known_.find(tier);
  if (known == known_.end()) return {};
  return {known->second.files.size(), known->second.bytes};
}

Twins::Totals Twins::totals() const {
  const MutexLock lock(mutex_);
  return totals_;
}

std::optional<TwinState> Twins::state_of(const Tier& tier, int twin, const TwinNote& note) const {
  if (!is_intact(tier, twin, note)) return TwinState::Differs;
  const Tier* there = pool_.by_slot(note.slot);
  if (there == nullptr || !there->online()) return std::nullopt;
  const auto file = there->open(note.handle, O_PATH);
  if (!file) {
    if (file.error().code == ESTALE || file.error().code == ENOENT) return TwinState::Differs;
    return std::nullopt;
  }
  struct stat st {};
  if (::fstat(file->get(), &st) < 0) return std::nullopt;
  // The file may have moved on, and left a twin of its own there.
  if (st.st_nlink == 0 || there->is_twin(note.file, st.st_ino)) return TwinState::Differs;
  return compare(note, note.handle, st, there->session());
}

bool Twins::is_stale(const Tier& tier, const SharedFd& directory, const std::string& name) const {
  const UniqueFd twin = open_twin(directory, name, O_PATH);
  if (!twin) return false;
  const auto note = read_note(twin.get());
  if (!note) return is_abandoned(twin.get());
  return twin_name(note->file) != name || state_of(tier, twin.get(), *note) == TwinState::Differs;
}

bool Twins::is_abandoned(int twin) const {
  struct stat st {};
  if (::fstat(twin, &st) < 0) return false;
  const MutexLock lock(mutex_);
  // The daemon that made it has ended, or has failed to write the note.
  const std::int64_t made = nanoseconds_of(st.st_ctim);
  return made < started_ || made + kNoteComesWithin < now_ns();
}

std::optional<Twins::Found> Twins::of(const Identity& file) const {
  for (const auto& tier : pool_) {
    const auto directory = tier->twins_directory();
    if (!directory) continue;
    const UniqueFd twin = open_twin(*directory, twin_name(file), O_PATH);
    const auto note = twin ? read_note(twin.get()) : std::nullopt;
    if (!note) continue;
    const auto state = state_of(*tier, twin.get(), *note);
    if (state && *state != TwinState::Differs) return Found{tier->index(), *state};
  }
  return std::nullopt;
}

std::vector<Twins::Survivor> Twins::survivors(unsigned slot) const {
  std::vector<Survivor> out;
  for (const auto& tier : pool_) {
    const auto directory = tier->online() ? tier->twins_directory() : Error(EIO, "offline");
    const auto names = directory ? names_in((*directory)->get()) : directory.error();
    if (!names) continue;
    for (const std::string& name : *names) {
      const UniqueFd twin = open_twin(*directory, name, O_PATH);
      auto note = twin ? read_note(twin.get()) : std::nullopt;
      if (!note || note->slot != slot || twin_name(note->file) != name) continue;
      if (is_intact(*tier, twin.get(), *note)) out.push_back({tier, *std::move(note)});
    }
  }
  return out;
}

Twins::Check Twins::check(Tier& tier, bool remove_stale) const {
  Check out;
  const auto directory = tier.twins_directory();
  const auto names = directory ? names_in((*directory)->get()) : directory.error();
  if (!names) return out;
  for (const std::string& name : *names) {
    struct stat st {};
    if (::fstatat((*directory)->get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) < 0) continue;
    const UniqueFd twin = open_twin(*directory, name, O_PATH);
    // Nobody is about to write a note while the pool is not mounted.
    const bool stale = (twin && !read_note(twin.get())) || is_stale(tier, *directory, name);
    Figures& figures = stale ? out.stale : out.good;
    ++figures.files;
    figures.bytes += allocated(st);
    if (stale && remove_stale) ::unlinkat((*directory)->get(), name.c_str(), 0);
  }
  return out;
}

// What an earlier daemon left, or what is there after the tier was away.
void Twins::scan(Tier& tier) {
  const auto directory = tier.twins_directory();
  {
    const MutexLock lock(mutex_);
    Known& known = known_[tier.index()];
    if (!directory || known.directory.lock() == *directory) return;
    known = {.directory = *directory, .files = {}};
    tier.set_twin_bytes(0);
  }
  const auto names = names_in((*directory)->get());
  if (!names) return;
  for (const std::string& name : *names) {
    const auto file = identity_in_twin_name(name);
    struct stat st {};
    if (!file) {
      ::unlinkat((*directory)->get(), name.c_str(), 0);
    } else if (::fstatat((*directory)->get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0) {
      const MutexLock lock(mutex_);
      put(tier, {*file, allocated(st)});
    }
  }
}

// Passthrough writers get ENOSPC from the kernel without asking us, so room must be free before
// they need it. Returns true if the tier fills and should be looked at again soon.
bool Twins::keep_room(Tier& tier) {
  tier.refresh_space();
  const std::uint64_t free = tier.space().free_now();
  std::uint64_t fell = 0;
  {
    const MutexLock lock(mutex_);
    Known& known = known_[tier.index()];
    if (known.free_then > free) fell = known.free_then - free;
    known.free_then = free;
    if (known.files.empty()) return false;
  }
  // The next writer gets passthrough only if the file may grow without filling the tier.
  const std::uint64_t growth =
      std::min(std::max(kAmple, 2 * pool_.largest_file()), tier.space().total / 20);
  const std::uint64_t wanted = tier.reserve() + tier.promised() + growth + 4 * fell;
  if (free < wanted) {
    make_room(tier, wanted - free);
    const std::uint64_t after = tier.space().free_now();
    const MutexLock lock(mutex_);
    known_[tier.index()].free_then = after;
  }
  return free < 4 * wanted;
}

bool Twins::check_some(Tier& tier) {
  const auto directory = tier.twins_directory();
  if (!directory) return false;
  const auto now = std::chrono::steady_clock::now();
  // The next one that nobody is about to use.
  const auto next = [&]() -> std::optional<Identity> {
    const MutexLock lock(mutex_);
    Known& known = known_[tier.index()];
    auto at = known.files.upper_bound(known.next);
    while (at != known.files.end() && in_use_.contains(at->second.file.id)) ++at;
    if (at != known.files.end()) {
      known.next = at->first;
      return at->second.file;
    }
    known.next = 0;
    known.next_check = now + kBetweenRounds;
    known.is_checked = true;
    return std::nullopt;
  };
  bool is_first = false;
  {
    const MutexLock lock(mutex_);
    Known& known = known_[tier.index()];
    if (now < known.next_check) return false;
    is_first = !known.is_checked;
    known.next_check = now + (is_first ? kLookOften : kLook);
  }
  for (std::size_t i = 0; is_first || i < kChecksPerLook; ++i) {
    const auto file = next();
    if (!file) return false;
    if (is_stale(tier, *directory, twin_name(*file))) {
      const MutexLock lock(mutex_);
      forgotten_.emplace_back(tier.index(), *file);
    }
    if (is_first && std::chrono::steady_clock::now() - now > kFirstRound) break;
  }
  return is_first;
}

void Twins::drop_forgotten() {
  std::vector<std::pair<TierIndex, Identity>> gone;
  {
    const MutexLock lock(mutex_);
    gone.swap(forgotten_);
  }
  for (const auto& [tier, file] : gone) drop(pool_[tier], file);
}

void Twins::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    bool looks_often = false;
    Mode mode{};
    {
      const MutexLock lock(mutex_);
      mode = mode_;
    }
    for (const auto& tier : pool_) {
      if (!tier->online() || stop.stop_requested()) continue;
      scan(*tier);
      if (mode == Mode::DropAll || tier->is_draining()) {
        drop_all(*tier);
        continue;
      }
      looks_often = keep_room(*tier) || looks_often;
      looks_often = check_some(*tier) || looks_often;
    }
    drop_forgotten();
    const MutexLock lock(mutex_);
    if (forgotten_.empty()) wake_.sleep(mutex_, stop, looks_often ? kLookOften : kLook);
  }
}

}  // namespace sluice
