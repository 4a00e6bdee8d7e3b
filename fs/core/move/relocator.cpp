// SPDX-License-Identifier: BSD-2-Clause
// Moves that the mover runs.
//
// A file must not change while it is copied, unless the move notices:
// - Users of the mount who open the file for writing cancel the move. So do setattr, rename, link
// and
//   unlink, through a ChangeGuard.
// - Mappings that outlived their descriptors, and processes that use the tier directly, are
// invisible
//   to the daemon. The kernel grants a write lease only if nobody else has the file open, so the
//   lease proves that there are none when the move begins. It is then downgraded to a read lease,
//   which makes new writers wait until the move releases it.
// - Readers through the mount are served during the move, because a passthrough open would tie the
//   file to its old place.
#include "fs/core/move/relocator.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "fs/core/move/held_inode.hpp"
#include "tiering/heat/census.hpp"

namespace sluice {

namespace {

using std::chrono::milliseconds;

// The kernel counts a backing file as open for a short time after the daemon removed it.
constexpr int kLeaseAttempts = 5;
constexpr milliseconds kLeasePause{2};

// On a tier without leases, a file moves only if it was not changed for this many seconds.
constexpr std::int64_t kQuiet = 60;

constexpr milliseconds kLongestListing{2500};

// How often the hard links of a file are searched for.
constexpr int kMostSearches = 3;

bool same_file(const struct stat& a, const struct stat& b) {
  const auto same = [](const timespec& x, const timespec& y) {
    return x.tv_sec == y.tv_sec && x.tv_nsec == y.tv_nsec;
  };
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_nlink == b.st_nlink && same(a.st_mtim, b.st_mtim) && same(a.st_ctim, b.st_ctim);
}

enum class Lease { Granted, Refused, Unsupported };

Lease take_lease(int fd) {
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
    return errno == EAGAIN || errno == EBUSY ? Lease::Refused : Lease::Unsupported;
  // From here on, others may open the file for reading.
  return ::fcntl(fd, F_SETLEASE, F_RDLCK) < 0 ? Lease::Refused : Lease::Granted;
}

// Waits until nobody reads the names of the directory, because a listing could miss a file that
// changes tiers.
bool wait_for_listings(const InodePtr& directory) {
  const auto deadline = std::chrono::steady_clock::now() + kLongestListing;
  while (directory->listings.load() > 0) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

}  // namespace

class Relocator::Moving final : public HeldInode {
 public:
  Moving(const Parts& parts, InodePtr file, std::vector<InodeId> references, TierIndex to)
      : HeldInode(parts, std::move(file), to, NamesHeld::No) {
    references_ = std::move(references);
  }

  Result<void> open(const Move& move);
  Result<void> find_names(const Move& move);

  Result<Names> open_names() override;
  Result<void> begin_switch(const HiddenCopy& copy) override;
  void release(Holder holder) override {
    HeldInode::release(holder);
    if (holder == Holder::Copy) parts_.kernel.drop_attributes(file_->id());  // st_blocks
  }

 private:
  Result<std::vector<std::string>> all_names(const Move& move) const;

