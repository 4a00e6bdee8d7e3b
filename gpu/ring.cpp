// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/ring.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// How long a thread polls after work before it sleeps. Waking it costs the other side a system
// call, and both some microseconds.
constexpr std::chrono::microseconds kSpin{20};
// How often a sleeping thread looks by itself. A client that overwrites the word must not delay the
// end.
constexpr std::chrono::seconds kNap{1};
// After being woken this often for nothing, the thread sleeps where only its owner can wake it.
constexpr unsigned kMaxNeedlessWakes = 8;

// ABI: the positions of the words.
static_assert(sizeof(sluice_ring_entry) == 64 && sizeof(sluice_ring_completion) == 32);
static_assert(offsetof(sluice_ring_header, submitted) == 64 &&
              offsetof(sluice_ring_header, taken) == 128 &&
              offsetof(sluice_ring_header, completed) == 192 &&
              offsetof(sluice_ring_header, reaped) == 256 &&
              offsetof(sluice_ring_header, sleeping) == 320 &&
              offsetof(sluice_ring_header, waiting) == 384 &&
              offsetof(sluice_ring_header, bell) == 448 &&
              offsetof(sluice_ring_header, ended) == 512 && sizeof(sluice_ring_header) == 576);

// Sequentially consistent: if each side stores one word and then loads the other's, at least one
// sees the store, so neither sleeps with work left. There are no fences because ThreadSanitizer
// does not support them.
std::uint32_t load(std::uint32_t& word) { return std::atomic_ref(word).load(); }
void store(std::uint32_t& word, std::uint32_t value) { std::atomic_ref(word).store(value); }

bool is_count(std::uint32_t number, std::uint32_t most) {
  return std::has_single_bit(number) && number <= most;
}

bool makes_sense(const sluice_ring_entry& entry) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return entry.flags == 0 && entry.reserved == 0 && entry.operation <= SLUICE_RING_WRITE &&
         entry.file_offset <= kMost && entry.length <= kMost - entry.file_offset &&
         entry.length <= std::numeric_limits<std::uint64_t>::max() - entry.buffer_offset;
}

Segment segment_of(const sluice_ring_entry& entry) {
  return {entry.buffer_offset, entry.file_offset, entry.length};
}

// A spinning thread occupies a core. At most a quarter of the cores may be used for that.
class SpinPermit {
 public:
  SpinPermit() : given_(s_spinning.fetch_add(1) < most()) {}
  ~SpinPermit() { s_spinning.fetch_sub(1); }
  SpinPermit(const SpinPermit&) = delete;
  SpinPermit& operator=(const SpinPermit&) = delete;
  explicit operator bool() const { return given_; }

