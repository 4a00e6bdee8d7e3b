// SPDX-License-Identifier: BSD-2-Clause
// A RequestNote makes it safe to repeat a request. If the daemon dies while it answers a request,
// its successor gets the request again and does not know how far the first attempt came. Most
// requests can simply be repeated. The others store a fact before the step that must not be done
// twice, and the successor compares:
//
//   if (const auto victim = remembered(Fact::Victim)) ... the name is gone: the unlink was done
//   remember(Fact::Victim, to_number(found.identity.id));
//   ::unlinkat(...)
//
// Notes are kept in memory that outlives the daemon (fs/core/handover.hpp), so a fact costs a
// store.
//
// Threads: a note belongs to the thread that answers the request. The functions use the note that
// CurrentNote has set for the calling thread; without one, remember() does nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace sluice {

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

namespace detail {
inline thread_local RequestNote* current_note = nullptr;
inline thread_local bool is_repeated = false;
// Read by a signal handler of the same thread.
inline thread_local std::uint64_t answered_request = 0;
}  // namespace detail

// The kernel's number of the request that the calling thread answers; 0: it is not known.
inline std::uint64_t current_request() {
  return detail::current_note == nullptr ? 0 : detail::current_note->unique;
}

// The same for a request without a note.
inline std::uint64_t answered_request() { return detail::answered_request; }

// True if an earlier daemon took this request from the kernel and ended before it answered.
inline bool is_repeated() { return detail::is_repeated; }

// The fact that the earlier daemon stored. Nothing if it had not come that far, or if the request
// is not a repetition.
inline std::optional<std::uint64_t> remembered(Fact fact) {
  const RequestNote* note = detail::current_note;
  const auto bit = static_cast<unsigned>(fact);
  if (!detail::is_repeated || note == nullptr || (note->known >> bit & 1) == 0) return std::nullopt;
  return note->facts[bit];
}

// Stores a fact for a successor. Does not replace a fact that is there: a repetition keeps what the
// first attempt saw.
inline void remember(Fact fact, std::uint64_t value) {
  RequestNote* note = detail::current_note;
  const auto bit = static_cast<unsigned>(fact);
  if (note == nullptr || (note->known >> bit & 1) != 0) return;
  note->facts[bit] = value;
  // The value must be there before the bit that says so.
  __atomic_store_n(&note->known, note->known | 1U << bit, __ATOMIC_RELEASE);
}

// Makes `note`, which may be null, the note of the calling thread until it is destroyed, and
// `unique` the number of the request that it answers.
class CurrentNote {
 public:
  CurrentNote(RequestNote* note, bool repeated, std::uint64_t unique = 0) {
    detail::current_note = note;
    detail::is_repeated = repeated;
    detail::answered_request = unique;
  }
  ~CurrentNote() {
    detail::current_note = nullptr;
    detail::is_repeated = false;
    detail::answered_request = 0;
  }
  CurrentNote(const CurrentNote&) = delete;
  CurrentNote& operator=(const CurrentNote&) = delete;
};

}  // namespace sluice