  std::uint64_t mark_ = 0;  // see NamesLock::wait_for_older()
};

Result<std::vector<std::string>> Relocator::Moving::all_names(const Move& move) const {
  const struct stat& st = before();
  if (move.paths.size() == st.st_nlink) return move.paths;
  if (st.st_nlink == 0) return Error(ESTALE, "the file was deleted");
  // A request gives one name only. The others must be looked for. If users rename one of them, or
  // its directory, the search may miss it.
  for (int search = 0; search < kMostSearches; ++search) {
    auto found = SLUICE_TRY(sluice::find_names(parts_.pool[tier()], st.st_ino, st.st_nlink));
    if (found.size() == st.st_nlink) return found;
    struct stat now {};
    if (::fstat(source(), &now) < 0) return Error::last("stat");
    if (is_cancelled() || !same_file(st, now)) return Error(ECANCELED, "the file was renamed");
  }
  return Error(EMLINK, "one of its hard links cannot be found on its tier");
}

Result<void> Relocator::Moving::find_names(const Move& move) {
  for (const std::string& path : SLUICE_TRY(all_names(move))) {
    const auto slash = path.rfind('/');
    names_.push_back({SLUICE_TRY(parts_.tree.walk(path.substr(0, slash), references_)),
                      path.substr(slash + 1),
                      {},
                      {}});
  }
  mark_ = parts_.names_lock.marks();
  return {};
}

// Opens the file, takes a lease on it and registers the move with the inode. EBUSY if the file is
// in use.
Result<void> Relocator::Moving::open(const Move& move) {
  Inode::Locked state(*file_);
  const Copy& copy = state->place();
  if (copy.tier == move.to) return Error(EALREADY, "it is already on that tier");
  // A plan is about the file on the tier where it was. A request means the file, wherever it is.
  if (copy.tier != move.from && move.reason != Reason::Requested)
    return Error(ESTALE, "the file is on another tier");
  if (state->is_moving() || state->changes > 0) return Error(EBUSY, "it is being changed");
  if (state->has_duplicate) return Error(EBUSY, "an earlier move of it is not finished");
  if (state->uses > 0) {
    state->move_waits = true;
    return Error(EBUSY, "it is being read into a GPU");
  }
  if (state->open) {
    state->move_waits = true;
    if (state->open->writers > 0) return Error(EBUSY, "it is open for writing");
    if (state->open->passthrough) return Error(EBUSY, "it is open; it moves once it is closed");
    // With this descriptor open, the lease would be refused. The next read opens another one.
    if (state->open->reader && !copy.handle.empty()) {
      parts_.descriptors.drop_reader(*state->open);
    }
  }
  SharedFd source = copy.fd ? SLUICE_TRY(Descriptors::reopen(copy.fd->get(), O_RDONLY | O_NOATIME))
                            : std::make_shared<UniqueFd>(SLUICE_TRY(
                                  parts_.pool[copy.tier].open(copy.handle, O_RDONLY | O_NOATIME)));
  if (::fstat(source->get(), &before_) < 0) return Error::last("stat");
  const Lease lease = take_lease(source->get());
  if (lease == Lease::Refused)
    return Error(EBUSY, "it is mapped, or a process uses it on its tier");
  if (lease == Lease::Unsupported) {
    if (state->pages.maybe_mapped)
      return Error(EBUSY, "it may be mapped, and its tier has no leases");
    if (before_.st_ctim.tv_sec + kQuiet > parts_.clock.seconds())
      return Error(EBUSY, "it was changed less than a minute ago, and its tier has no leases");
  }
  original_ = copy;
  tier_ = copy.tier;
  start(*state, std::make_shared<FileMove>(std::move(source), lease == Lease::Granted, to_));
  state->move_waits = false;
  return {};
}

Result<HeldFile::Names> Relocator::Moving::open_names() {
  Names names = SLUICE_TRY(open_all());
  // Listings that begin from here on read the new tier too.
  const bool listed = std::any_of(names_.begin(), names_.end(),
                                  [](const Name& name) { return !wait_for_listings(name.parent); });
  if (listed) return Error(EBUSY, "its directory is being listed");
  parts_.names_lock.wait_for_older(mark_);
  return names;
}

Result<void> Relocator::Moving::begin_switch(const HiddenCopy& copy) {
  {
    Inode::Locked state(*file_);
    const bool in_use = state->open && (state->open->writers > 0 || state->open->passthrough);
    if (move_->is_cancelled() || state->changes > 0 || in_use)
      return Error(ECANCELED, "a user changed the file");
    if (state->uses > 0) {
      state->move_waits = true;
      return Error(EBUSY, "it is being read into a GPU");
    }
    state->start_switch(*move_);
  }
  struct stat now {};
  if (::fstat(source(), &now) < 0) return Error::last("stat");
  if (!same_file(before(), now) || move_->is_lease_broken())
    return Error(ECANCELED, "the file was changed on its tier");
  SLUICE_TRY(check_names());
  record(copy);
  return {};
}

// The name that the inode remembers may be gone while the file has another one (ln f g; rm g),
// because unlink does not update the inode. Then this finds another name on the tier, which is
// slow.
Result<void> Relocator::ensure_name(const InodePtr& file) {
  const InodeName known = file->last_name();
  const TierIndex tier = file->tier();
  if (const auto parent = parts_.tree.inode(known.parent)) {
    const auto directory = parts_.tree.open_copy(*parent, tier);
    const auto found = directory
                           ? directory->tier->identity_of(directory->get(), known.text.c_str())
                           : directory.error();
    if (found && *found == file->identity) return {};
  }
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(file));
  struct stat st {};
  if (::fstat(fd->get(), &st) < 0) return Error::last("stat");
  if (st.st_nlink == 0) return Error(ENOENT, "the file has no name");
  const auto names = SLUICE_TRY(find_names(parts_.pool[tier], st.st_ino, 1));
  if (names.empty()) return Error(ESTALE, "the file's name is not known");
  std::vector<InodeId> references;
  const auto walked = parts_.tree.walk(names[0], references);
  for (const InodeId id : references) parts_.table.forget(id, 1);
  if (!walked) return walked.error();
  if (*walked != file) return Error(ESTALE, "the file's name is not known");
  file->set_last_name(references.size() > 1 ? references[references.size() - 2] : kRootId,
                      names[0].substr(names[0].rfind('/') + 1));
  return {};
}

Result<std::unique_ptr<HeldFile>> Relocator::hold(Move& move) {
  if (move.paths.empty()) return Error(ESTALE, "the file has no name");
  finish_moves();
  std::vector<InodeId> references;
  auto file = parts_.tree.walk(move.paths[0], references);
  const bool right = file && (*file)->id() == move.id && S_ISREG((*file)->type);
  if (!right) {
    for (const InodeId id : references) parts_.table.forget(id, 1);
    // A request means the file, by whatever name. The mover's thread has the time to look for one.
    const InodePtr known = move.reason == Reason::Requested ? parts_.table.find(move.id) : nullptr;
    if (known && ensure_name(known)) {
      const std::vector<std::string> paths{parts_.tree.path_of(known)};
      if (std::exchange(move.paths, paths) != paths) return hold(move);
    }
    return file ? Error(ESTALE, "another file has its name") : file.error();
  }
  auto moving = std::make_unique<Moving>(parts_, *file, std::exchange(references, {}), move.to);
  for (int attempt = 1;; ++attempt) {
    forget_in_engine(*file);
    const auto opened = moving->open(move);
    if (opened) break;
    if (opened.error().code != EBUSY || attempt == kLeaseAttempts) return opened.error();
    std::this_thread::sleep_for(kLeasePause);
  }
  move.set_size(moving->before().st_size, moving->before().st_blocks);
  SLUICE_TRY(moving->find_names(move));
  return std::unique_ptr<HeldFile>(std::move(moving));
}

// What the engine keeps of a file (mappings, handles) would make the kernel refuse the lease. The
// engine finds its entries by the file, because the inode may be another one than it was asked
// with: the kernel may have forgotten the file in between.
void Relocator::forget_in_engine(const InodePtr& file) {
  if (!parts_.engine.is_in_use()) return;
  if (const auto fd = parts_.descriptors.any(file)) parts_.engine.forget((*fd)->get());
}

void Relocator::finish_moves() {
  if (!switcher_.has_unfinished()) return;
  const ExclusiveLock no_names(parts_.names_lock.mutex);
  switcher_.finish();
}

Result<void> Relocator::settle_lost() {
  parts_.names_lock.mutex.assert_held();
  return switcher_.settle_lost();
}

Result<void> Relocator::replay_for(TierIndex tier) {
  parts_.names_lock.mutex.assert_held();
  return switcher_.replay_for(tier);
}

}  // namespace sluice
