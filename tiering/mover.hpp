// SPDX-License-Identifier: BSD-2-Clause
// The Mover carries out moves behind the users' backs: it copies at idle priority, within a
// bandwidth, a few at a time per tier, small files in batches that share their syncs; gives way to
// whoever wants to change a file; and keeps a list of those that can't move now, each with what it
// waits for. Every move that ended, well or not, leaves a receipt.
//
// It does not know what an open file is: that is the MoveHost's business.
// Threads: every member may be called from any thread at once; it has threads of its own
// ("sluice-move").
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "metadata/store.hpp"
#include "tiering/move_queue.hpp"
#include "tiering/pool.hpp"
#include "tiering/relocate.hpp"

namespace sluice {

// A file on its way, held by the host: readers go on, and whoever wants to change it cancels the
// move instead of waiting. Ending its life ends that hold.
class HeldFile {
 public:
  virtual ~HeldFile() = default;
  virtual TierIndex tier() const = 0;  // that it is on: another than the move's, if it moved since
  virtual int source() const = 0;      // O_RDONLY, and reading it does not change its atime
  virtual const Identity& identity() const = 0;
  // True once somebody wants the file for themselves: the copy is worth nothing any more.
  virtual bool is_cancelled() const = 0;
};

// A copy that may take its file's place.
struct Arrival {
  HeldFile* file = nullptr;
  HiddenCopy* copy = nullptr;
  TierIndex to = kNoTier;
};

class MoveHost {
 public:
  virtual ~MoveHost() = default;
  // Takes hold of the file. EBUSY if it is open in a way that does not allow a move now (the mover
  // is told by Mover::file_closed() when that may have changed), ESTALE if it is not there any
  // more, EALREADY if it is on the wanted tier already; other errors say why it can't be moved at
  // all.
  virtual Result<std::unique_ptr<HeldFile>> hold(const Move& move) = 0;
  // Puts each copy in the place of its file, whole or not at all, and says how that went. ECANCELED
  // for those that somebody wanted first.
  virtual std::vector<Result<void>> replace(const std::vector<Arrival>& arrivals) = 0;
};

// Whether a move that ended with `code` did so because somebody uses the file: it is tried again.
inline bool gave_way(int code) { return code == EBUSY || code == ECANCELED; }

class Mover {
 public:
  struct Settings {
    std::uint64_t bandwidth = 0;  // bytes per second over all moves; 0: no limit
    bool verify = false;          // read each copy back from the disk
  };

  // What ended: its receipt, and whether it will be tried again.
  using Report = std::function<void(const Receipt& receipt, bool pending)>;

  Mover(Pool& pool, Store& store, MoveHost& host, Settings settings,
        const Clock& clock = real_clock());
  ~Mover();  // gives up what is under way

  // Puts moves in the queue, in their order; `front`: before all others. A move of a file that is
  // queued already replaces the earlier. `report`, if any, is called from the mover's threads.
  enum class Where { Front, Back };
  void add(std::vector<Move> moves, Where where, const Report& report = {});
  // Somebody, move.user, asks for it: before what was planned, and in turn with other users. EAGAIN
  // if kMostOfUser moves of that user are queued or waiting already; root has no such limit.
  static constexpr std::size_t kMostOfUser = 65536;
  Result<void> request(Move move);
  // Queued or waiting, of the user who has most.
  std::size_t most_requested() const;
  // Takes out of the queue what was added with a report, and forgets the reports: for somebody who
  // stops listening. What is under way is finished. No report is called after this, nor is one
  // being called: what they refer to may go.
  void withdraw_reported();
  // Returns when nothing is queued or under way, or `stop` says so.
  void wait_idle(const std::function<bool()>& stop);

  // Nothing more moves, but what somebody asks for by name.
  void pause();
  void resume();
  bool is_paused() const;

  // The file was closed by its last user: a move that waits for that is tried at once.
  void file_closed(InodeId id);
  // Called every second: tries what waits for room, for a tier, or for time to pass.
  void tick();

