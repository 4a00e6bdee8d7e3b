// SPDX-License-Identifier: BSD-2-Clause
// Mover executes moves in the background. It copies at idle priority and within a bandwidth limit,
// runs a few moves per tier at a time, and moves small files in batches that share their syncs.
// Moves that no user asked for rest while others use the disks (Courtesy). A move yields to any
// user who wants to change the file, and users can withdraw it. Moves that cannot run now are kept
// in a list together with the condition they wait for. Every move that began leaves a receipt,
// whether it succeeded or failed.
//
// Mover knows nothing about open files. The MoveHost handles those; Switcher makes the last part of
// a move.
//
// Threads: all members are thread-safe. The mover has threads of its own ("sluice-move").
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "metadata/store.hpp"
#include "tiering/move/courtesy.hpp"
#include "tiering/move/kept_requests.hpp"
#include "tiering/move/move_host.hpp"
#include "tiering/move/move_queue.hpp"
#include "tiering/move/move_rate.hpp"
#include "tiering/move/switcher.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

// Whether a move that failed with `code` yielded to a user of the file. Such a move is retried.
inline bool has_yielded(int code) { return code == EBUSY || code == ECANCELED; }
// "moved", "deleted", "cancelled", "yielded" or "failed".
const char* result_of(const Receipt& receipt);

class Mover {
 public:
  struct Settings {
    std::uint64_t bandwidth = 0;  // bytes per second over all moves; 0: no limit
    bool verify = false;          // read each copy back from the disk
  };

  // How many requests the users of the mount have sent so far.
  using Requests = std::function<std::uint64_t()>;
  // Receives the receipt of a move that ended, and whether the move will be retried.
  using Report = std::function<void(const Receipt& receipt, bool pending)>;

  Mover(Pool& pool, Store& store, Switcher& switcher, MoveHost& host, Settings settings,
        const Clock& clock = real_clock(), Requests requests = {});
  ~Mover();  // cancels the running moves

  // Cancels the running moves, starts no others, and waits for them, but not longer than that.
  void stop(std::chrono::milliseconds longest);

  // Also affects copies in progress.
  void change(const Settings& settings);

  // Queues moves in the given order, before or behind all others. A file's new move replaces one
  // that is still queued. The mover's threads call `report`, if there is one; then this returns a
  // number for tally().
  enum class Where { Front, Back };
  std::uint64_t add(std::vector<Move> moves, Where where, const Report& report = {});
  // Queues a move that move.user requested: before planned moves, and taking turns with requests
  // of other users. It is stored until it is made, and goes on after an unmount or a crash. EAGAIN
  // if that user already has kMostOfUser moves; root has no such limit.
  static constexpr std::size_t kMostOfUser = 65536;
  Result<void> request(Move move);
  // Queues the stored requests that are not in the queue: those of an earlier mount, and those
  // whose file was not found at its path. Returns how many. Takes long if files must be searched
  // for; `go_on` is as for KeptRequests::find().
  Result<std::size_t> resume_requests(const std::function<bool()>& go_on);
  // Whether a file was not found, so that resume_requests() should search for it.
  bool must_search() const;
  // The file was deleted. Removes its move from the queue, and its request. A running move notices
  // by itself.
  void cancel(InodeId id);
  // Ends the moves that queue or wait only because the tier was drained.
  void end_drain(TierIndex tier);
  // As cancel(), and ends a running move: its copy is removed, and it is not retried. TooLate: the
  // file is being switched to its copy on tier `to` or just was. If that fails, it is not retried.
  enum class Withdrawn { Nothing, Ended, TooLate };
  struct Withdrawal {
    Withdrawn what = Withdrawn::Nothing;
    TierIndex to = kNoTier;  // of the running move
  };
  Withdrawal withdraw(InodeId id);
  // The largest number of requested moves, queued or waiting, that one user has.
  std::size_t most_requested() const;
  // What became of the moves of one add().
  struct Tally {
    std::uint64_t files = 0, bytes = 0;  // of all moves, with the sizes that they have now
    std::uint64_t done_bytes = 0;        // of `bytes`: what has ended or is copied
    std::uint64_t moved = 0, moved_bytes = 0;
    std::uint64_t failed = 0;  // a move that yielded is not counted
    std::string current;       // the path of a running move
  };
  // Empty after withdraw_reported().
  Tally tally(std::uint64_t number) const;
  // Removes queued moves that have a report, and drops the reports. Running moves continue. After
  // this returns, no report is running or will be called, so what they refer to may be destroyed.
  void withdraw_reported();
  // Blocks until no move is queued or running and the room of what was moved is free, or until
  // `stop` returns true.
  void wait_idle(const std::function<bool()>& stop);

