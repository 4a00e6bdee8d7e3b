// SPDX-License-Identifier: BSD-2-Clause
// Twins knows the twins (twin.hpp) of a pool: it makes notes on them, finds the one that can take
// its file's place, and drops them when their room is needed, their file is written or is gone.
//
// What it remembers is only where twins are and how large; whether one is valid is read from the
// twin and its file each time.
//
// Threads: all members are thread-safe, and may block on the disk. It has one thread of its own
// ("sluice-twins") between start() and stop().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "tiering/pool/hidden_copy.hpp"
#include "tiering/pool/twin.hpp"

namespace sluice {

class Pool;

class Twins {
 public:
  explicit Twins(const Pool& pool) : pool_(pool) {}
  ~Twins() { stop(); }

  // Begins to keep twins, or only drops those that exist. `standing` tells how far each of some
  // files with twins on `tier` is from going back there; it is called until stop() returns. The
  // twins of the files that will stay longest are worth least and go first.
  enum class Mode { Keep, DropAll };
  struct Sized {
    InodeId file{};
    std::uint64_t bytes = 0;
  };
  using Standing = std::function<std::vector<double>(TierIndex tier, std::span<const Sized> files)>;
  void start(Mode mode, Standing standing);
  void stop();

  // Whether the original of a file that goes from one tier to another may stay as a twin. `st` is
  // the original's.
  bool may_keep(const Tier& from, const Tier& to, const struct stat& st) const;

  // A file that has just left `from`. Its original, open as `original`, may be in .sluice/twins
  // there; this makes the twin valid. If that fails, there is no twin. REQUIRES: nobody could
  // change the file on its new tier since it was copied, and the next change of it gets another
  // ctime; the original's bytes are on its disk.
  struct Departed {
    Tier& from;
    const Tier& to;
    Identity file;
    int original = -1;
    int copy = -1;           // the file on its new tier
    std::uint64_t hash = 0;  // of its bytes
    struct Name {
      int directory = -1;  // on `from`
      std::string text;
    };
    std::vector<Name> names;
  };
  void note(const Departed& file);

  // The twin on `to` that equals the file open as `source` on `from`, with the file's present
  // metadata, ready to take its place. Reads the file if only its bytes can tell; `pace` is called
  // as for a copy. Nothing if there is no such twin. An error is one of `pace`.
  Result<std::optional<HiddenCopy>> take(const Identity& file, int source, const Tier& from,
                                         Tier& to, const Pace& pace);
  // The twin that take() returned has become the file, or is not needed.
  void taken(const Identity& file, const Tier& tier, bool is_file);

  // Drops the twins of a file that was deleted, or that has left the place that they are about: all
  // but those on `except`. Does not wait for the disk.
  void forget(InodeId file, std::initializer_list<TierIndex> except = {});
  // Drops twins until `bytes` have become free on the tier. False if there was none to drop.
  bool make_room(Tier& tier, std::uint64_t bytes);
  // Makes a little room on every tier that has none, for callers that don't know which tier is
  // full.
  bool make_room_where_full();
  void drop(Tier& tier, const Identity& file);
  void drop_all(Tier& tier);

  struct Figures {
    std::uint64_t files = 0, bytes = 0;
  };
  Figures figures(TierIndex tier) const;
  struct Totals {  // since the start
    std::uint64_t kept = 0, used = 0, used_bytes = 0, dropped = 0;
  };
  Totals totals() const;
  // The twin of a file.
  struct Found {
    TierIndex tier = kNoTier;
    TwinState state{};
  };
  std::optional<Found> of(const Identity& file) const;

  // The twins of files on the tier with this slot, for one that is lost.
  struct Survivor {
    Tier* tier = nullptr;
    TwinNote note;
  };
  std::vector<Survivor> survivors(unsigned slot) const;

  // Looks at every twin on the tier's disk. Used by `sluice fsck`, without start().
  struct Check {
    Figures good, stale;
  };
  Check check(Tier& tier, bool remove_stale) const;

 private:
  bool may_be_the_last_copy(Tier& tier, const Identity& file) const;
  struct Entry {
    Identity file;
    std::uint64_t bytes = 0;
  };
  struct Known {
    // As of the last scan; another one means that the tier was away. Weak, because the filesystem
    // of a tier that went away must not be kept in use.
    std::weak_ptr<SharedFd::element_type> directory;
    std::map<std::uint64_t, Entry> files;  // by InodeId
    std::uint64_t bytes = 0;
    std::uint64_t next = 0;   // where the next check continues: files with a larger id
    bool is_checked = false;  // each of them once since the scan
    std::chrono::steady_clock::time_point next_check{};
    std::uint64_t next_ranked = 0;  // where the next choice of twins to drop begins
    std::uint64_t free_then = 0;    // free bytes at the last look
  };

  void work(const std::stop_token& stop);
  std::vector<Entry> some_unused(TierIndex tier);
  void scan(Tier& tier);
  bool keep_room(Tier& tier);
  // Returns true if it should go on soon.
  bool check_some(Tier& tier);
  void drop_forgotten();
  // Nothing if the file's tier is offline: then it can't be known.
  std::optional<TwinState> state_of(const Tier& tier, int twin, const TwinNote& note) const;
  // Whether a twin is of no use. False if that cannot be known now.
  bool is_stale(const Tier& tier, const SharedFd& directory, const std::string& name) const;
  // Whether a twin without a note can't get one any more.
  bool is_abandoned(int twin) const;
  void put(Tier& tier, const Entry& entry) REQUIRES(mutex_);
  void erase(Tier& tier, InodeId file) REQUIRES(mutex_);

  const Pool& pool_;
  mutable Mutex mutex_;
  StopCondVar wake_;
  std::int64_t started_ GUARDED_BY(mutex_) = 0;  // when start() was called
  Mode mode_ GUARDED_BY(mutex_) = Mode::DropAll;
  bool is_keeping_ GUARDED_BY(mutex_) = false;
  Standing standing_ GUARDED_BY(mutex_);
  std::map<TierIndex, Known> known_ GUARDED_BY(mutex_);
  std::set<InodeId> in_use_ GUARDED_BY(mutex_);  // taken, and not yet the file
  std::vector<std::pair<TierIndex, Identity>> forgotten_ GUARDED_BY(mutex_);
  Totals totals_ GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace sluice
