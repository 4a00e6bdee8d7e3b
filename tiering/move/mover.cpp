// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/mover.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "tiering/move/idle_priority.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Limits of a batch, whose files share their syncs. Larger files gain nothing from that, and users
// who change a file of the batch block while the batch is switched.
constexpr std::size_t kBatchFiles = 64;
constexpr std::uint64_t kBatchBytes = 32 << 20;
constexpr std::uint64_t kSmall = 4 << 20;

// Left free on the destination, for directories, xattrs and files of others.
constexpr std::uint64_t kMargin = 1 << 20;

constexpr std::int64_t kFirstRetry = 5;  // seconds
constexpr std::int64_t kLastRetry = 3600;

Error withdrawn() { return {kWithdrawn, "a user cancelled the move"}; }

bool is_failure(int code) { return code != 0 && code != kWithdrawn && !has_yielded(code); }

bool lacks_room(int code) { return code == ENOSPC || code == EDQUOT || code == EFBIG; }

// Whether files can move from one of the tiers to the other.
Result<void> check_tiers(const Tier& from, const Tier& to) {
  for (const Tier* tier : {&from, &to}) {
    if (!tier->online()) return Error(EIO, "a tier is offline");
    if (tier->is_read_only()) return Error(EROFS, "a tier is read-only");
  }
  return {};
}

}  // namespace

struct Mover::Flight {
  Job* job = nullptr;
  std::unique_ptr<HeldFile> file;
  std::optional<HiddenCopy> copy;
  TierIndex from = kNoTier;  // kNoTier: its move never began
  std::uint64_t reserved = 0;
  Turn* turn = nullptr;
  bool is_comparing = false;  // with its twin: the file is read, and nothing is written
  steady_clock::time_point begun, ended;
};

Mover::Mover(Pool& pool, Store& store, Switcher& switcher, MoveHost& host, Settings settings,
             const Clock& clock, Requests requests)
    : pool_(pool),
      store_(store),
      switcher_(switcher),
      host_(host),
      clock_(clock),
      courtesy_([this, requests = std::move(
                           requests)] { return look_at_system(pool_, requests ? requests() : 0); },
                clock),
      keeping_{.mutex = {}, .requests = {pool, store}},
      settings_(std::move(settings)),
      busy_(kMaxSlot + 1, 0),
      reserved_(kMaxSlot + 1, 0) {
  unsigned threads = 1;
  for (const auto& tier : pool_) threads = std::max(threads, tier->moves());
  for (unsigned i = 0; i < threads; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) {
      begin_thread("sluice-move");
      work(stop);
    });
  }
}

Mover::~Mover() { stop(milliseconds(0)); }

void Mover::stop(milliseconds longest) {
  for (auto& thread : threads_) thread.request_stop();
  wake_.notify_all();
  const auto deadline = steady_clock::now() + longest;
  const MutexLock lock(mutex_);
  while (!under_way_.empty() && idle_.wait_until(mutex_, deadline)) {
  }
}

void Mover::change(const Settings& settings) {
  const MutexLock lock(mutex_);
  // What was copied at the old speed does not count against the new limit.
  if (settings.bandwidth != settings_.bandwidth) next_byte_ = steady_clock::now();
  settings_ = settings;
}

std::uint64_t Mover::add(std::vector<Move> moves, Where where, const Report& report) {
  std::vector<InodeId> replaced;  // requests
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    Tally ignored;
    Tally* tally = &ignored;
    if (report) {
      number = ++reports_.last;
      Reported& reported = reports_.by_number[number];
      reported.report = report;
      tally = &reported.tally;
    }
    const auto place = where == Where::Front ? MoveQueue::Place::Asked : MoveQueue::Place::Last;
    for (Move& move : moves) {
      // A user's request that is about to run comes first; the next plan sees where it ended. One
      // that waits, for room or a tier, must not keep a tier from being emptied.
      const Move* const queued = queue_.find(move.id);
      if (queued != nullptr && queued->reason == Reason::Requested) continue;
      if (is_requested(move.id)) replaced.push_back(move.id);
      erase_waiting(move.id);
      ++tally->files;
      tally->bytes += move.size();
      queue_.put({std::move(move), number}, place);
    }
    wake_.notify_all();
  }
  if (!replaced.empty()) settle(std::move(replaced));
  return number;
}