 private:
  static unsigned most() {
    static const unsigned s_most = std::thread::hardware_concurrency() / 4;
    return s_most;
  }
  static inline std::atomic<unsigned> s_spinning{0};  // for all rings of the process
  const bool given_;
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace

bool futex_wait(std::uint32_t* word, std::uint32_t value, std::chrono::nanoseconds limit) {
  const timespec timeout{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  return ::syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, nullptr, 0) == 0 ||
         errno != ETIMEDOUT;
}

void futex_wake(std::uint32_t* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

Result<std::unique_ptr<RingServer>> RingServer::create(std::span<std::byte> memory,
                                                       RingTarget& target, RingBell bell,
                                                       std::uint64_t completion_flags) {
  if (memory.size() < SLUICE_RING_HEADER_SIZE)
    return Error(EINVAL, "the ring is too small for a header");
  auto& header = *reinterpret_cast<sluice_ring_header*>(memory.data());
  // Read once, so that the checked values are those used.
  const std::uint32_t entries = load(header.entries), completions = load(header.completions);
  if (load(header.magic) != SLUICE_RING_MAGIC || load(header.version) != SLUICE_RING_VERSION) {
    return Error(EINVAL, "the ring has a wrong magic number or version");
  }
  if (!is_count(entries, SLUICE_RING_MAX_ENTRIES) ||
      !is_count(completions, 2 * SLUICE_RING_MAX_ENTRIES) || completions < entries) {
    return Error(EINVAL, "the ring has an invalid number of entries");
  }
  if (memory.size() < ring_size(entries, completions))
    return Error(EINVAL, "the memory is too small for the ring");
  if (bell.bell == nullptr) bell = {&header.waiting, &header.bell};
  return std::unique_ptr<RingServer>(
      new RingServer(memory, entries, completions, target, bell, completion_flags));
}

RingServer::RingServer(std::span<std::byte> memory, std::uint32_t entries,
                       std::uint32_t completions, RingTarget& target, RingBell bell,
                       std::uint64_t completion_flags)
    : memory_(memory),
      entries_(entries),
      completions_(completions),
      target_(target),
      bell_(bell),
      completion_flags_(completion_flags),
      taken_(load(header().submitted)),
      completed_(load(header().reaped)) {
  store(header().taken, taken_);
  store(header().completed, completed_);
}

Result<void> RingServer::start() {
  running_ = 1;
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      begin_thread("sluice-ring");
      run(stop);
      large_thread_.request_stop();  // it may have started the other thread
      --running_;
    });
  } catch (const std::system_error&) {
    running_ = 0;
    return Error(EAGAIN, "start a thread for a ring");
  }
  return {};
}

void RingServer::request_stop() { thread_.request_stop(); }

void RingServer::stop(int why) {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  large_thread_.request_stop();  // needed if start() was not called
  if (large_thread_.joinable()) large_thread_.join();
  end(why);
}

void RingServer::end(int why) {
  {
    const MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
  }
  store(header().ended, static_cast<std::uint32_t>(why));
  std::atomic_ref(*bell_.bell).fetch_add(1);
  futex_wake(bell_.bell);
}

void RingServer::run(const std::stop_token& stop) {
  // The client can overwrite this word. If the wake is lost, the sleep ends by itself.
  const std::stop_callback wake(stop, [this] {
    store(header().sleeping, 0);
    futex_wake(&header().sleeping);
  });
  try {
    while (!stop.stop_requested()) {
      const auto served = serve();
      if (!served) return end(served.error().code);
      if (*served > 0) {
        needless_wakes_ = 0;
      } else if (!spin(stop)) {
        sleep(stop);
      }
    }
  } catch (const std::bad_alloc&) {
    end(ENOMEM);
  } catch (const std::system_error&) {
    end(EAGAIN);  // no thread for large requests could be started
  } catch (...) {
    log::get().critical("a ring ended with an unexpected exception");
    end(EIO);
  }
}

// True if an entry has arrived.
bool RingServer::spin(const std::stop_token& stop) {
  // Entries are waiting for room among the completions, which the client makes at any time.
  if (load(header().submitted) != taken_) return false;
  const SpinPermit permit;
  if (!permit || needless_wakes_ > 0) return false;
  const auto end = steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (load(header().submitted) != taken_) return true;
      pause();
    }
  } while (!stop.stop_requested() && steady_clock::now() < end);
  return false;
}

void RingServer::sleep(const std::stop_token& stop) {
  if (needless_wakes_ > kMaxNeedlessWakes) {
    const unsigned more = std::min(needless_wakes_ - kMaxNeedlessWakes, 7u);
    const MutexLock lock(mutex_);
    changed_.sleep(mutex_, stop, std::chrono::milliseconds(1u << more));
  }
  std::atomic_ref word(header().sleeping);
  word.store(1);
  const auto now = ready();
  if (!now || *now > 0 || stop.stop_requested()) {
    word.store(0);
    return;
  }
  const bool woken = futex_wait(&header().sleeping, 1, kNap);
  word.store(0);
  if (woken) ++needless_wakes_;  // reset when an entry is found
}

