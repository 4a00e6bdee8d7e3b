// SPDX-License-Identifier: BSD-2-Clause
// Filesystem is Sluice's answer to each operation, in terms of the tiers and free of FUSE:
// fuse_ops.cpp translates.
//
// What the kernel does for us and we rely on: it checks permissions; it serialises changes to a
// directory (create, unlink, rename hold the directory's lock); it never sends an id that it has
// not been given and not forgotten.
//
// Threads: every member may be called from any thread at once. Lock order, outermost first:
// OpenFile::moving < namespace_ < move_intents_ < replicate_ < table shard < inode < tier < store.
//
// The sources are by subject: filesystem_locate.cpp (what a name is), _namespace.cpp (names),
// _rename.cpp, _copies.cpp (where things are), _away.cpp (tiers that go and return), _open.cpp
// (opening and closing), _data.cpp (bytes), _spill.cpp (from a full tier to another), _gpu.cpp
// (bytes to and from GPUs), _attributes.cpp (stat and xattrs), _move.cpp (moves to other tiers),
// _drain.cpp (emptying a tier), _control.cpp (what Sluice says of itself).
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/caller.hpp"
#include "fs/fd_cache.hpp"
#include "fs/inode_table.hpp"
#include "fs/shown_times.hpp"
#include "gpu/engine.hpp"
#include "metadata/store.hpp"
#include "tiering/access_sampler.hpp"
#include "tiering/away_journal.hpp"
#include "tiering/heat.hpp"
#include "tiering/hot_list.hpp"
#include "tiering/intent.hpp"
#include "tiering/migration.hpp"
#include "tiering/pool.hpp"
#include "tiering/scan_detector.hpp"

namespace sluice {

// Names and attributes change only through us, so the kernel may keep them. Not for ever: a day
// bounds the life of a mistake made by somebody who changed a tier behind our back.
inline constexpr double kCacheSeconds = 86400;

// What we say of files is in xattrs that begin so.
inline constexpr std::string_view kVirtualPrefix = "user.sluice.";

// What the kernel is told of a name. No id: the name does not exist, and that may be remembered
// too.
struct Entry {
  InodeId id{};
  std::uint32_t generation = 0;
  struct stat st {};
  double entry_seconds = kCacheSeconds;
  double attribute_seconds = kCacheSeconds;
};

struct Attributes {
  struct stat st {};
  double seconds = kCacheSeconds;
};

struct Opened {
  std::int32_t backing_id = 0;  // 0: the kernel sends us its reads and writes
  bool keep_pages = false;
  bool direct = false;  // reads and writes of this open skip the kernel's page cache
};

// Which fields of a setattr are to be set.
struct AttributeChange {
  std::optional<mode_t> mode;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  std::optional<off_t> size;
  std::optional<timespec> atime, mtime;  // tv_nsec may be UTIME_NOW
  std::optional<Caller> strip_suid;      // for whom: they may not keep setuid and setgid bits
};

// End: of the file as it is, not as the kernel remembers it.
enum class WriteTo { Offset, End };

// What we ask of the kernel about its side of the mount.
class KernelSide {
 public:
  virtual ~KernelSide() = default;
  // The passthrough table: files that the kernel reads and writes without asking us.
  virtual Result<std::int32_t> add_backing(int fd) = 0;
  virtual void remove_backing(std::int32_t id) = 0;
  // Makes it ask for the attributes of `id` again. REQUIRES: the caller holds no lock.
  virtual void drop_attributes(InodeId id) = 0;
  // Makes it read the directory or file `id` again. REQUIRES: the caller holds no lock and answers
  // no request: the kernel waits for reads and writes of it that are under way.
  virtual void drop_pages(InodeId id) = 0;
  // Makes it look up every name again, or one. False if the kernel can't do that for all names at
  // once. REQUIRES: as drop_pages().
  virtual bool drop_all_names() = 0;
  virtual void drop_name(InodeId parent, const std::string& name) = 0;
};

class DirectoryStream;

// One use of a file, as it is told to whoever records a trace.
struct TracedAccess {
  double time = 0;  // seconds since the epoch
  InodeId id{};
  std::uint64_t size = 0;
  std::string path;
};

class Filesystem final : public MoveHost {
 public:
  struct Settings {
    std::uint64_t small_file = 128 << 10;
    std::chrono::seconds half_life{};
    std::vector<std::string> heat_ignore = {};  // see ScanDetector
    std::chrono::seconds heat_sample{};         // see AccessSampler; 0: never
  };

