// SPDX-License-Identifier: BSD-2-Clause
// Moves: taking hold of a file that is to go to another tier, and putting its copy in its place.
//
// Who may change a file meanwhile? Writers through the mount cancel the move when they open it;
// setattr, rename, link and unlink cancel it through a ChangeGuard. Mappings that outlived their
// descriptors and processes that use the tier directly can't be seen by us: a write lease, which
// the kernel gives only if nobody else has the file open, proves that there is none when the move
// begins; turned into a read lease it keeps new writers waiting until we let go. Readers through
// the mount are served by us as long as the move lasts, so that no passthrough open pins the file
// to its old place.
#include "fs/core/relocator.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/log.hpp"
#include "fs/core/guards.hpp"
#include "tiering/census.hpp"
#include "tiering/copier.hpp"
#include "tiering/relocate.hpp"

namespace sluice {

namespace {

using std::chrono::milliseconds;

// A backing file that the kernel has just let go of counts as open a moment longer.
constexpr int kLeaseAttempts = 5;
constexpr milliseconds kLeasePause{2};

// Without leases, only what nobody has touched for a while is moved.
constexpr std::int64_t kQuiet = 60;  // seconds

constexpr milliseconds kListingPatience{2500};

bool same_file(const struct stat& a, const struct stat& b) {
  const auto same = [](const timespec& x, const timespec& y) {
    return x.tv_sec == y.tv_sec && x.tv_nsec == y.tv_nsec;
  };
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_nlink == b.st_nlink && same(a.st_mtim, b.st_mtim) && same(a.st_ctim, b.st_ctim);
}

enum class Lease { Held, Refused, Unsupported };

Lease take_lease(int fd) {
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
    return errno == EAGAIN || errno == EBUSY ? Lease::Refused : Lease::Unsupported;
  // Readers are welcome from here on.
  return ::fcntl(fd, F_SETLEASE, F_RDLCK) < 0 ? Lease::Refused : Lease::Held;
}

// Waits until nobody lists the directory, so that no listing misses a file that changes tiers.
bool wait_for_listings(const InodePtr& directory) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  const std::int64_t patience =
      now() + std::chrono::duration_cast<std::chrono::nanoseconds>(kListingPatience).count();
  while (directory->listings.count.load() > 0 && directory->listings.until.load() > now()) {
    if (now() > patience) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

}  // namespace

class Relocator::Held final : public MovingFile {
 public:
  Held(const Parts& parts, InodePtr inode) : parts_(parts), inode_(std::move(inode)) {
    parts_.names.begin_move();
  }
  ~Held() override {
    end();
    parts_.names.end_move();
    for (const InodeId id : references) parts_.table.forget(id, 1);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Whoever waits for this move goes on.
  void end() {
    if (!move) return;
    move->end_lease();
    {
      Inode::Locked state(*inode_);
      state->end_move(*move);
    }
    move->end();
  }

  TierIndex tier() const override { return old.tier; }
  int source() const override { return move->source(); }
  const Identity& identity() const override { return inode_->identity; }
  bool is_cancelled() const override { return move->is_cancelled() || move->is_lease_broken(); }
  const InodePtr& inode() const { return inode_; }

  std::shared_ptr<FileMove> move;
  struct stat before {};  // the file when the move began
  Copy old;
  std::vector<KnownName> names;
  std::vector<InodeId> references;  // lookups of ours, that keep the inodes in the table
  std::vector<SharedFd> directories;

 private:
  const Parts& parts_;
  const InodePtr inode_;
};

// Unlinking does not ask which file a name was of, so the name that we know of a file can be gone
// while it has another (ln f g; rm g). Then that one is looked for on the tier, which takes time.
Result<void> Relocator::ensure_name(const InodePtr& file) {
  const InodeName known = file->last_name();
  const TierIndex tier = file->tier();
  if (const auto parent = parts_.tree.inode(known.parent)) {
    // Which may be gone as well.
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

Result<std::vector<std::string>> Relocator::all_names(const Move& move, const Held& held) {
  const struct stat& st = held.before;
  if (move.paths.size() == st.st_nlink) return move.paths;
  if (st.st_nlink == 0) return Error(ESTALE, "the file is gone");
  // Asked for by one of its names: the others must be looked for.
  auto found = SLUICE_TRY(find_names(parts_.pool[held.old.tier], st.st_ino, st.st_nlink));
  if (found.size() != st.st_nlink)
    return Error(EMLINK, "it has a hard link that can't be found on its tier");
  return found;
}

// REQUIRES: nothing is held.
Result<void> Relocator::take_hold(Held& held, const Move& move) {
  const InodePtr& file = held.inode();
  Inode::Locked state(*file);
  const Copy& copy = state->place();
  if (copy.tier == move.to) return Error(EALREADY, "it is there already");
  // A plan is about the file where it was; a person who asks means wherever it is.
  if (copy.tier != move.from && move.reason != Reason::Requested)
    return Error(ESTALE, "the file is on another tier");
  if (state->is_moving() || state->changes > 0) return Error(EBUSY, "it is being changed");
  if (state->has_duplicate) return Error(EBUSY, "an earlier move of it can't be finished");
  if (state->uses > 0) {
    state->move_waits = true;
    return Error(EBUSY, "it is being read into a GPU");
  }
  if (state->open) {
    state->move_waits = true;
    if (state->open->writers > 0) return Error(EBUSY, "it is open for writing");
    if (state->open->passthrough) return Error(EBUSY, "it is open; it moves once it is closed");
    // Our own descriptor would look like somebody else's; the next read opens it again.
    if (state->open->reader && !copy.handle.empty()) {
      parts_.descriptors.drop_reader(*state->open);
    }
  }
  SharedFd source = copy.fd ? SLUICE_TRY(Descriptors::reopen(copy.fd->get(), O_RDONLY | O_NOATIME))
                            : std::make_shared<UniqueFd>(SLUICE_TRY(
                                  parts_.pool[copy.tier].open(copy.handle, O_RDONLY | O_NOATIME)));
  if (::fstat(source->get(), &held.before) < 0) return Error::last("stat");
  const Lease lease = take_lease(source->get());
  if (lease == Lease::Refused)
    return Error(EBUSY, "a mapping of it is alive, or somebody uses it on its tier");
  if (lease == Lease::Unsupported) {
    if (state->pages.maybe_mapped)
      return Error(EBUSY, "it may be mapped, and its tier knows no leases");
    if (held.before.st_ctim.tv_sec + kQuiet > parts_.clock.seconds())
      return Error(EBUSY, "it was changed a moment ago, and its tier knows no leases");
  }
  held.old = copy;
  held.move = std::make_shared<FileMove>(std::move(source), lease == Lease::Held, move.to);
  state->start_move(held.move);
  state->move_waits = false;
  return {};
}

Result<std::unique_ptr<MovingFile>> Relocator::begin_move(const Move& move) {
  if (move.paths.empty()) return Error(ESTALE, "the file has no name");
  finish_moves();
  std::vector<InodeId> references;
  auto file = parts_.tree.walk(move.paths[0], references);
  const bool right = file && (*file)->id() == move.id && S_ISREG((*file)->type);
  if (!right) {
    for (const InodeId id : references) parts_.table.forget(id, 1);
    // Who asked for it meant the file, by whatever name. Looking for that takes time, which the
    // mover has and the asking thread had not.
    const InodePtr known = move.reason == Reason::Requested ? parts_.table.find(move.id) : nullptr;
    if (known && ensure_name(known)) {
      Move by_name = move;
      by_name.paths = {parts_.tree.path_of(known)};
      if (by_name.paths != move.paths) return begin_move(by_name);
    }
    return file ? Error(ESTALE, "another file has its name") : file.error();
  }
  auto held = std::make_unique<Held>(parts_, *file);
  held->references = std::move(references);
  for (int attempt = 1;; ++attempt) {
    forget_in_engine(*file);
    const auto taken = take_hold(*held, move);
    if (taken) break;
    if (taken.error().code != EBUSY || attempt == kLeaseAttempts) return taken.error();
    std::this_thread::sleep_for(kLeasePause);
  }
  for (const std::string& path : SLUICE_TRY(all_names(move, *held))) {
    const auto slash = path.rfind('/');
    KnownName name{SLUICE_TRY(parts_.tree.walk(path.substr(0, slash), held->references)),
                   path.substr(slash + 1)};
    held->names.push_back(std::move(name));
  }
  return std::unique_ptr<MovingFile>(std::move(held));
}

// Everything for the change of names that can be done before it.
Result<std::vector<Step>> Relocator::prepare(const ReadyCopy& arrival) {
  Held& held = static_cast<Held&>(*arrival.file);
  std::vector<NamePlaces> places;
  const Tier& from = parts_.pool[held.old.tier];
  Tier& to = parts_.pool[arrival.to];
  for (const KnownName& known : held.names) {
    SLUICE_TRY(
        parts_.tree.check_that_nothing_hides(known.parent, known.name, from.index(), to.index()));
    const OpenCopy old_dir = SLUICE_TRY(parts_.tree.open_copy(known.parent, from.index()));
    auto new_dir = parts_.tree.open_copy(known.parent, to.index());
    if (failed_with(new_dir, ENOENT)) {
      // No rename may pass between the reading of the directory's name and the copy's getting it.
      ExclusiveLock no_renames(parts_.names.lock);
      new_dir = parts_.tree.ensure_copy(known.parent, to.index());
    }
    if (!new_dir) return new_dir.error();
    // Listings that begin from here on know of the new tier.
    if (!wait_for_listings(known.parent)) return Error(EBUSY, "its directory is being listed");
    held.directories.push_back(old_dir.fd);
    held.directories.push_back(new_dir->fd);
    places.push_back({old_dir.get(), new_dir->get(), known.name});
  }
  return relocation_steps(*arrival.copy, from, to, places);
}

// From here on whoever wants to change the file waits. ECANCELED if somebody came first.
Result<void> Relocator::begin_switch(Held& held) {
  {
    Inode& file = *held.inode();
    Inode::Locked state(file);
    const bool in_use = state->open && (state->open->writers > 0 || state->open->passthrough);
    if (held.move->is_cancelled() || state->changes > 0 || in_use)
      return Error(ECANCELED, "somebody changes the file");
    if (state->uses > 0) {
      state->move_waits = true;
      return Error(EBUSY, "it is being read into a GPU");
    }
    state->start_switch(*held.move);
  }
  struct stat now {};
  if (::fstat(held.source(), &now) < 0) return Error::last("stat");
  if (!same_file(held.before, now) || held.move->is_lease_broken())
    return Error(ECANCELED, "the file was changed on its tier");
  for (std::size_t i = 0; i < held.names.size(); ++i) {
    const Tier& from = parts_.pool[held.old.tier];
    const auto there = from.identity_of(held.directories[2 * i]->get(), held.names[i].name.c_str());
    if (!there && there.error().code != ENOENT) return there.error();
    if (!there || *there != held.identity()) return Error(ESTALE, "the file got another name");
  }
  return {};
}

// The inode is told where its file is now.
void Relocator::set_place(const InodePtr& file, const Copy& copy) {
  Inode::Locked state(*file);
  state->copies[0] = copy;
  if (state->open) parts_.descriptors.drop_reader(*state->open);
}

std::vector<Result<void>> Relocator::switch_files(const std::vector<ReadyCopy>& arrivals) {
  std::vector<Result<void>> outcomes(arrivals.size());
  std::vector<std::vector<Step>> intents;
  std::vector<std::size_t> which;  // the arrival that each intent is about
  std::vector<std::vector<Step>> prepared(arrivals.size());
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    auto steps = prepare(arrivals[i]);
    steps ? void(prepared[i] = *std::move(steps)) : void(outcomes[i] = steps.error());
  }
  {
    // Who changes names and began before it could know of these moves is done after this.
    const ExclusiveLock barrier(parts_.names.lock);
  }
  const auto held = [&](std::size_t i) -> Held& { return static_cast<Held&>(*arrivals[i].file); };
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    if (outcomes[i]) outcomes[i] = begin_switch(held(i));
    if (!outcomes[i]) {
      held(i).end();
      continue;
    }
    // Somebody may have read the file since its times were copied.
    copy_atime(held(i).source(), arrivals[i].copy->fd.get());
    intents.push_back(std::move(prepared[i]));
    which.push_back(i);
  }
  if (which.empty()) return outcomes;
  const SharedLock no_replay(intents_);
  std::int64_t last_ctime = 0;
  const auto copy_arrived = [&](std::size_t k) {
    const ReadyCopy& arrival = arrivals[which[k]];
    const Located& there = arrival.copy->located;
    const Held& file = held(which[k]);
    last_ctime = std::max(last_ctime, parts_.times.moved(*file.inode(), file.tier(), file.source(),
                                                         arrival.to, arrival.copy->fd.get()));
    set_place(held(which[k]).inode(), Copy{arrival.to, there.handle, there.pinned});
    parts_.names.note_switch();
  };
  // The steps are, for each name, one that makes it on the new tier, and after those, for each, one
  // that removes it from the old.
  const auto unseen = [&](std::size_t k, std::size_t step, const auto& act) {
    const Held& file = held(which[k]);
    const bool arrives = step < file.names.size();
    const std::size_t name = arrives ? step : step - file.names.size();
    return parts_.times.change_unseen(*file.names[name].parent,
                                      arrives ? arrivals[which[k]].to : file.tier(),
                                      file.directories[2 * name + (arrives ? 1 : 0)]->get(), act);
  };
  const auto ends = execute_moves(parts_.store, parts_.pool, intents, copy_arrived, unseen);
  // Whoever changes one of the files from here on gives it another ctime.
  ShownTimes::wait_until_past(last_ctime);
  for (std::size_t k = 0; k < which.size(); ++k) {
    const std::size_t i = which[k];
    outcomes[i] = ends ? (*ends)[k].result : ends.error();
    if (!outcomes[i]) set_place(held(i).inode(), held(i).old);
    if (ends && !(*ends)[k].is_finished)
      remember_unfinished(held(i).inode(), (*ends)[k], intents[k], held(i).old);
    parts_.names.note_switch();
    held(i).end();
  }
  for (const std::size_t i : which) {
    if (!outcomes[i]) continue;
    parts_.times.keep(*held(i).inode());
    parts_.kernel.drop_attributes(held(i).inode()->id());  // st_blocks
    // It may have been read while it was copied.
    parts_.engine.forget(held(i).source());
  }
  return outcomes;
}

// Both files have the name until the move is settled. The inode stays in the table meanwhile, and
// what it says of its place holds.
void Relocator::remember_unfinished(const InodePtr& file, const MoveEnd& end,
                                    const std::vector<Step>& steps, const Copy& original) {
  log::get().error("a move could not be finished, tried again every second: path={}",
                   log::escaped(parts_.tree.path_of(file)));
  std::vector<InodeId> reference;
  [[maybe_unused]] const auto walked = parts_.tree.walk(parts_.tree.path_of(file), reference);
  {
    Inode::Locked state(*file);
    state->has_duplicate = true;
  }
  parts_.names.begin_move();  // so that those who change names look for it
  MutexLock lock(unfinished_mutex_);
  unfinished_.push_back({file, steps, end.sequence, end.result.has_value(), original, reference});
}

void Relocator::finish_moves() {
  {
    MutexLock lock(unfinished_mutex_);
    if (unfinished_.empty()) return;
  }
  ExclusiveLock no_names(parts_.names.lock);
  ExclusiveLock no_moves(intents_);
  std::vector<UnfinishedMove> tries;
  {
    MutexLock lock(unfinished_mutex_);
    tries.swap(unfinished_);
  }
  for (UnfinishedMove& each : tries) {
    // Not forwards if the original is the file: somebody may have it open for writing.
    const auto settled = each.moved ? finish_move(parts_.pool, each.steps) : [&]() -> Result<bool> {
      SLUICE_TRY(undo_move(parts_.pool, each.steps));
      return false;
    }();
    if (!settled && settled.error().code != EUCLEAN) {
      MutexLock lock(unfinished_mutex_);
      unfinished_.push_back(std::move(each));
      continue;
    }
    clear_finished(parts_.store, {each.sequence});
    if (settled && each.moved && !*settled) set_place(each.file, each.original);
    {
      Inode::Locked state(*each.file);
      state->has_duplicate = false;
    }
    parts_.names.note_switch();
    parts_.names.end_move();
    for (const InodeId id : each.references) parts_.table.forget(id, 1);
    parts_.file_is_free(each.file->id());
  }
}

Result<void> Relocator::replay_for(TierIndex tier) {
  // Nothing may be under way that has an intent of its own. Moves that stopped half-way are
  // finish_moves()'s business, which tells the inode.
  ExclusiveLock no_moves(intents_);
  Replay replay{.returned = tier, .exclude = {}};
  {
    MutexLock lock(unfinished_mutex_);
    for (const UnfinishedMove& each : unfinished_) replay.exclude.push_back(each.sequence);
  }
  const auto replayed = replay_intents(parts_.store, parts_.pool, replay);
  if (!replayed) return replayed.error();
  return {};
}

// What the engine keeps of a file (mappings, handles) would keep its blocks when it is deleted, and
// keep a move from getting its lease. The engine knows by itself which files those are: the inode
// that it was asked with may be another by now, since the kernel forgets.
void Relocator::forget_in_engine(const InodePtr& file) {
  if (!parts_.engine.is_in_use()) return;
  if (const auto fd = parts_.descriptors.any(file)) parts_.engine.forget((*fd)->get());
}

}  // namespace sluice