Mover::Tally Mover::tally(std::uint64_t number) const {
  const MutexLock lock(mutex_);
  const auto found = reports_.by_number.find(number);
  if (found == reports_.by_number.end()) return {};
  Tally out = found->second.tally;
  for (const auto& [id, each] : under_way_) {
    if (each.report != number) continue;
    out.done_bytes += std::min(each.copied, each.bytes);
    if (each.since != 0) out.current = each.path;
  }
  return out;
}

void Mover::erase_waiting(InodeId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  const Move& move = found->second.pending.move;
  if (move.reason == Reason::Requested) {
    const auto user = waiting_of_user_.find(move.user);
    if (--user->second == 0) waiting_of_user_.erase(user);
  }
  waiting_.erase(found);
}

void Mover::withdraw_reported() {
  const MutexLock lock(mutex_);
  queue_.erase_reported();
  reports_.by_number.clear();
  idle_.notify_all();
  while (reports_.running > 0) idle_.wait(mutex_);
}

void Mover::wait_idle(const std::function<bool()>& stop) {
  while (!stop()) {
    const auto deadline = steady_clock::now() + milliseconds(100);
    const MutexLock lock(mutex_);
    do {
      if (queue_.empty() && std::ranges::count(busy_, 0U) == std::ssize(busy_)) return;
    } while (idle_.wait_until(mutex_, deadline));
  }
}

void Mover::pause() {
  const MutexLock lock(mutex_);
  paused_ = true;
}

void Mover::resume() {
  const MutexLock lock(mutex_);
  paused_ = false;
  wake_.notify_all();
}

bool Mover::is_paused() const {
  const MutexLock lock(mutex_);
  return paused_;
}

void Mover::file_closed(InodeId id) {
  const MutexLock lock(mutex_);
  // Its move may be failing right now, because of the user who just closed the file.
  if (const auto at = under_way_.find(id); at != under_way_.end()) at->second.closed = true;
  const auto found = waiting_.find(id);
  if (found == waiting_.end() || !has_yielded(found->second.pending.code)) return;
  if (queue_.find(id) != nullptr) return;
  queue_.put({found->second.pending.move, found->second.report}, MoveQueue::Place::First);
  erase_waiting(id);
  wake_.notify_all();
}

void Mover::tick() {
  const std::int64_t now = clock_.seconds();
  const MutexLock lock(mutex_);
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    Waiting& waiting = at->second;
    const Move& move = waiting.pending.move;
    const Tier& to = pool_[move.to];
    const bool can_move = check_tiers(pool_[move.from], to).has_value();
    const bool due = waiting.retry_at != 0 && now >= waiting.retry_at;
    const bool roomier = lacks_room(waiting.pending.code) &&
                         to.space().free >= waiting.free_then + std::max(move.bytes / 8, kMargin);
    const bool came_back = waiting.was_closed && can_move;
    if (!can_move || !(due || roomier || came_back) || queue_.find(at->first) != nullptr) {
      waiting.was_closed = waiting.was_closed || !can_move;
      ++at;
      continue;
    }
    // It stays in waiting_ as well, so that another failure counts as one more attempt.
    queue_.put({move, waiting.report}, MoveQueue::Place::Last);
    waiting.retry_at = 0;
    waiting.free_then = to.space().free;
    waiting.was_closed = false;
    ++at;
  }
  if (!queue_.empty()) wake_.notify_all();
}

std::vector<Mover::Pending> Mover::pending(std::size_t most) const {
  const MutexLock lock(mutex_);
  std::vector<Pending> out;
  for (const auto& [id, waiting] : waiting_) {
    if (out.size() >= most) break;
    out.push_back(waiting.pending);
  }
  return out;
}

std::size_t Mover::pending_count() const {
  const MutexLock lock(mutex_);
  return waiting_.size();
}

const char* result_of(const Receipt& receipt) {
  if (receipt.code == 0) return receipt.to.empty() ? "deleted" : "moved";
  if (receipt.code == kWithdrawn) return "cancelled";
  return has_yielded(receipt.code) ? "yielded" : "failed";
}

bool Mover::waits_on(TierIndex tier) const {
  const MutexLock lock(mutex_);
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const auto& each) { return each.second.pending.move.from == tier; });
}