  Filesystem(Pool& pool, Store& store, KernelSide& kernel, Settings settings);
  ~Filesystem() override;

  // Who is asked to move files and told of what matters to them. Called once, before the first
  // operation; without it nothing moves.
  void attach(Migration& migration) { migration_ = &migration; }
  // What reads into GPUs; the same. Without it such requests get EOPNOTSUPP.
  void attach(Engine& engine) { engine_ = &engine; }

  // Names.
  Result<Entry> lookup(InodeId parent, const char* name);
  void forget(InodeId id, std::uint64_t count) { table_.forget(id, count); }
  Result<Entry> mknod(InodeId parent, const char* name, mode_t mode, dev_t device,
                      const Caller& caller);
  Result<Entry> mkdir(InodeId parent, const char* name, mode_t mode, const Caller& caller);
  Result<Entry> symlink(const char* target, InodeId parent, const char* name, const Caller& caller);
  Result<Entry> link(InodeId id, InodeId new_parent, const char* new_name);
  Result<void> unlink(InodeId parent, const char* name);
  Result<void> rmdir(InodeId parent, const char* name);
  Result<void> rename(InodeId parent, const char* name, InodeId new_parent, const char* new_name,
                      unsigned flags);
  Result<std::string> readlink(InodeId id);
  Result<std::unique_ptr<DirectoryStream>> open_directory(InodeId id);
  Result<void> sync_directory(InodeId id);

  // Bytes.
  Result<std::pair<Entry, Opened>> create(InodeId parent, const char* name, mode_t mode, int flags,
                                          const Caller& caller);
  Result<std::pair<Entry, Opened>> create_unnamed(InodeId parent, mode_t mode, int flags,
                                                  const Caller& caller);
  // `strip_suid`: the caller, if they may not keep setuid and setgid bits of what they change.
  Result<Opened> open(InodeId id, int flags, pid_t opener, const std::optional<Caller>& strip_suid);
  void release(InodeId id, int flags);
  // `flags` are the open file's: O_NOATIME is honoured.
  Result<std::size_t> read(InodeId id, char* buffer, std::size_t size, off_t offset, int flags);
  // Where the tier is full, the file goes on in another, which may take as long as copying it. A
  // thread that must not wait gets ENOSPC instead, or a number that is less than `size`.
  Result<std::size_t> write(InodeId id, const char* data, std::size_t size, off_t offset,
                            const std::optional<Caller>& strip_suid,
                            WriteTo where = WriteTo::Offset);
  Result<void> sync(InodeId id, bool data_only);
  Result<void> allocate(InodeId id, int mode, off_t offset, off_t length);
  // Whether the file was chattr +a when it was last opened for writing.
  bool is_append_only(InodeId id);
  Result<off_t> seek(InodeId id, off_t offset, int whence);
  Result<std::size_t> copy_range(InodeId from, off_t from_offset, InodeId to, off_t to_offset,
                                 std::size_t length);

  // Bytes to and from memory of others, as Engine has it. ENOTTY for what is no regular file.
  Result<Transfer> gpu_read(InodeId id, Memory& memory, std::span<const Segment> segments,
                            Route wanted);
  // `strip_suid` as in write(). After an error, what is in the range is unspecified.
  Result<Transfer> gpu_write(InodeId id, Memory& memory, const Segment& segment, Route wanted,
                             const std::optional<Caller>& strip_suid);
  struct GpuPreview {
    Engine::Preview preview;  // of a read of all of it
    std::uint64_t size = 0;
    std::string tier;
  };
  Result<GpuPreview> gpu_preview(InodeId id, Device* device);
  // Into the page cache, in the background. Length 0: to the end.
  Result<void> warm(InodeId id, std::uint64_t offset, std::uint64_t length, uid_t user);
  // Asks for a move to the fastest tier with room; nothing to do if there is no faster one. ENOSPC
  // if there is but it is full.
  Result<void> promote(InodeId id, uid_t user);
  Result<bool> is_owner(InodeId id, const Caller& caller);  // root owns everything