  struct Pending {
    Move move;
    std::int32_t code = 0;
    std::string why;
    std::int64_t since = 0;
  };
  std::vector<Pending> pending(std::size_t most = std::numeric_limits<std::size_t>::max()) const;
  std::size_t pending_count() const;
  std::optional<Pending> pending(InodeId id) const;
  // Whether the move of this file waits for something that has not happened yet: planning it again
  // would be of no use.
  bool is_waiting(InodeId id) const;
  void forget_pending(InodeId id);
  // The tier that the file is on its way to.
  std::optional<TierIndex> destination(InodeId id) const;

  struct Progress {
    std::uint64_t queued = 0, queued_bytes = 0;  // waiting
    std::uint64_t active = 0;                    // under way
    std::uint64_t moved = 0, moved_bytes = 0;    // since the start
    std::uint64_t failed = 0;        // what gave way to somebody waits, and has not failed
    std::uint64_t copied_bytes = 0;  // since the start, whatever became of it
    std::string current;             // a path that is under way
  };
  Progress progress() const;

  // A move that is under way.
  struct Active {
    std::string path;
    TierIndex from = kNoTier, to = kNoTier;
    std::uint64_t copied = 0, bytes = 0;
    std::int64_t since = 0;  // seconds since the epoch; 0: its batch has not come to it yet
    bool closed = false;     // by its last user, meanwhile
  };
  // Those that have begun, longest under way first, then others of their batches; at most `most`.
  std::vector<Active> active(std::size_t most) const;

 private:
  using Job = MoveQueue::Job;
  struct Waiting {
    Pending pending;
    unsigned attempts = 1;
    std::int64_t retry_at = 0;    // when a second try is due in any case; 0: never by itself
    std::uint64_t free_then = 0;  // on the destination, when there was no room
    bool was_offline = false;
    std::uint64_t report = 0;
  };
  struct Batch {
    std::vector<Job> jobs;
    TierIndex from = kNoTier, to = kNoTier;
  };
  struct Flight;  // one file of a batch

  void work(const std::stop_token& stop);
  // Takes the first job that may begin, and small ones behind it that go the same way.
  bool take(Batch& batch) REQUIRES(mutex_);
  void carry(const std::stop_token& stop, Batch& batch);
  Result<void> copy(const std::stop_token& stop, Flight& flight);
  void finish(const Flight& flight, const Result<void>& outcome);
  Result<void> reserve(const Move& move);
  // Sleeps as the bandwidth and a pause demand; what was asked for by name is not paused. ECANCELED
  // if the copy should stop.
  Result<void> pace(const std::stop_token& stop, const Flight& flight, std::uint64_t bytes);
  void put_aside(const Job& job, const Error& error) REQUIRES(mutex_);
  void erase_waiting(InodeId id) REQUIRES(mutex_);

  Pool& pool_;
  Store& store_;
  MoveHost& host_;
  const Settings settings_;
  const Clock& clock_;

  mutable Mutex mutex_;
  StopCondVar wake_;
  CondVar idle_;
  MoveQueue queue_ GUARDED_BY(mutex_);
  std::map<InodeId, Active> under_way_ GUARDED_BY(mutex_);
  std::map<InodeId, Waiting> waiting_ GUARDED_BY(mutex_);
  // Those that were asked for.
  std::map<uid_t, std::size_t> waiting_of_user_ GUARDED_BY(mutex_);
  std::vector<unsigned> busy_ GUARDED_BY(mutex_);           // moves at each tier
  std::vector<std::uint64_t> reserved_ GUARDED_BY(mutex_);  // bytes on their way to each tier
  bool paused_ GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, Report> reports_ GUARDED_BY(mutex_);
  unsigned reporting_ GUARDED_BY(mutex_) = 0;  // reports that are being called
  std::uint64_t last_report_ GUARDED_BY(mutex_) = 0;
  Progress progress_ GUARDED_BY(mutex_);
  // When the bandwidth allows the next.
  std::chrono::steady_clock::time_point next_byte_ GUARDED_BY(mutex_){};

  std::vector<std::jthread> threads_;
};

}  // namespace sluice
