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
#include "fs/core/relocator.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tiering/census.hpp"
#include "tiering/copier.hpp"
#include "tiering/relocate.hpp"
#include "tiering/twins.hpp"

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

class Relocator::Moving final : public MovingFile {
 public:
  Moving(const Parts& parts, InodePtr inode) : parts_(parts) {
    change.file = std::move(inode);
    parts_.names_lock.begin_move();
  }
  ~Moving() override {
    end();
    parts_.names_lock.end_move();
    for (const InodeId id : references) parts_.table.forget(id, 1);
  }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

  // Ends the move. Threads that wait for that continue.
  void end() {
    if (!move) return;
    move->end_lease();
    {
      Inode::Locked state(*change.file);
      state->end_move(*move);
    }
    move->end();
  }

  TierIndex tier() const override { return change.original.tier; }
  int source() const override { return move->source(); }
  const Identity& identity() const override { return change.file->identity; }
  bool is_cancelled() const override { return move->is_cancelled() || move->is_lease_broken(); }

  Switch change;
  std::shared_ptr<FileMove> move;
  struct stat before {};            // the file when the move began
  std::vector<InodeId> references;  // lookups that keep the inodes in the table

 private:
  const Parts& parts_;
};

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

Result<std::vector<std::string>> Relocator::all_names(const Move& move, const Moving& moving) {
  const struct stat& st = moving.before;
  if (move.paths.size() == st.st_nlink) return move.paths;
  if (st.st_nlink == 0) return Error(ESTALE, "the file was deleted");
  // A request gives one name only. The others must be looked for. If users rename one of them, or
  // its directory, the search may miss it.
  for (int search = 0; search < kMostSearches; ++search) {
    auto found = SLUICE_TRY(find_names(parts_.pool[moving.tier()], st.st_ino, st.st_nlink));
    if (found.size() == st.st_nlink) return found;
    struct stat now {};
    if (::fstat(moving.source(), &now) < 0) return Error::last("stat");
    if (moving.is_cancelled() || !same_file(st, now))
      return Error(ECANCELED, "the file was renamed");
  }
  return Error(EMLINK, "one of its hard links cannot be found on its tier");
}

// Opens the file, takes a lease on it and registers the move with the inode. EBUSY if the file is
// in use.
Result<void> Relocator::open_for_move(Moving& moving, const Move& move) {
  Inode::Locked state(*moving.change.file);
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
  if (::fstat(source->get(), &moving.before) < 0) return Error::last("stat");
  const Lease lease = take_lease(source->get());
  if (lease == Lease::Refused)
    return Error(EBUSY, "it is mapped, or a process uses it on its tier");
  if (lease == Lease::Unsupported) {
    if (state->pages.maybe_mapped)
      return Error(EBUSY, "it may be mapped, and its tier has no leases");
    if (moving.before.st_ctim.tv_sec + kQuiet > parts_.clock.seconds())
      return Error(EBUSY, "it was changed less than a minute ago, and its tier has no leases");
  }
  moving.change.original = copy;
  moving.change.source = source;
  moving.change.to = move.to;
  moving.move = std::make_shared<FileMove>(std::move(source), lease == Lease::Granted, move.to);
  state->start_move(moving.move);
  state->move_waits = false;
  return {};
}

Result<std::unique_ptr<MovingFile>> Relocator::begin_move(Move& move) {
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
      if (std::exchange(move.paths, paths) != paths) return begin_move(move);
    }
    return file ? Error(ESTALE, "another file has its name") : file.error();
  }
  auto moving = std::make_unique<Moving>(parts_, *file);
  moving->references = std::move(references);
  for (int attempt = 1;; ++attempt) {
    forget_in_engine(*file);
    const auto opened = open_for_move(*moving, move);
    if (opened) break;
    if (opened.error().code != EBUSY || attempt == kLeaseAttempts) return opened.error();
    std::this_thread::sleep_for(kLeasePause);
  }
  move.set_size(moving->before.st_size, moving->before.st_blocks);
  for (const std::string& path : SLUICE_TRY(all_names(move, *moving))) {
    const auto slash = path.rfind('/');
    moving->change.names.push_back(
        {SLUICE_TRY(parts_.tree.walk(path.substr(0, slash), moving->references)),
         path.substr(slash + 1),
         {},
         {}});
  }
  return std::unique_ptr<MovingFile>(std::move(moving));
}