  // Attributes.
  Result<Attributes> getattr(InodeId id);
  Result<Attributes> setattr(InodeId id, const AttributeChange& change);
  Result<std::string> getxattr(InodeId id, const char* name);
  Result<std::string> listxattr(InodeId id, const Caller& caller);
  Result<void> setxattr(InodeId id, const char* name, const char* value, std::size_t size,
                        int flags, const Caller& caller);
  Result<void> removexattr(InodeId id, const char* name);
  Result<struct statx> statx(InodeId id);
  // The flags that lsattr and chattr speak of, as the ioctls FS_IOC_GETFLAGS, _SETFLAGS,
  // _FSGETXATTR and _FSSETXATTR: `data` is the argument, changed in place. ENOTTY for any other.
  Result<void> inode_flags(InodeId id, unsigned command, std::string& data);
  Result<struct statvfs> statfs();

  // Moves, for the mover.
  Result<std::unique_ptr<HeldFile>> hold(const Move& move) override;
  std::vector<Result<void>> replace(const std::vector<Arrival>& arrivals) override;

  // Tries to bring moves to an end that stopped half-way. Called every second, and at the end.
  void settle_moves();
  // Empties the tier of what migration does not move, and says what is left there: files that could
  // not be moved.
  struct Remainder {
    std::uint64_t files = 0, bytes = 0;
  };
  Result<Remainder> vacate(TierIndex tier);
  // The pool has one more tier.
  void tier_added(TierIndex tier);

  // The accesses since the last call, at most some 100,000; empty if nobody traces.
  void trace(bool on);
  std::vector<TracedAccess> traced();

  // The hottest files that there are now, hottest first. Cheap, however many files the pool has;
  // see HotList, which keeps them.
  struct HotFile {
    std::string path;
    TierIndex tier = kNoTier;
    double score = 0;
  };
  std::vector<HotFile> hottest(std::size_t most);
  HotList& hot_files() { return hot_files_; }

  // Housekeeping, called every second: notices tiers that come and go, writes heat out.
  void tick();
  Result<void> flush_heat();
  // The pool has a file of so many bytes. How much room a writer needs is judged by the largest.
  void note_size(std::uint64_t bytes);

  // For the status report.
  std::size_t known_inodes() const { return table_.size(); }
  std::uint64_t open_files() const { return open_files_.load(std::memory_order_relaxed); }
  std::uint64_t opens() const { return opens_.load(std::memory_order_relaxed); }
  // Turns passthrough off for files opened from now on (the kernel lacks it, or the user asked).
  void serve_everything() { passthrough_ = false; }

 private:
  friend class DirectoryStream;

  // A copy of a directory that can be worked in now.
  struct OpenCopy {
    Tier* tier;
    SharedFd fd;
    int get() const { return fd->get(); }
  };
  struct OpenCopies {
    std::vector<OpenCopy> reachable;  // fastest first
    bool complete = true;             // false: a copy is on a tier that is offline
  };
  // Whether the caller holds namespace_, which no thread may share twice, and replicate_ too.
  enum class NamesLock { Free, Held, HeldWithCopies };

  // filesystem_locate.cpp
  static bool is_directory(const std::vector<Located>& found);
  // Every copy of `name`, fastest first, more than one only for directories. Empty if there is
  // none.
  Result<std::vector<Located>> locate(const OpenCopies& directory, const char* name,
                                      NamesLock held);
  Result<std::vector<Located>> locate_once(const OpenCopies& directory, const char* name);
  Result<std::vector<Located>> merge(const OpenCopies& directory, const char* name);
  bool take_identity(const Located& copy, const Identity& identity, const char* name);
  // The same, of what the kernel means by `name`. ESTALE if the kernel was told of nothing that has
  // the name now: it then looks the name up again, checks permissions anew, and asks once more.
  Result<std::vector<Located>> locate_told(const InodePtr& parent, const OpenCopies& directory,
                                           const char* name, NamesLock held);