Result<unsigned> RingServer::ready() {
  const std::uint32_t waiting = load(header().submitted) - taken_;
  if (waiting > entries_)
    return Error(EPROTO, "the client has submitted more entries than the ring has");
  const MutexLock lock(mutex_);
  const std::uint32_t unread = completed_ - load(header().reaped);
  if (unread > completions_)
    return Error(EPROTO, "the client has reaped more completions than were posted");
  const std::uint32_t busy = unread + in_flight_;
  // A client that decreases `reaped` could make this negative.
  const std::uint32_t room = busy < completions_ ? completions_ - busy : 0;
  return std::min({waiting, room, kBatch});
}

sluice_ring_entry RingServer::copy_entry(std::uint32_t index) const {
  auto* from =
      reinterpret_cast<std::uint64_t*>(memory_.data() + SLUICE_RING_HEADER_SIZE +
                                       (index & (entries_ - 1)) * sizeof(sluice_ring_entry));
  // Atomically, word by word: with a plain copy, the compiler might read the memory again later.
  std::array<std::uint64_t, sizeof(sluice_ring_entry) / 8> words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
  }
  return std::bit_cast<sluice_ring_entry>(words);
}

Result<unsigned> RingServer::serve() {
  const unsigned count = SLUICE_TRY(ready());
  if (count == 0) return 0u;
  for (unsigned i = 0; i < count; ++i) batch_[i] = copy_entry(taken_ + i);
  taken_ += count;
  store(header().taken, taken_);

  // Reads of one file into one buffer are executed together; requests that take long come last.
  std::array<unsigned, kBatch> group;
  std::array<bool, kBatch> is_done{};
  for (unsigned i = 0; i < count; ++i) {
    const sluice_ring_entry& first = batch_[i];
    if (is_done[i]) continue;
    if (!makes_sense(first)) {
      is_done[i] = true;
      post(first, Error(EINVAL, "invalid entry of a ring"));
    } else if (first.operation == SLUICE_RING_NOP || first.length == 0) {
      is_done[i] = true;
      post(first, Transfer{});
    } else if (first.length > kLarge) {
      is_done[i] = true;
      leave_to_large(first);
    } else if (first.operation == SLUICE_RING_READ) {
      unsigned size = 0;
      for (unsigned j = i; j < count; ++j) {
        const sluice_ring_entry& other = batch_[j];
        const bool joins = !is_done[j] && other.operation == SLUICE_RING_READ &&
                           other.file == first.file && other.buffer == first.buffer &&
                           other.length > 0 && other.length <= kLarge && makes_sense(other);
        if (!joins) continue;
        is_done[j] = true;
        group[size++] = j;
      }
      read_group({group.data(), size});
    }
  }
  for (unsigned i = 0; i < count; ++i) {
    if (!is_done[i])
      post(batch_[i], target_.write(batch_[i].file, batch_[i].buffer, segment_of(batch_[i])));
  }
  return count;
}

void RingServer::read_group(std::span<const unsigned> group) {
  std::uint64_t wanted = 0;
  for (std::size_t i = 0; i < group.size(); ++i) {
    segments_[i] = segment_of(batch_[group[i]]);
    wanted += segments_[i].length;
  }
  const sluice_ring_entry& first = batch_[group[0]];
  const auto all = target_.read(first.file, first.buffer, {segments_.data(), group.size()});
  if (group.size() == 1) return post(first, all);
  if (!all || all->bytes != wanted) {
    // One segment reached the end of the file or failed. Reading each one alone tells which.
    for (std::size_t i = 0; i < group.size(); ++i) {
      post(batch_[group[i]], target_.read(first.file, first.buffer, {&segments_[i], 1}));
    }
    return;
  }
  std::array<sluice_ring_completion, kBatch> done;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const sluice_ring_entry& entry = batch_[group[i]];
    done[i] = {entry.user_data, static_cast<std::int64_t>(entry.length),
               static_cast<std::uint32_t>(all->route), static_cast<std::uint32_t>(all->why),
               completion_flags_};
  }
  post({done.data(), group.size()}, 0);
}