std::optional<Mover::Pending> Mover::pending(InodeId id) const {
  const MutexLock lock(mutex_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return std::nullopt;
  return found->second.pending;
}

bool Mover::is_waiting(InodeId id) const {
  const MutexLock lock(mutex_);
  return waiting_.contains(id);
}

std::vector<Mover::Queued> Mover::queued(std::size_t most, const Wanted& wanted,
                                         std::uint64_t& all) const {
  // In pieces: the queue may have a million moves, and the mover must not wait for that long.
  constexpr std::size_t kPiece = 4096;
  std::vector<Queued> out;
  all = 0;
  std::optional<MoveQueue::Key> after;
  for (bool goes_on = true; goes_on;) {
    const MutexLock lock(mutex_);
    std::size_t seen = 0;
    goes_on = queue_.visit(after, [&](const Move& move) REQUIRES(mutex_) {
      // One that is tried again is among the waiting ones, too.
      if (!waiting_.contains(move.id) && wanted(move.id, move.paths.empty() ? "" : move.paths[0])) {
        ++all;
        if (out.size() < most) out.push_back({move, paused_ && move.reason != Reason::Requested});
      }
      return ++seen < kPiece;
    });
  }
  return out;
}

std::optional<TierIndex> Mover::destination(InodeId id) const {
  const MutexLock lock(mutex_);
  if (const auto found = under_way_.find(id); found != under_way_.end() && !found->second.is_void())
    return found->second.to;
  if (const Move* move = queue_.find(id)) return move->to;
  return std::nullopt;
}

Mover::Progress Mover::progress() const {
  const MutexLock lock(mutex_);
  Progress out = progress_;
  out.queued = queue_.size();
  out.queued_bytes = queue_.bytes();
  out.active = static_cast<std::uint64_t>(
      std::ranges::count_if(under_way_, [](const auto& each) { return !each.second.is_void(); }));
  if (out.queued + out.active > 0) out.share = courtesy_.least_share();
  out.bytes_left = out.queued_bytes;
  for (const auto& [id, each] : under_way_) {
    if (!each.is_void()) out.bytes_left += each.bytes - std::min(each.copied, each.bytes);
  }
  if (!paused_)
    out.time_left = rate_.time_for(clock_.monotonic(), out.queued + out.active, out.bytes_left);
  // The rate does not know of a limit that only now slows the moves down.
  if (out.time_left && settings_.bandwidth > 0) {
    const std::chrono::seconds at_least(out.bytes_left / settings_.bandwidth);
    out.time_left = std::max(*out.time_left, at_least);
  }
  return out;
}

std::optional<Mover::Active> Mover::running(InodeId id) const {
  const MutexLock lock(mutex_);
  const auto found = under_way_.find(id);
  if (found == under_way_.end() || found->second.is_void()) return std::nullopt;
  return found->second;
}

std::vector<Mover::Active> Mover::active(std::size_t most) const {
  std::vector<Active> out;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, each] : under_way_) {
      if (!each.is_void()) out.push_back(each);
    }
  }
  // 0 means not begun and sorts last: as unsigned, 0 - 1 is the largest number.
  const auto begun = [](const Active& each) { return static_cast<std::uint64_t>(each.since) - 1; };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Active& a, const Active& b) { return begun(a) < begun(b); });
  if (out.size() > most) out.resize(most);
  return out;
}

bool Mover::take(Batch& batch) {
  const auto is_free = [&](TierIndex tier)
                           REQUIRES(mutex_) { return busy_[tier] < pool_[tier].moves(); };
  std::uint64_t bytes = 0;
  std::size_t files = 1;
  bool is_first = true;
  const MoveQueue::Choice choice{
      .can_go = [&](TierIndex from, TierIndex to)
                    REQUIRES(mutex_) { return is_free(from) && is_free(to); },
      .is_moving = [&](InodeId id) REQUIRES(mutex_) { return under_way_.contains(id); },
      .only_requested = paused_};
  batch.jobs = queue_.take(choice, [&](const Move& first, const Move& next) {
    if (std::exchange(is_first, false)) bytes = first.bytes;
    if (first.bytes > kSmall || next.bytes > kSmall || files == kBatchFiles) return false;
    if (bytes + next.bytes > kBatchBytes) return false;
    bytes += next.bytes;
    ++files;
    return true;
  });
  if (batch.jobs.empty()) return false;
  for (const Job& job : batch.jobs) {
    const Move& move = job.move;
    progress_.current = move.paths.empty() ? "" : move.paths[0];
    under_way_[move.id] = {.path = progress_.current,
                           .from = move.from,
                           .to = move.to,
                           .bytes = move.size(),
                           .report = job.report,
                           .id = move.id};
  }
  rate_.begin(clock_.monotonic());
  batch.from = batch.jobs[0].move.from;
  batch.to = batch.jobs[0].move.to;
  ++busy_[batch.from];
  ++busy_[batch.to];
  return true;
}

