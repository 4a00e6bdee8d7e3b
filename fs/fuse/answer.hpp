// SPDX-License-Identifier: BSD-2-Clause
// Helpers for libfuse's callbacks (operations.cpp, bytes.cpp, listing.cpp). They reply to each
// request exactly once, and let no exception escape into libfuse, which is C.
//
// Threads: thread-safe.
#pragma once

#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>

#include <cstring>
#include <exception>
#include <new>

#include "base/crash.hpp"
#include "base/log.hpp"
#include "fs/core/filesystem.hpp"
#include "fs/core/no_waiting.hpp"
#include "fs/fuse/operations.hpp"
#include "fs/fuse/ring_answers.hpp"
#include "fs/fuse/session.hpp"

namespace sluice {

// bytes.cpp: the callbacks for the bytes of open files.
void add_bytes_operations(fuse_lowlevel_ops& operations);
// listing.cpp: the callbacks for open directories.
void add_listing_operations(fuse_lowlevel_ops& operations);

inline Session& session(fuse_req_t request) {
  return *static_cast<Session*>(fuse_req_userdata(request));
}

// Prepares a thread of libfuse, at its first request. True if its CPU affinity was changed.
//
// libfuse binds the thread of each io_uring queue to the queue's core. If there are few cores, the
// application then wakes up on another, idle core after each reply, sends its next request to that
// core's queue, and so on. This made opening and creating files take 1.5 times as long (measured on
// 2 cores). Without the binding, the scheduler keeps the threads where the work is. If there are
// many cores, the binding is kept: on 16 cores an empty ioctl took 5 us with bound threads. Without
// binding, about 15 us of a 4 KiB GPU read of 28 us were spent on the request itself; that the
// binding causes this difference is a guess.
inline bool begin_fuse_thread(const Session& session) {
  constexpr int kFewCores = 4;
  ensure_signal_stack();
  return CPU_COUNT(&session.allowed_cores()) <= kFewCores &&
         ::sched_setaffinity(0, sizeof(cpu_set_t), &session.allowed_cores()) == 0;
}

inline Filesystem& filesystem(fuse_req_t request, fuse_opcode opcode) {
  Session& s = session(request);
  [[maybe_unused]] static thread_local const bool begun = begin_fuse_thread(s);
  s.count(opcode);
  return s.filesystem();
}

inline Caller caller(fuse_req_t request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  return {context->uid, context->gid, context->umask, context->pid};
}

// The caller, if the request must clear setuid bits.
inline std::optional<Caller> stripped(fuse_req_t request, bool kill) {
  return kill ? std::optional(caller(request)) : std::nullopt;
}

// Disables cancellation of the calling thread. When the session ends, libfuse cancels its io_uring
// threads. A thread that waits inside an operation would be unwound into a noexcept function, which
// ends the process.
class NotCancelled {
 public:
  NotCancelled() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { ::pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = 0;
};

// Runs the operation and turns exceptions into errors.
template <typename Operation>
auto outcome_of(Operation& operation) noexcept -> decltype(operation()) {
  try {
    return operation();
  } catch (const std::bad_alloc&) {
    return Error(ENOMEM, "run an operation");
  } catch (const std::exception& e) {
    log::get().critical("unexpected exception in an operation: what={}", e.what());
    return Error(EIO, "run an operation");
  }
}

template <typename Outcome, typename Reply>
void reply_outcome(fuse_req_t request, Outcome& outcome, Reply& reply) noexcept {
  int code = EIO;
  try {
    if (outcome) return reply(outcome);
    code = outcome.error().code;
    log::get().debug("request failed: operation={} why={}", outcome.error().operation,
                     std::strerror(code));
  } catch (const std::bad_alloc&) {
    code = ENOMEM;
  } catch (const std::exception& e) {
    log::get().critical("unexpected exception in an operation: what={}", e.what());
  }
  fuse_reply_err(request, code);
}

// Runs the operation and replies.
template <typename Operation, typename Reply>
void answer(fuse_req_t request, Operation operation, Reply reply) noexcept {
  const NotCancelled whole;
  auto outcome = outcome_of(operation);
  reply_outcome(request, outcome, reply);
}

// The same for operations that may take long: another thread runs the operation, and this one
// continues with other requests. Both functions must own what they use. If the queue has too many
// such requests already, this thread runs the operation; see Session::most_lent().
template <typename Operation, typename Reply>
void answer_slowly(fuse_req_t request, Operation operation, Reply reply) noexcept {
  Session& s = session(request);
  std::shared_ptr<RingAnswers> queue;
  if (fuse_req_is_uring(request)) {
    queue = RingAnswers::of_this_thread();
    if (!queue || !queue->defer(s.most_lent())) return answer(request, operation, reply);
  }
  auto work = [request, queue, operation, reply]() mutable {
    auto outcome = std::make_shared<decltype(operation())>(outcome_of(operation));
    auto send = [request, outcome, reply]() mutable { reply_outcome(request, *outcome, reply); };
    queue ? queue->send(send) : send();
  };
  try {
    s.slow_requests().add(fuse_req_ctx(request)->uid, work);
  } catch (const std::exception&) {
    work();  // no memory, or no thread could be started
  }
}

// The same for operations that rarely wait: this thread runs the operation. If it would have to
// wait, another thread runs it again from the start.
template <typename Operation, typename Reply>
void answer_or_defer(fuse_req_t request, Operation operation, Reply reply) noexcept {
  const NotCancelled whole;
  auto outcome = [&] {
    const NoWaiting now;
    return outcome_of(operation);
  }();
  if (!outcome && outcome.error().code == kWouldWait)
    return answer_slowly(request, operation, reply);
  reply_outcome(request, outcome, reply);
}

template <typename Operation>
void answer_done(fuse_req_t request, Operation operation) noexcept {
  answer(request, operation, [&](const auto&) { fuse_reply_err(request, 0); });
}

template <typename Operation>
void answer_done_or_defer(fuse_req_t request, Operation operation) noexcept {
  answer_or_defer(request, operation, [request](const auto&) { fuse_reply_err(request, 0); });
}

template <typename Operation>
void answer_done_slowly(fuse_req_t request, Operation operation) noexcept {
  answer_slowly(request, operation, [request](const auto&) { fuse_reply_err(request, 0); });
}

inline fuse_entry_param to_wire(const Entry& entry) {
  fuse_entry_param out{};
  out.ino = to_number(entry.id);
  out.generation = entry.generation;
  out.attr = entry.st;
  out.attr_timeout = entry.attribute_seconds;
  out.entry_timeout = entry.entry_seconds;
  return out;
}

template <typename Operation>
void answer_entry(fuse_req_t request, Operation operation) noexcept {
  answer(request, operation, [&](const Result<Entry>& entry) {
    const fuse_entry_param out = to_wire(*entry);
    fuse_reply_entry(request, &out);
  });
}

}  // namespace sluice