void RingServer::leave_to_large(const sluice_ring_entry& entry) {
  {
    const MutexLock lock(mutex_);
    large_.push_back(entry);
    ++in_flight_;
  }
  changed_.notify_all();
  if (large_thread_.joinable()) return;
  ++running_;
  try {
    large_thread_ = std::jthread([this](const std::stop_token& stop) {
      begin_thread("sluice-ring-big");
      try {
        work_large(stop);
      } catch (...) {
        end(ENOMEM);
      }
      --running_;
    });
  } catch (...) {
    --running_;  // otherwise is_at_rest() would never become true
    throw;
  }
}

void RingServer::work_large(const std::stop_token& stop) {
  for (;;) {
    sluice_ring_entry entry;
    {
      const MutexLock lock(mutex_);
      changed_.wait(mutex_, stop, [this]() REQUIRES(mutex_) { return !large_.empty(); });
      if (stop.stop_requested()) return;
      entry = large_.front();
      large_.pop_front();
    }
    execute_large(entry, stop);
  }
}

void RingServer::execute_large(const sluice_ring_entry& entry, const std::stop_token& stop) {
  const bool is_read = entry.operation == SLUICE_RING_READ;
  Transfer sum;
  while (sum.bytes < entry.length && !stop.stop_requested()) {
    const Segment slice{entry.buffer_offset + sum.bytes, entry.file_offset + sum.bytes,
                        std::min<std::uint64_t>(kSlice, entry.length - sum.bytes)};
    const auto done = is_read ? target_.read(entry.file, entry.buffer, {&slice, 1})
                              : target_.write(entry.file, entry.buffer, slice);
    if (!done) {
      // Report the bytes that were written.
      if (!is_read && sum.bytes > 0) break;
      return post(entry, done, 1);
    }
    sum.add(*done);
    if (done->bytes < slice.length) return post(entry, sum, 1);
  }
  // A request that was stopped half-way has no completion, like those that have not begun: it may
  // be repeated as a whole by another daemon.
  const bool is_stopped = stop.stop_requested() && sum.bytes < entry.length;
  if (!is_stopped) post(entry, sum, 1);
}

void RingServer::post(const sluice_ring_entry& entry, const Result<Transfer>& done,
                      unsigned from_large) {
  sluice_ring_completion completion{entry.user_data, 0, 0, 0, completion_flags_};
  if (done) {
    completion.result = static_cast<std::int64_t>(done->bytes);
    completion.route = static_cast<std::uint32_t>(done->route);
    completion.why = static_cast<std::uint32_t>(done->why);
  } else {
    completion.result = -done.error().code;
  }
  post({&completion, 1}, from_large);
}

void RingServer::post(std::span<const sluice_ring_completion> done, unsigned from_large) {
  {
    const MutexLock lock(mutex_);
    std::byte* const first =
        memory_.data() + SLUICE_RING_HEADER_SIZE + entries_ * sizeof(sluice_ring_entry);
    for (const sluice_ring_completion& each : done) {
      auto* to = reinterpret_cast<std::uint64_t*>(first + (completed_++ & (completions_ - 1)) *
                                                              sizeof each);
      // Atomically, like copy_entry(): the client may access the same words.
      for (const std::uint64_t word : std::bit_cast<std::array<std::uint64_t, 4>>(each)) {
        std::atomic_ref(*to++).store(word, std::memory_order_relaxed);
      }
    }
    in_flight_ -= from_large;
    store(header().completed, completed_);
  }
  std::atomic_ref waiting(*bell_.waiting);
  if (waiting.load() == 0) return;
  waiting.store(0);
  std::atomic_ref(*bell_.bell).fetch_add(1);
  futex_wake(bell_.bell);
}

}  // namespace sluice