void Mover::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Batch batch;
    {
      const MutexLock lock(mutex_);
      if (!wake_.wait(mutex_, stop, [&]() REQUIRES(mutex_) { return take(batch); })) return;
    }
    const Move& first = batch.jobs[0].move;
    Turn turn{steady_clock::now(), batch.from, batch.to, first.reason == Reason::Requested};
    auto moved = run(stop, batch, turn);
    {
      const MutexLock lock(mutex_);
      for (const Job& job : batch.jobs) under_way_.erase(job.move.id);
      idle_.notify_all();
    }
    // This frees the room of the originals, which takes long if they are large. Only who needs the
    // room waits for it.
    moved.clear();
    {
      const MutexLock lock(mutex_);
      --busy_[batch.from];
      --busy_[batch.to];
      wake_.notify_all();
      idle_.notify_all();
    }
    rest(turn, [&] { return stop.stop_requested(); });
  }
}

Result<void> Mover::reserve(const Move& move) {
  Tier& to = pool_[move.to];
  to.refresh_space();
  std::uint64_t needed = 0;
  {
    const MutexLock lock(mutex_);
    needed = reserved_[move.to] + move.bytes + kMargin;
    if (to.space().free < needed) return Error(ENOSPC, "the tier has no room");
    reserved_[move.to] += move.bytes;
  }
  // If that is not enough, the copy fails with ENOSPC.
  if (const std::uint64_t free = to.space().free_now(); free < needed)
    pool_.twins().make_room(to, needed - free);
  return {};
}

Result<void> Mover::pace(const std::stop_token& stop, const Flight& flight, std::uint64_t bytes) {
  steady_clock::time_point until = steady_clock::now();
  {
    const MutexLock lock(mutex_);
    if (!flight.is_comparing) progress_.copied_bytes += bytes;
    // Once the copy is complete, only verification reads it.
    const bool is_copying = !flight.copy;
    const TierIndex to = flight.job->move.to;
    const TierIndex read = flight.is_comparing || is_copying ? flight.from : to;
    pool_[read].count_read(bytes);
    courtesy_.has_read(read, bytes);
    if (!flight.is_comparing && is_copying) {
      pool_[to].count_written(bytes);
      courtesy_.has_written(to, bytes);
      Active& active = under_way_[flight.job->move.id];
      active.copied += bytes;
      // A filesystem that compresses says less than there is.
      grow(active, std::max(active.bytes, active.copied));
      rate_.add(clock_.monotonic(), 0, bytes);
    }
    if (const std::uint64_t bandwidth = settings_.bandwidth; bandwidth > 0) {
      const auto cost = std::chrono::nanoseconds(static_cast<std::int64_t>(
          static_cast<double>(bytes) * 1e9 / static_cast<double>(bandwidth)));
      next_byte_ = std::max(next_byte_, until) + cost;
      until = next_byte_;
    }
  }
  const InodeId id = flight.job->move.id;
  rest(*flight.turn,
       [&] { return stop.stop_requested() || flight.file->is_cancelled() || is_withdrawn(id); });
  for (;;) {
    if (stop.stop_requested()) return Error(ESHUTDOWN, "unmounting");
    if (flight.file->is_cancelled()) return Error(ECANCELED, "a user changed the file");
    if (is_withdrawn(id)) return withdrawn();
    const auto now = steady_clock::now();
    bool paused = false;
    {
      const MutexLock lock(mutex_);
      paused = paused_ && flight.job->move.reason != Reason::Requested;
      until = std::min(until, next_byte_);  // the limit may have changed
    }
    if (!paused && now >= until) {
      flight.turn->since = now;
      return {};
    }
    std::this_thread::sleep_for(
        paused ? milliseconds(100)
               : std::min<steady_clock::duration>(until - now, milliseconds(100)));
  }
}

