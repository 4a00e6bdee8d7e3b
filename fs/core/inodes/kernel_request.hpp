// SPDX-License-Identifier: BSD-2-Clause
// A KernelRequest is what the operations of the core know of the request that they answer. Those
// who answer none, such as the mover, pass KernelRequest{}.
//
// It makes two things safe:
//
// Waiting. A thread that takes requests from the kernel must not wait for a disk or for the end of
// a move: usually one thread takes all requests, and the next one would wait, too. An operation
// that would wait in such a thread returns kWouldWait before it changes anything. SlowRequests then
// runs it again in another thread.
//
// Repetition. If the daemon dies while it answers a request, its successor gets the request again
// and does not know how far the first attempt came. Most requests can simply be repeated. The
// others store a fact before the step that must not be done twice, and the successor compares:
//
//   if (const auto victim = request.remembered(Fact::Victim)) ... the name is gone: it was done
//   request.remember(Fact::Victim, to_number(found.identity.id));
//   ::unlinkat(...)
//
// Facts are kept in a RequestNote, in memory that outlives the daemon
// (fs/core/inodes/handover.hpp), so one costs a store.
//
// The user whose room an operation takes belongs to the thread, as in the kernel; see
// CurrentCaller.
//
// Threads: immutable; the note belongs to the thread that answers the request.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace sluice {

// Used in Error::code in place of an errno. It is never sent to the kernel.
inline constexpr int kWouldWait = 600;
// The same for a write that must wait until a budget has room: no thread waits for that, but the
// request does. See Budgets::when_room().
inline constexpr int kNoRoomYet = 601;

enum class Fact : std::uint8_t {
  Began,   // when the request was first begun: nanoseconds of CLOCK_REALTIME_COARSE
  Victim,  // the identity (InodeId) of what is removed, or was at the new name of a rename; 0: none
  Source,  // the identity of what is renamed
  Size,    // the size of the file before an append; 0 after an open has truncated it
  Count,   // how many facts there are
};

// Plain data in shared memory.
struct RequestNote {
  std::uint64_t unique = 0;  // the kernel's number of the request; 0: the note is free
  std::uint32_t opcode = 0;  // and counts of successors and crashes; see handover.cpp
  std::uint32_t known = 0;   // bit n: facts[n] is set
  std::array<std::uint64_t, static_cast<std::size_t>(Fact::Count)> facts{};
};

class KernelRequest {
 public:
  KernelRequest() = default;
  // `note` may be null: then nothing is remembered. `is_repeated`: an earlier daemon took this
  // request from the kernel and ended before it answered.
  KernelRequest(RequestNote* note, bool is_repeated) : note_(note), is_repeated_(is_repeated) {}

  // The same request, for a thread that must not wait.
  KernelRequest without_waiting() const {
    KernelRequest out = *this;
    out.must_not_wait_ = true;
    return out;
  }
  bool must_not_wait() const { return must_not_wait_; }

  bool is_repeated() const { return is_repeated_; }
  // The kernel's number of the request; 0 if it has no note.
  std::uint64_t number() const { return note_ == nullptr ? 0 : note_->unique; }

  // The fact that the earlier daemon stored. Nothing if it had not come that far, or if the request
  // is not a repetition.
  std::optional<std::uint64_t> remembered(Fact fact) const {
    const auto bit = static_cast<unsigned>(fact);
    if (!is_repeated_ || note_ == nullptr || (note_->known >> bit & 1) == 0) return std::nullopt;
    return note_->facts[bit];
  }

  // Stores a fact for a successor. Does not replace a fact that is there: a repetition keeps what
  // the first attempt saw.
  void remember(Fact fact, std::uint64_t value) const {
    const auto bit = static_cast<unsigned>(fact);
    if (note_ == nullptr || (note_->known >> bit & 1) != 0) return;
    note_->facts[bit] = value;
    // The value must be there before the bit that says so.
    __atomic_store_n(&note_->known, note_->known | 1U << bit, __ATOMIC_RELEASE);
  }

 private:
  RequestNote* note_ = nullptr;
  bool is_repeated_ = false;
  bool must_not_wait_ = false;
};

}  // namespace sluice