  // filesystem_namespace.cpp
  static bool is_private(const Inode& parent, const char* name);
  // Whether the directory `name` in `parent` holds nothing.
  static Result<bool> is_empty(int parent, const char* name);
  Result<Entry> lookup_self_or_parent(InodeId id, bool parent);
  Result<Entry> look_up(const InodePtr& directory, const char* name, NamesLock held,
                        InodeTable::Told told);
  Result<Entry> enter(const std::vector<Located>& found, const InodePtr& parent, const char* name,
                      InodeTable::Told told);
  void set_partly_unknown(InodeId id);
  // Calls `make(copy)` on the tiers where a new file `name` of `parent` may go, best first, until
  // one has room for it.
  Result<Located> place_new(const InodePtr& parent, const char* name,
                            const std::function<Result<Located>(const OpenCopy&)>& make);
  void keep_nameless(const Located& victim);
  void set_removed(const std::vector<Located>& directory, bool removed);
  Result<void> unlink_locked(const InodePtr& directory, const char* name);

  // filesystem_rename.cpp
  struct RenameAttempt;
  Result<void> rename_locked(const InodePtr& from, const char* name, const InodePtr& to,
                             const char* new_name, unsigned flags, RenameAttempt& attempt);
  Result<void> rename_located(const InodePtr& from, const char* name,
                              const std::vector<Located>& source, const InodePtr& to,
                              const char* new_name, const std::vector<Located>& target,
                              unsigned flags, RenameAttempt& attempt);
  Result<std::vector<Step>> rename_steps(const InodePtr& parent, const char* name,
                                         const std::vector<Located>& source,
                                         const InodePtr& new_parent, const char* new_name,
                                         const std::vector<Located>& target, unsigned flags);

  // filesystem_copies.cpp
  Result<InodePtr> inode(InodeId id, NamesLock held = NamesLock::Free);
  Result<InodePtr> resolve_forgotten(InodeId id, NamesLock held);
  Result<OpenCopies> open_copies(const InodePtr& directory);
  Result<OpenCopy> open_copy(const InodePtr& directory, TierIndex tier);
  // A copy of `directory` on `tier`, made (with its ancestors) if there is none. ENAMETOOLONG if
  // too many of them are missing. REQUIRES: namespace_ is held.
  Result<OpenCopy> ensure_copy(const InodePtr& directory, TierIndex tier);
  Result<OpenCopy> replicate(const InodePtr& directory, TierIndex tier);
  Result<OpenCopy> copy_directory(const InodePtr& directory, const std::string& name,
                                  const InodePtr& parent, const OpenCopy& new_parent);
  void rediscover(const InodePtr& directory, TierIndex tier);
  std::vector<InodeId> rediscover_all(TierIndex tier);
  std::string path_of(const InodePtr& inode);
  InodePtr parent_of(const InodePtr& inode);  // as we remember it; nothing if it is not in memory

  // filesystem_away.cpp
  // The copies of a directory that are, or may be, on tiers that are away.
  std::vector<AwayJournal::Copy> away_copies(const InodePtr& directory);
  // To be called before `name` in `directory` is given to something. REQUIRES: namespace_ is held.
  Result<void> note_taken(const InodePtr& directory, const OpenCopies& copies, const char* name);
  Result<void> note_attribute_change(const InodePtr& directory, const OpenCopies& copies);
  void tier_went(Tier& tier);
  void tier_returned(Tier& tier);
  void drop_names_and_listings(const std::vector<InodeId>& directories);