void Mover::rest(Turn& turn, const std::function<bool()>& is_over) {
  // A tier that runs out of room is emptied even while others work: they are about to be refused.
  if (turn.is_requested || pool_[turn.from].low_on_space()) return;
  const auto begun = steady_clock::now();
  const auto worked = begun - turn.since;
  for (auto now = begun; !is_over(); now = steady_clock::now()) {
    // Asked each time, because a rest is over as soon as the others are.
    const double share = courtesy_.share(turn.from, turn.to);
    const auto length =
        std::chrono::duration_cast<steady_clock::duration>(worked * (1 / share - 1));
    if (now >= begun + length) break;
    std::this_thread::sleep_for(
        std::min<steady_clock::duration>(begun + length - now, milliseconds(100)));
  }
  turn.since = steady_clock::now();
}

void Mover::grow(Active& active, std::uint64_t bytes) {
  if (const auto found = reports_.by_number.find(active.report); found != reports_.by_number.end())
    found->second.tally.bytes += bytes - active.bytes;  // modulo 2^64, if it shrinks
  active.bytes = bytes;
}

bool Mover::is_withdrawn(InodeId id) const {
  const MutexLock lock(mutex_);
  const auto found = under_way_.find(id);
  return found != under_way_.end() && found->second.is_withdrawn;
}

Result<void> Mover::begin_switch(InodeId id) {
  const MutexLock lock(mutex_);
  Active& active = under_way_[id];
  if (active.is_withdrawn) return withdrawn();
  active.stage = Active::Stage::Switching;
  return {};
}

void Mover::note_begun(const Move& move) {
  const MutexLock lock(mutex_);
  Active& active = under_way_[move.id];
  if (!move.paths.empty()) progress_.current = active.path = move.paths[0];
  grow(active, move.size());
}

Result<void> Mover::copy(const std::stop_token& stop, Flight& flight) {
  Move& move = flight.job->move;
  if (is_withdrawn(move.id)) return withdrawn();
  courtesy_.began_file(move.from, move.to);
  {
    const MutexLock lock(mutex_);
    under_way_[move.id].since = clock_.seconds();
  }
  auto begun = host_.hold(move);
  note_begun(move);
  if (!begun) return begun.error();
  if (is_withdrawn(move.id)) return withdrawn();
  flight.file = *std::move(begun);
  flight.from = flight.file->tier();
  SLUICE_TRY(check_tiers(pool_[flight.from], pool_[move.to]));
  if (SLUICE_TRY(take_twin(stop, flight))) return {};
  SLUICE_TRY(reserve(move));
  flight.reserved = move.bytes;
  const Pace pace_it = [&](std::uint64_t bytes) { return pace(stop, flight, bytes); };
  flight.copy = SLUICE_TRY(
      make_hidden_copy(flight.file->source(), flight.file->identity(), pool_[move.to], pace_it));
  // Start writing it to disk while the rest of the batch is copied.
  ::sync_file_range(flight.copy->fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  return {};
}

Result<bool> Mover::take_twin(const std::stop_token& stop, Flight& flight) {
  Tier& to = pool_[flight.job->move.to];
  flight.is_comparing = true;
  auto twin =
      pool_.twins().take(flight.file->identity(), flight.file->source(), pool_[flight.from], to,
                         [&](std::uint64_t bytes) { return pace(stop, flight, bytes); });
  flight.is_comparing = false;
  if (!twin) return twin.error();
  flight.copy = *std::move(twin);
  return flight.copy.has_value();
}

std::vector<std::unique_ptr<HeldFile>> Mover::run(const std::stop_token& stop, Batch& batch,
                                                  Turn& turn) {
  std::vector<Flight> flights(batch.jobs.size());
  for (Flight& flight : flights) flight.begun = clock_.monotonic();
  std::vector<Result<void>> outcomes(flights.size());
  Tier& to = pool_[batch.to];
  bool verifies = false;
  {
    const MutexLock lock(mutex_);
    verifies = settings_.verify;
  }
  {
    const IdlePriority priority;
    for (std::size_t i = 0; i < flights.size(); ++i) {
      flights[i].job = &batch.jobs[i];
      flights[i].turn = &turn;
      outcomes[i] = stop.stop_requested() ? Result<void>(Error(ESHUTDOWN, "unmounting"))
                                          : copy(stop, flights[i]);
      // Users of the file need not wait for the rest of the batch.
      if (!outcomes[i]) flights[i].file.reset();
    }
    for (std::size_t i = 0; i < flights.size(); ++i) {
      Flight& flight = flights[i];
      if (!outcomes[i]) continue;
      outcomes[i] = is_withdrawn(flight.job->move.id) ? withdrawn() : sync_copy(*flight.copy);
      if (!outcomes[i] || !verifies) continue;
      const auto on_disk =
          hash_on_disk(flight.copy->fd.get(), flight.copy->copied,
                       [&](std::uint64_t bytes) { return pace(stop, flight, bytes); });
      if (!on_disk) {
        outcomes[i] = on_disk.error();
      } else if (*on_disk != flight.copy->copied.hash) {
        outcomes[i] = Error(EIO, "the copy differs from the original when read back");
        if (flight.copy->is_twin) pool_.twins().drop(to, flight.file->identity());
      }
    }
  }
  std::vector<ReadyCopy> copies;
  std::vector<std::unique_ptr<HeldFile>> moved;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < flights.size(); ++i) {
    if (outcomes[i]) outcomes[i] = begin_switch(flights[i].job->move.id);
    if (!outcomes[i]) continue;
    copies.push_back({flights[i].file.get(), &*flights[i].copy, batch.to});
    which.push_back(i);
  }
  if (!copies.empty()) {
    auto switched = switcher_.switch_files(copies);
    for (std::size_t k = 0; k < which.size(); ++k) outcomes[which[k]] = std::move(switched[k]);
  }
  for (std::size_t i = 0; i < flights.size(); ++i) {
    const auto& copy = flights[i].copy;
    // The twin was dropped for its room in between. The next attempt copies the file.
    if (copy && copy->is_twin && failed_with(outcomes[i], ESTALE))
      outcomes[i] = Error(ECANCELED, "its twin is gone");
    // A system call might fail with the code that means a user's wish.
    if (failed_with(outcomes[i], kWithdrawn) && !is_withdrawn(flights[i].job->move.id))
      outcomes[i] = Error(ECANCELED, "a system call was interrupted");
    if (!outcomes[i] && copy) discard(*copy, to);
    if (copy && copy->is_twin) pool_.twins().taken(copy->original, to, outcomes[i].has_value());
    flights[i].ended = clock_.monotonic();
    // The move that failed must have ended before it is tried again.
    if (!outcomes[i]) flights[i].file.reset();
    finish(flights[i], outcomes[i]);
    if (outcomes[i]) moved.push_back(std::move(flights[i].file));
  }
  return moved;
}

