// SPDX-License-Identifier: BSD-2-Clause
// How a request is answered: exactly once, and with no exception past libfuse. For the sources that
// have libfuse's callbacks, fuse_*.cpp. Threads: any.
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

// fuse_bytes.cpp: the callbacks for the bytes of open files.
void add_bytes_operations(fuse_lowlevel_ops& operations);
// fuse_listing.cpp: those for directories that are open.
void add_listing_operations(fuse_lowlevel_ops& operations);

inline Session& session(fuse_req_t request) {
  return *static_cast<Session*>(fuse_req_userdata(request));
}

// The first thing that a thread of libfuse's does for us, with its first request.
//
// libfuse binds the thread of each io_uring queue to the queue's core. With few cores the
// application then wakes on another, idle one after each reply, and its next request on that core's
// queue, and so on: opening and creating files took half as long again (measured on 2 cores). Left
// to the scheduler, the threads stay where the work is. With many, libfuse's choice is left alone:
// an empty ioctl took 5 us with bound threads on 16 cores. Unbound, a 4 KiB GPU read of 28 us left
// some 15 for the way there and back; that binding makes the difference is a guess.
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

// For whom setuid bits must go, if they must.
inline std::optional<Caller> stripped(fuse_req_t request, bool kill) {
  return kill ? std::optional(caller(request)) : std::nullopt;
}

// At the end libfuse cancels its io_uring threads, and a thread that waits inside an operation
// would be unwound through it, up to a noexcept.
class NotCancelled {
 public:
  NotCancelled() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { ::pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = 0;
};

// What an operation gave. Nothing is thrown past here: libfuse is C.
template <typename Operation>
auto outcome_of(Operation& operation) noexcept -> decltype(operation()) {
  try {
    return operation();
  } catch (const std::bad_alloc&) {
    return Error(ENOMEM, "an operation");
  } catch (const std::exception& e) {
    log::get().critical("an operation failed in a way it must not: {}", e.what());
    return Error(EIO, "an operation");
  }
}

template <typename Outcome, typename Reply>
void reply_outcome(fuse_req_t request, Outcome& outcome, Reply& reply) noexcept {
  int code = EIO;
  try {
    if (outcome) return reply(outcome);
    code = outcome.error().code;
    log::get().debug("refused: operation={} why={}", outcome.error().operation,
                     std::strerror(code));
  } catch (const std::bad_alloc&) {
    code = ENOMEM;
  } catch (const std::exception& e) {
    log::get().critical("an operation failed in a way it must not: {}", e.what());
  }
  fuse_reply_err(request, code);
}

// Runs one operation and replies exactly once.
template <typename Operation, typename Reply>
void answer(fuse_req_t request, Operation operation, Reply reply) noexcept {
  const NotCancelled whole;
  auto outcome = outcome_of(operation);
  reply_outcome(request, outcome, reply);
}

// The same for what may take long: another thread runs the operation, so that this one can go on
// with the requests of others. Both functions must own what they use. With too many such requests
// of one queue at a time it is this thread after all: see Session::most_lent().
template <typename Operation, typename Reply>
void answer_slowly(fuse_req_t request, Operation operation, Reply reply) noexcept {
  Session& s = session(request);
  std::shared_ptr<RingAnswers> queue;
  if (fuse_req_is_uring(request)) {
    queue = RingAnswers::of_this_thread();
    if (!queue || !queue->lend(s.most_lent())) return answer(request, operation, reply);
  }
  auto work = [request, queue, operation, reply]() mutable {
    auto outcome = std::make_shared<decltype(operation())>(outcome_of(operation));
    auto send = [request, outcome, reply]() mutable { reply_outcome(request, *outcome, reply); };
    queue ? queue->send(send) : send();
  };
  try {
    s.slow_requests().add(fuse_req_ctx(request)->uid, work);
  } catch (const std::exception&) {
    work();  // no memory, or no thread
  }
}

// The same for what hardly ever takes long: this thread runs the operation, and another one does so
// again if it would have to wait.
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