  // filesystem_open.cpp
  Result<std::pair<Entry, Opened>> open_new(const Located& made, const InodePtr& directory,
                                            const char* name, int flags, const SharedFd& fd);
  Result<Opened> open_inode(const InodePtr& inode, int flags, const SharedFd& fresh);
  Result<Opened> open_locked(const InodePtr& inode, int flags, SharedFd fd, bool mapped);
  bool may_outgrow(const InodePtr& inode, int flags, const struct statx& st);
  // Size, blocks and what chattr set.
  static Result<struct statx> look_at(int fd);
  Result<struct statx> look_at(const InodePtr& inode);
  static void note_flags(const InodePtr& inode, const struct statx& st);
  // Counts an open for the file's heat, at the cost of an addition.
  void note_open(const InodePtr& inode, pid_t opener);

  // filesystem_data.cpp
  Result<SharedFd> open_bytes(const InodePtr& inode, int flags);
  // Opens the file of an O_PATH or other descriptor anew.
  static Result<SharedFd> reopen(int fd, int flags);
  // Opens the file by its handle, wherever it is by then.
  Result<SharedFd> open_handle_of(const InodePtr& inode, int flags);
  bool still_mapped(const InodePtr& inode);
  bool is_no_longer_mapped(const InodePtr& inode);
  // Looks at a file that was written past us. If the kernel may not have seen it either (`unseen`:
  // through a mapping), it is made to ask.
  void notice_change(const InodePtr& inode, const SharedFd& fd, bool unseen);
  void notice_mapped_changes();
  enum class Keep { IfThereAreFew, Always };
  Result<SharedFd> reader(const InodePtr& inode, Keep keep = Keep::IfThereAreFew);
  void keep_reader(OpenFile& file, SharedFd fd);
  Result<SharedFd> writer(const InodePtr& inode);
  Result<void> drop_suid(int fd, const Caller& caller);
  template <typename Change>
  auto with_room(const InodePtr& inode, off_t offset, std::uint64_t more, Change change);

  // filesystem_spill.cpp
  // Moves an open file to a tier with room, keeping identity, offsets and metadata. ENOSPC if none
  // has.
  Result<void> spill(const InodePtr& inode, const SharedFd& full, off_t offset, std::uint64_t more);
  Result<void> spill_from(const InodePtr& inode, const SharedFd& full, TierIndex from,
                          const struct stat& st, std::uint64_t needed);
  Result<void> move_open_file(const InodePtr& inode, const SharedFd& source, bool named, Tier& to);
  bool wait_for_deleted();
  void say_that_there_is_no_room(const InodePtr& inode, const Error& why);

  // filesystem_gpu.cpp
  // Keeps a file where it is while the engine works on it, without a word to a move that copies.
  class UseGuard {
   public:
    explicit UseGuard(InodePtr inode);
    ~UseGuard();
    UseGuard(const UseGuard&) = delete;
    UseGuard& operator=(const UseGuard&) = delete;

   private:
    const InodePtr inode_;
  };
  Result<InodePtr> gpu_file(InodeId id);
  void note_gpu_read(const InodePtr& file, const SharedFd& fd, std::uint64_t bytes);
  void written_past_kernel(const InodePtr& file);
  void drop_written_pages();
  Result<void> prefetch(const InodePtr& file, std::string_view how, uid_t user);
  Result<std::string> describe_route(const InodePtr& file);
  void forget_in_engine(const InodePtr& file);

  // filesystem_change.cpp
  // Keeps a file where it is while something about it changes: cancels a move that is under way, or
  // waits for the last moment of one. kWouldWait where the thread must not: see fs/no_waiting.hpp.
  class ChangeGuard {
   public:
    // Without an inode there is nothing to guard.
    static Result<ChangeGuard> of(InodePtr inode);
    ChangeGuard(ChangeGuard&&) = default;
    ~ChangeGuard() NO_THREAD_SAFETY_ANALYSIS;
    ChangeGuard(const ChangeGuard&) = delete;
    ChangeGuard& operator=(const ChangeGuard&) = delete;

    // EIO while two files have the name: see Unsettled.
    Result<void> check_name() const;

   private:
    ChangeGuard() = default;
    InodePtr inode_;
    std::shared_ptr<SharedMutex> moving_;
  };
  // The inode that `name` in `directory` is, if a file by that name might be on the move.
  InodePtr moving_inode(const InodePtr& directory, const char* name, NamesLock held);