Receipt Mover::receipt_of(const Flight& flight, const Result<void>& outcome) const {
  const Move& move = flight.job->move;
  Receipt receipt;
  receipt.time = clock_.seconds();
  receipt.id = move.id;
  receipt.path = move.paths.empty() ? "" : move.paths[0];
  receipt.from = pool_[flight.from == kNoTier ? move.from : flight.from].name();
  receipt.to = pool_[move.to].name();
  receipt.milliseconds = static_cast<std::uint32_t>(
      std::chrono::duration_cast<milliseconds>(flight.ended - flight.begun).count());
  receipt.reason = move.why;
  if (flight.copy) {
    receipt.bytes = flight.copy->copied.bytes;
    receipt.hash = flight.copy->copied.hash;
    if (flight.copy->is_twin)
      receipt.reason += std::string(receipt.reason.empty() ? "" : "; ") + "twin: nothing copied";
  }
  if (!outcome) {
    receipt.code = outcome.error().code;
    receipt.reason += (receipt.reason.empty() ? "" : "; ") +
                      (receipt.code == kWithdrawn ? "cancelled" : outcome.error().text());
  }
  return receipt;
}

void Mover::finish(const Flight& flight, const Result<void>& outcome) {
  const Move& move = flight.job->move;
  const Receipt receipt = receipt_of(flight, outcome);
  const bool never_began = receipt.code == kWithdrawn && flight.from == kNoTier;
  // Not worth a receipt: the file is where it belongs, or is gone.
  const bool moot =
      !outcome && (receipt.code == EALREADY || receipt.code == ESTALE || receipt.code == ENOENT ||
                   receipt.code == ESHUTDOWN || never_began);
  if (!moot) {
    if (const auto added = store_.add_receipts({receipt}); !added)
      log::get().warn("cannot store a receipt: why={}", added.error().text());
  }
  if (outcome && (move.reason == Reason::Crowded || move.reason == Reason::Outranked)) {
    const auto slot = static_cast<std::uint8_t>(pool_[move.from].member().slot);
    // An error is ignored: without its ghost, the file merely returns later.
    [[maybe_unused]] const auto added = store_.add_ghosts({{move.id, {receipt.time, slot}}});
  }
  Report report;
  bool waits = false;
  // Whether a request is done with. Unmounting does not end it, nor does a rename.
  bool is_over = outcome || (moot && receipt.code != ESHUTDOWN) || receipt.code == kWithdrawn;
  {
    const MutexLock lock(mutex_);
    reserved_[move.to] -= flight.reserved;
    Active& active = under_way_[move.id];
    // With what was not copied: a twin took its place, or the move failed.
    rate_.add(flight.ended, 1, active.bytes - std::min(active.copied, active.bytes));
    const bool is_missing = receipt.code == ESTALE || receipt.code == ENOENT;
    if (is_missing && move.reason == Reason::Requested && !active.is_withdrawn &&
        note_lost(move.id))
      is_over = false;
    waits = !outcome && !moot && !active.is_withdrawn;
    const auto reported = reports_.by_number.find(flight.job->report);
    if (reported != reports_.by_number.end()) count(reported->second.tally, active, receipt, waits);
    active.stage = outcome ? Active::Stage::Moved : Active::Stage::Failed;
    if (outcome) {
      lost_.times.erase(move.id);
      ++progress_.moved;
      progress_.moved_bytes += receipt.bytes;
      Moved& between = progress_.between[{receipt.from, receipt.to}];
      ++between.files;
      between.bytes += receipt.bytes;
      erase_waiting(move.id);
    } else if (moot) {
      erase_waiting(move.id);
    } else {
      if (is_failure(receipt.code)) ++progress_.failed;
      // A user may have withdrawn it while it failed for another reason.
      if (waits) put_aside(*flight.job, outcome.error());
    }
    if (reported != reports_.by_number.end() && !moot) {
      report = reported->second.report;
      ++reports_.running;
    }
  }
  if (is_over && move.reason == Reason::Requested) settle({move.id});
  if (outcome) {
    log::get().debug("moved: path={} from={} to={} bytes={}", log::escaped(receipt.path),
                     receipt.from, receipt.to, receipt.bytes);
  } else if (receipt.code == kWithdrawn) {
    log::get().info("a user cancelled a move: path={} to={}", log::escaped(receipt.path),
                    receipt.to);
  } else if (!moot) {
    log::get().info("can't move now: path={} from={} to={} why={}", log::escaped(receipt.path),
                    receipt.from, receipt.to, outcome.error().text());
  }
  if (!report) return;
  report(receipt, waits);
  const MutexLock lock(mutex_);
  --reports_.running;
  idle_.notify_all();
}

