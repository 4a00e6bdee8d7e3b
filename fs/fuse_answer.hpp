// SPDX-License-Identifier: BSD-2-Clause
// How a request is answered: exactly once, and with no exception past libfuse. For the sources that
// have libfuse's callbacks, fuse_ops.cpp and fuse_listing.cpp. Threads: any.
#pragma once

#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>

#include <cstring>
#include <exception>
#include <new>

#include "base/log.hpp"
#include "fs/filesystem.hpp"
#include "fs/fuse_ops.hpp"
#include "fs/session.hpp"

namespace sluice {

// fuse_listing.cpp: the callbacks for directories that are open.
void add_listing_operations(fuse_lowlevel_ops& operations);

inline Session& session(fuse_req_t request) {
  return *static_cast<Session*>(fuse_req_userdata(request));
}

// libfuse binds the thread of each io_uring queue to the queue's core. With few cores the
// application then wakes on another, idle one after each reply, and its next request on that core's
// queue, and so on: opening and creating files took half as long again (measured on 2 cores). Left
// to the scheduler, the threads stay where the work is. With many, libfuse's choice is left alone:
// an empty ioctl took 5 us with bound threads on 16 cores. Unbound, a 4 KiB GPU read of 28 us left
// some 15 for the way there and back; that binding makes the difference is a guess.
inline bool let_scheduler_place_thread(const Session& session) {
  constexpr int kFewCores = 4;
  return CPU_COUNT(&session.allowed_cores()) <= kFewCores &&
         ::sched_setaffinity(0, sizeof(cpu_set_t), &session.allowed_cores()) == 0;
}

inline Filesystem& filesystem(fuse_req_t request, fuse_opcode opcode) {
  Session& s = session(request);
  [[maybe_unused]] static thread_local const bool placed = let_scheduler_place_thread(s);
  s.count(opcode);
  return s.filesystem();
}

inline Caller caller(fuse_req_t request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  return {context->uid, context->gid, context->umask, context->pid};
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

// Runs one operation and replies exactly once. Nothing is thrown past here: libfuse is C.
template <typename Operation, typename Reply>
void answer(fuse_req_t request, Operation operation, Reply reply) noexcept {
  const NotCancelled whole;
  int code = EIO;
  try {
    auto result = operation();
    if (result) return reply(result);
    code = result.error().code;
    log::get().debug("refused: operation={} why={}", result.error().operation, std::strerror(code));
  } catch (const std::bad_alloc&) {
    code = ENOMEM;
  } catch (const std::exception& e) {
    log::get().critical("an operation failed in a way it must not: {}", e.what());
  }
  fuse_reply_err(request, code);
}

template <typename Operation>
void answer_done(fuse_req_t request, Operation operation) noexcept {
  answer(request, operation, [&](const auto&) { fuse_reply_err(request, 0); });
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