  // filesystem_move.cpp
  class Held;
  // A name of a file, with its directory.
  struct KnownName {
    InodePtr parent;
    std::string name;
  };
  Result<InodePtr> walk(std::string_view path, std::vector<InodeId>& references,
                        NamesLock held = NamesLock::Free);
  Result<KnownName> current_name(const InodePtr& directory);
  // Makes the inode's parent and name those of a name that the file has. REQUIRES: no lock is held.
  Result<void> ensure_name(const InodePtr& file);
  Result<std::vector<std::string>> all_names(const Move& move, const Held& held);
  Result<void> take_hold(Held& held, const Move& move);
  // Waits until nobody lists the directory, so that no listing misses a file that changes tiers.
  static bool wait_for_listings(const InodePtr& directory);
  // EEXIST if a file of that name on a faster tier would be seen once this one is on `to`.
  Result<void> check_that_nothing_hides(const InodePtr& parent, const std::string& name,
                                        TierIndex from, TierIndex to);
  Result<std::vector<Step>> prepare(const Arrival& arrival);
  Result<void> begin_switch(Held& held);
  void relocate(const InodePtr& file, const Copy& copy);
  // A move that stopped half-way for an error that may pass.
  struct Unsettled {
    InodePtr file;
    std::vector<Step> steps;
    std::uint64_t sequence;  // of the intent
    bool moved;              // the copy is the file
    Copy original;           // where the file is if the move is taken back
    std::vector<InodeId> references;
  };
  void remember_unsettled(const InodePtr& file, const MoveEnd& end, const std::vector<Step>& steps,
                          const Copy& original, NamesLock held);

  // filesystem_drain.cpp
  Result<void> relocate_special(const InodePtr& parent, const std::string& name, Tier& from,
                                Tier& to);
  Result<void> vacate_directory(const InodePtr& directory, Tier& from, Tier& to, Remainder& left,
                                std::vector<std::string>& below);
  Result<void> vacate_tree(Tier& from, Tier& to, Remainder& left);

  // filesystem_attributes.cpp
  void note_told(Inode& inode, const struct stat& st);
  Result<SharedFd> any_fd(const InodePtr& inode);
  Result<struct stat> stat_of(const InodePtr& inode);
  // The same, of what was just found.
  struct stat stat_of(const InodePtr& inode, const Located& found);
  Result<struct stat> stat_of_file(const InodePtr& file);
  Result<struct stat> stat_of_directory(const InodePtr& directory);
  Result<struct statx> statx_on_tier(const InodePtr& inode);  // as the tier that has it says
  std::optional<timespec> born_at(const InodePtr& inode);
  double attribute_seconds(const InodePtr& inode);
  Result<void> change_copies(const InodePtr& directory,
                             const std::function<Result<void>(const SharedFd&)>& change);
  Result<void> store_xattr(const InodePtr& file, const char* name, std::string_view value,
                           int flags, const Caller& caller);
  Result<void> erase_xattr(const InodePtr& file, const char* name);

  // filesystem_control.cpp
  std::optional<Result<std::string>> virtual_xattr(const InodePtr& inode, std::string_view name);
  Result<void> set_virtual_xattr(const InodePtr& inode, std::string_view name,
                                 std::string_view value, uid_t user);
  Result<void> remove_virtual_xattr(const InodePtr& inode, std::string_view name);
  Result<void> request_move(const InodePtr& inode, TierIndex to, uid_t user);
  // The pin that holds for the inode, its own or one that it inherits. REQUIRES: namespace_ is not
  // held.
  TierIndex effective_pin(const InodePtr& inode);
  // The directory above `inode` that bears the pin which it inherits, or the inode itself.
  InodePtr pin_bearer(const InodePtr& inode);
  // The pin that the directory bears, or kNoTier.
  TierIndex own_pin_of(const InodePtr& directory);
  // The pin that holds for what is in `directory`. Mostly what is remembered of it or of the one
  // above; see kMostLevels. REQUIRES: namespace_ is held.
  TierIndex pin_inside(const InodePtr& directory);
  // Where a pin or a rule wants a new file; kNoTier: nowhere in particular. REQUIRES: namespace_ is
  // held.
  TierIndex wanted_tier(const InodePtr& parent, const char* name);
  bool is_deeper_than(const InodePtr& inode, std::size_t levels);
  void pin_changed(const InodePtr& inode);
  void pins_may_differ();  // a tier came, or went
  void trace_access(const InodePtr& inode);
  void sample_open_files();
  void offer_hot_files();
  Result<double> score_of(const InodePtr& inode);
  Result<FileFacts> facts_of(const InodePtr& inode, const struct statx& st);
  Result<std::string> explain(const InodePtr& inode);