void Mover::count(Tally& tally, Active& ended, const Receipt& receipt, bool waits) {
  if (receipt.code == 0) {
    ++tally.moved;
    tally.moved_bytes += receipt.bytes;
  } else if (waits && is_failure(receipt.code)) {
    ++tally.failed;
  }
  // What was copied of a move that waits has to be copied again.
  if (!waits) tally.done_bytes += ended.bytes;
  ended.report = 0;
}

void Mover::put_aside(const Job& job, const Error& error) {
  // Meanwhile a user, or a newer plan, has asked for another move of the file.
  if (queue_.find(job.move.id) != nullptr) return erase_waiting(job.move.id);
  const std::int64_t now = clock_.seconds();
  Waiting& waiting = waiting_[job.move.id];
  const unsigned attempts = waiting.pending.since == 0 ? 1 : waiting.attempts + 1;
  const std::int64_t since = waiting.pending.since == 0 ? now : waiting.pending.since;
  const Move& before = waiting.pending.move;
  const bool counted = waiting.pending.since != 0 && before.reason == Reason::Requested;
  if (counted && --waiting_of_user_[before.user] == 0) waiting_of_user_.erase(before.user);
  if (job.move.reason == Reason::Requested) ++waiting_of_user_[job.move.user];
  waiting = {.pending = {job.move, error.code, error.text(), since},
             .attempts = attempts,
             .free_then = pool_[job.move.to].space().free,
             .was_closed = !check_tiers(pool_[job.move.from], pool_[job.move.to]),
             .report = job.report};
  // A lack of room is retried when there is more room, everything else with growing pauses.
  if (lacks_room(error.code)) return;
  const bool at_once = has_yielded(error.code) && under_way_[job.move.id].closed;
  const auto later = std::min(kLastRetry, kFirstRetry << std::min<unsigned>(attempts - 1, 10));
  waiting.retry_at = at_once ? now : now + later;
}

}  // namespace sluice