  // While paused, only requested moves run.
  void pause();
  void resume();
  bool is_paused() const;

  // The last user closed the file. A move that waits for this is retried at once.
  void file_closed(InodeId id);
  // Called every second. Retries moves that wait for room, for a tier or for a time.
  void tick();

  struct Pending {
    Move move;
    std::int32_t code = 0;
    std::string why;
    std::int64_t since = 0;
  };
  std::vector<Pending> pending(std::size_t most = std::numeric_limits<std::size_t>::max()) const;
  std::size_t pending_count() const;
  // Whether the move of a file on the tier waits for a condition.
  bool waits_on(TierIndex tier) const;
  std::optional<Pending> pending(InodeId id) const;
  // Whether a move of this file is waiting for a condition. Planning it again would not help.
  bool is_waiting(InodeId id) const;
  // A planned move that is queued does not start while migration is paused.
  struct Queued {
    Move move;
    bool is_paused = false;
  };
  // Queued moves in the order in which they start, except for those that wait for a tier that is
  // busy. Only those that `wanted` says, which may not call the mover; at most `most` of them, and
  // the number of all of those.
  using Wanted = std::function<bool(InodeId id, const std::string& path)>;
  std::vector<Queued> queued(std::size_t most, const Wanted& wanted, std::uint64_t& all) const;
  // The destination of the file's queued or running move.
  std::optional<TierIndex> destination(InodeId id) const;

  struct Moved {
    std::uint64_t files = 0, bytes = 0;
  };
  struct Progress {
    std::uint64_t queued = 0, queued_bytes = 0;
    std::uint64_t active = 0;
    std::uint64_t bytes_left = 0;                   // of queued and running moves
    std::optional<std::chrono::seconds> time_left;  // for all of them; nothing: unknown
    std::uint64_t moved = 0, moved_bytes = 0;       // since the start
    // The same by the names of their tiers: from, to.
    std::map<std::pair<std::string, std::string>, Moved> between;
    std::uint64_t failed = 0;        // a move that yielded is not counted
    std::uint64_t copied_bytes = 0;  // since the start, including moves that failed later
    std::string current;             // the path of a running move
    // The part of their time that moves work; less than 1 while others use a tier's disk.
    double share = 1;
  };
  Progress progress() const;

  // A running move.
  struct Active {
    std::string path;
    TierIndex from = kNoTier, to = kNoTier;
    std::uint64_t copied = 0, bytes = 0;
    std::int64_t since = 0;     // seconds since the epoch; 0: the batch has not reached it yet
    bool closed = false;        // its last user closed it while the move ran
    bool is_withdrawn = false;  // by a user
    enum class Stage { Copying, Switching, Moved, Failed };
    Stage stage = Stage::Copying;
    std::uint64_t report = 0;  // as Job::report
    InodeId id{};
    // Whether the file stays where it is, and only the end of the batch is awaited.
    bool is_void() const {
      return stage == Stage::Failed || (is_withdrawn && stage == Stage::Copying);
    }
  };
  // At most `most` running moves: the oldest first, and last those that their batch has not
  // reached. Neither this nor running() has moves that were withdrawn.
  std::vector<Active> active(std::size_t most) const;
  // The file's running move, if it has one.
  std::optional<Active> running(InodeId id) const;

 private:
  using Job = MoveQueue::Job;
  struct Waiting {
    Pending pending;
    unsigned attempts = 1;
    std::int64_t retry_at = 0;    // time of the next attempt; 0: only an event triggers one
    std::uint64_t free_then = 0;  // room on the destination when it was too little
    bool was_closed = false;      // a tier was offline or read-only
    std::uint64_t report = 0;
  };
  struct Batch {
    std::vector<Job> jobs;
    TierIndex from = kNoTier, to = kNoTier;
  };
  struct Flight;  // one file of a batch
  // What a thread did since it last rested.
  struct Turn {
    std::chrono::steady_clock::time_point since;
    TierIndex from = kNoTier, to = kNoTier;
    bool is_requested = false;
  };