  Pool& pool_;
  Store& store_;
  KernelSide& kernel_;
  const Settings settings_;
  HeatRecorder heat_;
  HotList hot_files_;
  InodeTable table_;
  AwayJournal away_;
  ShownTimes times_;
  FdCache fd_cache_;
  std::atomic<bool> passthrough_{true};       // only ever turns false
  std::atomic<std::uint64_t> open_files_{0};  // a statistic
  std::atomic<std::uint64_t> readers_{0};     // open files with one
  const std::uint64_t most_readers_;          // beyond which further ones are not kept
  std::atomic<std::uint64_t> largest_{0};     // note_size(); only ever grows
  // Spills that copy. Who finds no room waits for the end of one: it may leave some behind.
  struct Spills {
    std::mutex mutex;
    std::condition_variable wake;
    unsigned copying = 0;
    std::uint64_t ended = 0;
  } spills_;
  std::atomic<std::int64_t> waited_for_deleted_{0};  // when, in nanoseconds
  std::atomic<std::int64_t> room_complaint_{0};      // when the last one was logged, in nanoseconds
  std::atomic<std::uint64_t> room_complaints_{0};    // since then
  // Shared by what changes names, exclusive for the moment in which a moved file takes its place.
  SharedMutex namespace_;
  std::atomic<unsigned> moves_{0};  // under way; while there are none, nobody looks for them
  // Raised just before a moved file's old name goes. Who found no file looks again if it changed
  // meanwhile: they may have looked at the new tier too early and at the old one too late.
  std::atomic<std::uint64_t> switches_{0};
  // Raised when directories may inherit other pins than before; see Inode::pin_epoch.
  std::atomic<std::uint64_t> pin_epoch_{1};
  // Raised when a tier comes or goes, and with it the pins on it; see Inode::own_pin_epoch.
  std::atomic<std::uint32_t> tier_epoch_{1};
  Migration* migration_ = nullptr;
  Engine* engine_ = nullptr;
  std::atomic<bool> engine_in_use_{false};  // some file was read through it; only ever turns true
  Mutex unsettled_mutex_;
  std::vector<Unsettled> unsettled_ GUARDED_BY(unsettled_mutex_);
  ScanDetector scans_;
  std::unique_ptr<AccessSampler> sampler_;  // tick()'s alone
  std::chrono::steady_clock::time_point next_sample_{};
  std::atomic<bool> tracing_{false};  // somebody wants to know of accesses
  Mutex trace_mutex_;
  std::vector<TracedAccess> traced_ GUARDED_BY(trace_mutex_);
  // Shared while intents of moves are carried out, exclusive to replay those of an earlier time.
  SharedMutex move_intents_;
  Mutex replicate_;                      // one directory is copied to another tier at a time
  std::atomic<std::uint64_t> opens_{0};  // a statistic
  Mutex opened_mutex_;
  std::vector<InodePtr> opened_ GUARDED_BY(opened_mutex_);  // inodes with new_opens
  Mutex mapped_mutex_;
  std::vector<std::weak_ptr<Inode>> mapped_
      GUARDED_BY(mapped_mutex_);                         // files that a mapping may change
  std::set<InodeId> written_ GUARDED_BY(mapped_mutex_);  // by us, under the kernel's pages
  unsigned ticks_ = 0;
};

}  // namespace sluice