// From here on, operations that change the file block until the move ends. ECANCELED if one came
// first.
Result<void> Relocator::begin_switch(Moving& moving) {
  {
    Inode::Locked state(*moving.change.file);
    const bool in_use = state->open && (state->open->writers > 0 || state->open->passthrough);
    if (moving.move->is_cancelled() || state->changes > 0 || in_use)
      return Error(ECANCELED, "a user changed the file");
    if (state->uses > 0) {
      state->move_waits = true;
      return Error(EBUSY, "it is being read into a GPU");
    }
    state->start_switch(*moving.move);
  }
  struct stat now {};
  if (::fstat(moving.source(), &now) < 0) return Error::last("stat");
  if (!same_file(moving.before, now) || moving.move->is_lease_broken())
    return Error(ECANCELED, "the file was changed on its tier");
  return check_names(moving.change);
}

// Whether the original stays as a twin. Its bytes may have been written a moment ago, so they must
// be on the disk before anybody relies on them. Without a lease, a process that uses the tier
// directly might still write to it.
void Relocator::consider_twin(Moving& moving) {
  Switch& change = moving.change;
  const Tier& from = parts_.pool[change.original.tier];
  const bool may_stay = moving.move->is_leased() && !change.copy->is_twin &&
                        parts_.pool.twins().may_keep(from, parts_.pool[change.to], moving.before);
  if (may_stay && ::fsync(moving.source()) == 0) change.keep = Original::KeepAsTwin;
}

std::vector<Result<void>> Relocator::switch_files(const std::vector<ReadyCopy>& copies) {
  std::vector<Result<void>> results(copies.size());
  const auto moving = [&](std::size_t i) -> Moving& {
    return static_cast<Moving&>(*copies[i].file);
  };
  for (std::size_t i = 0; i < copies.size(); ++i) {
    Switch& change = moving(i).change;
    change.copy = copies[i].copy;
    consider_twin(moving(i));
    results[i] = prepare(change);
    if (!results[i]) continue;
    // Listings that begin from here on read the new tier too.
    const bool listed = std::any_of(change.names.begin(), change.names.end(), [](const auto& name) {
      return !wait_for_listings(name.parent);
    });
    if (listed) results[i] = Error(EBUSY, "its directory is being listed");
  }
  {
    // Waits for operations on names that began before they could know of these moves.
    const ExclusiveLock barrier(parts_.names_lock.mutex);
  }
  std::vector<Switch*> changes;
  std::vector<std::size_t> which;  // the copy that each of `changes` belongs to
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (results[i]) results[i] = begin_switch(moving(i));
    if (!results[i]) {
      moving(i).end();
      continue;
    }
    // The file may have been read since its times were copied.
    copy_atime(moving(i).source(), copies[i].copy->fd.get());
    changes.push_back(&moving(i).change);
    which.push_back(i);
  }
  if (changes.empty()) return results;
  auto switched = switch_all(changes);
  for (std::size_t k = 0; k < which.size(); ++k) {
    results[which[k]] = std::move(switched[k]);
    moving(which[k]).end();
  }
  for (const std::size_t i : which) {
    if (!results[i]) continue;
    const InodePtr& file = moving(i).change.file;
    parts_.kernel.drop_attributes(file->id());  // st_blocks
    // The engine may have read the original while it was copied.
    parts_.engine.forget(moving(i).source());
  }
  return results;
}

// What the engine keeps of a file (mappings, handles) would make the kernel refuse the lease. The
// engine finds its entries by the file, because the inode may be another one than it was asked
// with: the kernel may have forgotten the file in between.
void Relocator::forget_in_engine(const InodePtr& file) {
  if (!parts_.engine.is_in_use()) return;
  if (const auto fd = parts_.descriptors.any(file)) parts_.engine.forget((*fd)->get());
}

}  // namespace sluice