  void work(const std::stop_token& stop);
  // Takes the first job that may start, and the small ones behind it with the same tiers.
  bool take(Batch& batch) REQUIRES(mutex_);
  // Returns the files that were moved.
  std::vector<std::unique_ptr<HeldFile>> run(const std::stop_token& stop, Batch& batch, Turn& turn);
  Result<void> copy(const std::stop_token& stop, Flight& flight);
  // Uses the file's twin on the destination instead of a copy. False if there is none.
  Result<bool> take_twin(const std::stop_token& stop, Flight& flight);
  void finish(const Flight& flight, const Result<void>& outcome);
  bool is_withdrawn(InodeId id) const;
  // From here on it is too late to withdraw the move. kWithdrawn if it was withdrawn.
  Result<void> begin_switch(InodeId id);
  // Takes over the path and the size that the file has now.
  void note_begun(const Move& move);
  void grow(Active& active, std::uint64_t bytes) REQUIRES(mutex_);
  Receipt receipt_of(const Flight& flight, const Result<void>& outcome) const;
  static void count(Tally& tally, Active& ended, const Receipt& receipt, bool waits);
  Result<void> reserve(const Move& move);
  // Sleeps as long as the bandwidth limit, a pause or courtesy requires; the last two do not affect
  // requested moves. ECANCELED if the copy should stop.
  Result<void> pace(const std::stop_token& stop, const Flight& flight, std::uint64_t bytes);
  // Rests for what was done in this turn, unless `is_over` says that there is no need any more.
  void rest(Turn& turn, const std::function<bool()>& is_over);
  void put_aside(const Job& job, const Error& error) REQUIRES(mutex_);
  // Whether a request for the file is queued or waiting.
  bool is_requested(InodeId id) const REQUIRES(mutex_);
  Result<std::size_t> find_requests(const std::function<bool()>& go_on);
  // Forgets the stored requests of files, unless there is a newer one.
  void settle(std::vector<InodeId> ids);
  // A requested file is not where it was. False if it was searched for often enough.
  bool note_lost(InodeId id) REQUIRES(mutex_);
  void erase_waiting(InodeId id) REQUIRES(mutex_);
  // Whether the file had a move that was queued or waiting.
  bool erase_queued(InodeId id) REQUIRES(mutex_);

  Pool& pool_;
  Store& store_;
  Switcher& switcher_;
  MoveHost& host_;
  const Clock& clock_;
  Courtesy courtesy_;

  // The stored requests. The mutex is held while a request is stored and queued, or settled, so
  // that store and queue agree.
  struct Keeping {
    Mutex mutex;
    KeptRequests requests;
    // Files that were requested or settled since resume_requests() began; nothing if it is not
    // running.
    std::optional<std::unordered_set<InodeId>> touched GUARDED_BY(mutex) = {};
    // Whether resume_requests() runs: cancel() must not wait for the mutex each time that a file is
    // deleted.
    std::atomic<bool> is_resuming = false;
  } keeping_;

  mutable Mutex mutex_ ACQUIRED_AFTER(keeping_.mutex);
  Settings settings_ GUARDED_BY(mutex_);
  StopCondVar wake_;
  CondVar idle_;
  MoveQueue queue_ GUARDED_BY(mutex_);
  std::map<InodeId, Active> under_way_ GUARDED_BY(mutex_);
  std::map<InodeId, Waiting> waiting_ GUARDED_BY(mutex_);
  // How many of `waiting_` each user requested.
  std::map<uid_t, std::size_t> waiting_of_user_ GUARDED_BY(mutex_);
  std::vector<unsigned> busy_ GUARDED_BY(mutex_);  // running moves per tier
  std::vector<std::uint64_t> reserved_
      GUARDED_BY(mutex_);  // bytes that running moves will add per tier
  bool paused_ GUARDED_BY(mutex_) = false;
  struct Reported {
    Report report;
    Tally tally;
  };
  struct Reports {
    std::map<std::uint64_t, Reported> by_number;
    std::uint64_t last = 0;  // number
    unsigned running = 0;
  };
  Reports reports_ GUARDED_BY(mutex_);
  Progress progress_ GUARDED_BY(mutex_);
  MoveRate rate_ GUARDED_BY(mutex_);
  // Requested files that were not at their path.
  struct Lost {
    std::map<InodeId, unsigned> times;  // how often each was not found
    bool must_search = false;
  };
  Lost lost_ GUARDED_BY(mutex_);
  // When the bandwidth limit allows the next byte.
  std::chrono::steady_clock::time_point next_byte_ GUARDED_BY(mutex_){};

  std::vector<std::jthread> threads_;
};

}  // namespace sluice
