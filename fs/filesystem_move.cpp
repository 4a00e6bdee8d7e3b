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
#include <fcntl.h>
#include <linux/fs.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/log.hpp"
#include "fs/filesystem.hpp"
#include "tiering/copier.hpp"

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

}  // namespace

class Filesystem::Held final : public HeldFile {
 public:
  Held(Filesystem& filesystem, InodePtr inode) : filesystem_(filesystem), inode_(std::move(inode)) {
    filesystem_.moves_.fetch_add(1);
  }
  ~Held() override {
    end();
    filesystem_.moves_.fetch_sub(1);
    for (const InodeId id : references) filesystem_.forget(id, 1);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Whoever waits for this move goes on.
  void end() {
    if (!move) return;
    move->end_lease();
    {
      MutexLock lock(inode_->mutex);
      move->is_switching = false;
      if (inode_->move == move) inode_->move = nullptr;
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
  Filesystem& filesystem_;
  const InodePtr inode_;
};

// Looks up every name of `path`. Each inode on the way, the last included, has one lookup more,
// which `references` remembers.
Result<InodePtr> Filesystem::walk(std::string_view path, std::vector<InodeId>& references,
                                  NamesLock held) {
  InodePtr at = table_.find(kRootId);
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const std::string name(path.substr(0, path.find('/')));
    path.remove_prefix(name.size());
    const Entry entry = SLUICE_TRY(look_up(at, name.c_str(), held, InodeTable::Told::Nobody));
    InodePtr next = entry.id == InodeId{} ? nullptr : table_.find(entry.id);
    if (!next) return Error(ESTALE, "the file is gone");
    references.push_back(entry.id);
    at = std::move(next);
  }
  return at;
}

// Unlinking does not ask which file a name was of, so the name that we know of a file can be gone
// while it has another (ln f g; rm g). Then that one is looked for on the tier, which takes time.
Result<void> Filesystem::ensure_name(const InodePtr& file) {
  InodeId parent_id{};
  std::string name;
  TierIndex tier = kNoTier;
  {
    MutexLock lock(file->mutex);
    parent_id = file->parent;
    name = file->name;
    tier = file->copies[0].tier;
  }
  if (const auto parent = inode(parent_id)) {
    // Which may be gone as well.
    const auto directory = open_copy(*parent, tier);
    const auto found = directory ? directory->tier->identity_of(directory->get(), name.c_str())
                                 : directory.error();
    if (found && *found == file->identity) return {};
  }
  const SharedFd fd = SLUICE_TRY(any_fd(file));
  struct stat st {};
  if (::fstat(fd->get(), &st) < 0) return Error::last("stat");
  if (st.st_nlink == 0) return Error(ENOENT, "the file has no name");
  const auto names = SLUICE_TRY(find_names(pool_[tier], st.st_ino, 1));
  if (names.empty()) return Error(ESTALE, "the file's name is not known");
  std::vector<InodeId> references;
  const auto walked = walk(names[0], references);
  for (const InodeId id : references) forget(id, 1);
  if (!walked) return walked.error();
  if (*walked != file) return Error(ESTALE, "the file's name is not known");
  MutexLock lock(file->mutex);
  file->parent = references.size() > 1 ? references[references.size() - 2] : kRootId;
  file->name = names[0].substr(names[0].rfind('/') + 1);
  return {};
}

Result<std::vector<std::string>> Filesystem::all_names(const Move& move, const Held& held) {
  const struct stat& st = held.before;
  if (move.paths.size() == st.st_nlink) return move.paths;
  if (st.st_nlink == 0) return Error(ESTALE, "the file is gone");
  // Asked for by one of its names: the others must be looked for.
  auto found = SLUICE_TRY(find_names(pool_[held.old.tier], st.st_ino, st.st_nlink));
  if (found.size() != st.st_nlink)
    return Error(EMLINK, "it has a hard link that can't be found on its tier");
  return found;
}

// REQUIRES: nothing is held.
Result<void> Filesystem::take_hold(Held& held, const Move& move) {
  const InodePtr& file = held.inode();
  MutexLock lock(file->mutex);
  const Copy& copy = file->copies[0];
  if (copy.tier == move.to) return Error(EALREADY, "it is there already");
  // A plan is about the file where it was; a person who asks means wherever it is.
  if (copy.tier != move.from && move.reason != Reason::Requested)
    return Error(ESTALE, "the file is on another tier");
  if (file->move || file->changes > 0) return Error(EBUSY, "it is being changed");
  if (file->has_twin) return Error(EBUSY, "an earlier move of it can't be finished");
  if (file->uses > 0) {
    file->move_waits = true;
    return Error(EBUSY, "it is being read into a GPU");
  }
  if (file->open) {
    file->move_waits = true;
    if (file->open->writers > 0) return Error(EBUSY, "it is open for writing");
    if (file->open->passthrough) return Error(EBUSY, "it is open; it moves once it is closed");
    // Our own descriptor would look like somebody else's; the next read opens it again.
    if (file->open->reader && !copy.handle.empty()) {
      file->open->reader = nullptr;
      readers_.fetch_sub(1);
    }
  }
  SharedFd source = copy.fd ? SLUICE_TRY(reopen(copy.fd->get(), O_RDONLY | O_NOATIME))
                            : std::make_shared<UniqueFd>(SLUICE_TRY(
                                  pool_[copy.tier].open(copy.handle, O_RDONLY | O_NOATIME)));
  if (::fstat(source->get(), &held.before) < 0) return Error::last("stat");
  const Lease lease = take_lease(source->get());
  if (lease == Lease::Refused)
    return Error(EBUSY, "a mapping of it is alive, or somebody uses it on its tier");
  if (lease == Lease::Unsupported) {
    if (file->maybe_mapped) return Error(EBUSY, "it may be mapped, and its tier knows no leases");
    if (held.before.st_ctim.tv_sec + kQuiet > std::time(nullptr))
      return Error(EBUSY, "it was changed a moment ago, and its tier knows no leases");
  }
  held.old = copy;
  held.move = std::make_shared<FileMove>(std::move(source), lease == Lease::Held, move.to);
  file->move = held.move;
  file->move_waits = false;
  return {};
}

Result<std::unique_ptr<HeldFile>> Filesystem::hold(const Move& move) {
  if (move.paths.empty()) return Error(ESTALE, "the file has no name");
  settle_moves();
  std::vector<InodeId> references;
  auto file = walk(move.paths[0], references);
  const bool right = file && (*file)->id() == move.id && S_ISREG((*file)->type);
  if (!right) {
    for (const InodeId id : references) forget(id, 1);
    // Who asked for it meant the file, by whatever name. Looking for that takes time, which the
    // mover has and the asking thread had not.
    const InodePtr known = move.reason == Reason::Requested ? table_.find(move.id) : nullptr;
    if (known && ensure_name(known)) {
      Move by_name = move;
      by_name.paths = {path_of(known)};
      if (by_name.paths != move.paths) return hold(by_name);
    }
    return file ? Error(ESTALE, "another file has its name") : file.error();
  }
  auto held = std::make_unique<Held>(*this, *file);
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
    KnownName name{SLUICE_TRY(walk(path.substr(0, slash), held->references)),
                   path.substr(slash + 1)};
    held->names.push_back(std::move(name));
  }
  return std::unique_ptr<HeldFile>(std::move(held));
}

bool Filesystem::wait_for_listings(const InodePtr& directory) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  const std::int64_t patience =
      now() + std::chrono::duration_cast<std::chrono::nanoseconds>(kListingPatience).count();
  while (directory->listings.load() > 0 && directory->listed_until.load() > now()) {
    if (now() > patience) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

Result<void> Filesystem::check_that_nothing_hides(const InodePtr& parent, const std::string& name,
                                                  TierIndex from, TierIndex to) {
  for (TierIndex faster = 0; faster < to; ++faster) {
    if (faster == from) continue;
    const auto copy = open_copy(parent, faster);
    struct stat st {};
    if (copy && ::fstatat(copy->get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0)
      return Error(EEXIST, "another file has its name on a faster tier, see 'sluice fsck'");
  }
  return {};
}

// Everything for the change of names that can be done before it.
Result<std::vector<Step>> Filesystem::prepare(const Arrival& arrival) {
  Held& held = static_cast<Held&>(*arrival.file);
  std::vector<NamePlaces> places;
  const Tier& from = pool_[held.old.tier];
  Tier& to = pool_[arrival.to];
  for (const KnownName& known : held.names) {
    SLUICE_TRY(check_that_nothing_hides(known.parent, known.name, from.index(), to.index()));
    const OpenCopy old_dir = SLUICE_TRY(open_copy(known.parent, from.index()));
    auto new_dir = open_copy(known.parent, to.index());
    if (failed_with(new_dir, ENOENT)) {
      // No rename may pass between the reading of the directory's name and the copy's getting it.
      ExclusiveLock no_renames(namespace_);
      new_dir = ensure_copy(known.parent, to.index());
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
Result<void> Filesystem::begin_switch(Held& held) {
  {
    MutexLock lock(held.inode()->mutex);
    Inode& file = *held.inode();
    const bool in_use = file.open && (file.open->writers > 0 || file.open->passthrough);
    if (held.move->is_cancelled() || file.changes > 0 || in_use)
      return Error(ECANCELED, "somebody changes the file");
    if (file.uses > 0) {
      file.move_waits = true;
      return Error(EBUSY, "it is being read into a GPU");
    }
    held.move->is_switching = true;
  }
  struct stat now {};
  if (::fstat(held.source(), &now) < 0) return Error::last("stat");
  if (!same_file(held.before, now) || held.move->is_lease_broken())
    return Error(ECANCELED, "the file was changed on its tier");
  for (std::size_t i = 0; i < held.names.size(); ++i) {
    const Tier& from = pool_[held.old.tier];
    const auto there = from.identity_of(held.directories[2 * i]->get(), held.names[i].name.c_str());
    if (!there && there.error().code != ENOENT) return there.error();
    if (!there || *there != held.identity()) return Error(ESTALE, "the file got another name");
  }
  return {};
}

// The inode is told where its file is now.
void Filesystem::relocate(const InodePtr& file, const Copy& copy) {
  MutexLock lock(file->mutex);
  file->copies[0] = copy;
  if (!file->open || !file->open->reader) return;
  file->open->reader = nullptr;
  readers_.fetch_sub(1);
}

std::vector<Result<void>> Filesystem::replace(const std::vector<Arrival>& arrivals) {
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
    const ExclusiveLock barrier(namespace_);
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
  const SharedLock no_replay(move_intents_);
  std::int64_t last_ctime = 0;
  const auto settle_in = [&](std::size_t k) {
    const Arrival& arrival = arrivals[which[k]];
    const Located& there = arrival.copy->located;
    const Held& file = held(which[k]);
    last_ctime = std::max(last_ctime, times_.moved(*file.inode(), file.tier(), file.source(),
                                                   arrival.to, arrival.copy->fd.get()));
    relocate(held(which[k]).inode(), Copy{arrival.to, there.handle, there.pinned});
    switches_.fetch_add(1);
  };
  // The steps are, for each name, one that makes it on the new tier, and after those, for each, one
  // that removes it from the old.
  const auto unseen = [&](std::size_t k, std::size_t step, const auto& act) {
    const Held& file = held(which[k]);
    const bool arrives = step < file.names.size();
    const std::size_t name = arrives ? step : step - file.names.size();
    return times_.change_unseen(*file.names[name].parent,
                                arrives ? arrivals[which[k]].to : file.tier(),
                                file.directories[2 * name + (arrives ? 1 : 0)]->get(), act);
  };
  const auto ends = carry_out_moves(store_, pool_, intents, settle_in, unseen);
  // Whoever changes one of the files from here on gives it another ctime.
  ShownTimes::wait_until_past(last_ctime);
  for (std::size_t k = 0; k < which.size(); ++k) {
    const std::size_t i = which[k];
    outcomes[i] = ends ? (*ends)[k].result : ends.error();
    if (!outcomes[i]) relocate(held(i).inode(), held(i).old);
    if (ends && !(*ends)[k].is_settled)
      remember_unsettled(held(i).inode(), (*ends)[k], intents[k], held(i).old, NamesLock::Free);
    switches_.fetch_add(1);
    held(i).end();
  }
  for (const std::size_t i : which) {
    if (!outcomes[i]) continue;
    times_.keep(*held(i).inode());
    kernel_.drop_attributes(held(i).inode()->id());  // st_blocks
    // It may have been read while it was copied.
    if (engine_in_use_) engine_->forget({.fd = held(i).source()});
  }
  return outcomes;
}

// Both files have the name until the move is settled. The inode stays in the table meanwhile, and
// what it says of its place holds.
void Filesystem::remember_unsettled(const InodePtr& file, const MoveEnd& end,
                                    const std::vector<Step>& steps, const Copy& original,
                                    NamesLock held) {
  log::get().error("a move could not be finished, tried again every second: path={}",
                   log::escaped(path_of(file)));
  std::vector<InodeId> reference;
  [[maybe_unused]] const auto walked = walk(path_of(file), reference, held);
  {
    MutexLock lock(file->mutex);
    file->has_twin = true;
  }
  moves_.fetch_add(1);  // so that those who change names look for it
  MutexLock lock(unsettled_mutex_);
  unsettled_.push_back({file, steps, end.sequence, end.result.has_value(), original, reference});
}

void Filesystem::settle_moves() {
  {
    MutexLock lock(unsettled_mutex_);
    if (unsettled_.empty()) return;
  }
  ExclusiveLock no_names(namespace_);
  ExclusiveLock no_moves(move_intents_);
  std::vector<Unsettled> tries;
  {
    MutexLock lock(unsettled_mutex_);
    tries.swap(unsettled_);
  }
  for (Unsettled& each : tries) {
    // Not forwards if the original is the file: somebody may have it open for writing.
    const auto settled = each.moved ? settle_move(pool_, each.steps) : [&]() -> Result<bool> {
      SLUICE_TRY(take_back(pool_, each.steps));
      return false;
    }();
    if (!settled && settled.error().code != EUCLEAN) {
      MutexLock lock(unsettled_mutex_);
      unsettled_.push_back(std::move(each));
      continue;
    }
    clear_finished(store_, {each.sequence});
    if (settled && each.moved && !*settled) relocate(each.file, each.original);
    {
      MutexLock lock(each.file->mutex);
      each.file->has_twin = false;
    }
    switches_.fetch_add(1);
    moves_.fetch_sub(1);
    for (const InodeId id : each.references) forget(id, 1);
    if (migration_ != nullptr) migration_->mover().file_closed(each.file->id());
  }
}

}  // namespace sluice
