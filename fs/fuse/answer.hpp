// SPDX-License-Identifier: BSD-2-Clause
// Helpers for libfuse's callbacks (operations.cpp, bytes.cpp, listing.cpp). They reply to each
// request exactly once, and let no exception escape into libfuse, which is C.
//
// Threads: thread-safe.
#pragma once

#include <linux/fuse.h>

#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>

#include "base/log.hpp"
#include "fs/core/filesystem.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/fuse/noted_request.hpp"
#include "fs/fuse/operations.hpp"
#include "fs/fuse/session.hpp"

namespace sluice {

// bytes.cpp: the callbacks for the bytes of open files.
void add_bytes_operations(fuse_lowlevel_ops& operations);
// listing.cpp: the callbacks for open directories.
void add_listing_operations(fuse_lowlevel_ops& operations);

inline Session& session(fuse_req_t request) {
  return *static_cast<Session*>(fuse_req_userdata(request));
}

inline Filesystem& filesystem(fuse_req_t request, fuse_opcode opcode) {
  Session& s = session(request);
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

// Runs the operation, which may take the request, and turns exceptions into errors.
template <typename Operation>
auto outcome_of(Operation& operation, const KernelRequest& request) noexcept {
  const auto run = [&] {
    if constexpr (std::is_invocable_v<Operation&, const KernelRequest&>) {
      return operation(request);
    } else {
      return operation();
    }
  };
  using Outcome = decltype(run());
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return Outcome(Error(ENOMEM, "run an operation"));
  } catch (const std::exception& e) {
    log::get().critical("unexpected exception in an operation: what={}", e.what());
    return Outcome(Error(EIO, "run an operation"));
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
  auto outcome = outcome_of(operation, NotedRequest::of_thread());
  reply_outcome(request, outcome, reply);
}

// Runs `start(work)`, which makes another thread run `work`. `work` runs the operation and replies.
template <typename Operation, typename Reply, typename Start>
void answer_later(fuse_req_t request, Operation operation, Reply reply, Start start) noexcept {
  try {
    auto work = [request, operation, reply, noted = NotedRequest::take_current(),
                 timer = RequestTimer::take_current(), caller = current_caller()]() mutable {
      const CurrentCaller now(caller);
      if (noted) noted->begin();
      auto outcome = outcome_of(operation, NotedRequest::of_thread());
      reply_outcome(request, outcome, reply);
      if (noted) noted->end();
      timer.reset();
    };
    const auto shared = std::make_shared<decltype(work)>(std::move(work));
    try {
      start([shared] { (*shared)(); });
    } catch (const std::exception&) {
      (*shared)();  // no memory, or no thread could be started
    }
  } catch (const std::bad_alloc&) {
    fuse_reply_err(request, ENOMEM);
  }
}

// The same for operations that may take long: another thread runs the operation and replies, and
// this one continues with other requests. Both functions must own what they use.
template <typename Operation, typename Reply>
void answer_by(SlowRequests& threads, fuse_req_t request, Operation operation,
               Reply reply) noexcept {
  answer_later(request, operation, reply, [request, &threads](std::function<void()> work) {
    threads.add(fuse_req_ctx(request)->uid, std::move(work));
  });
}
template <typename Operation, typename Reply>
void answer_slowly(fuse_req_t request, Operation operation, Reply reply) noexcept {
  answer_by(session(request).slow_requests(), request, operation, reply);
}

// The same for operations that add bytes to a file. If the file must wait until a budget has room
// for it, no thread waits.
template <typename Operation, typename Reply>
void answer_when_room(fuse_req_t request, InodeId file, Operation operation, Reply reply) noexcept {
  answer_later(request, operation, reply, [request, file](std::function<void()> work) {
    Session& s = session(request);
    const uid_t user = fuse_req_ctx(request)->uid;
    s.filesystem().budgets().when_room(file, user, [&s, user, work = std::move(work)] {
      try {
        s.slow_requests().add(user, work);
      } catch (const std::exception&) {
        work();
      }
    });
  });
}

// The same for operations that rarely wait: this thread runs the operation. If it would have to
// wait, another thread runs it again from the start.
template <typename Operation, typename Reply>
void answer_or_defer(fuse_req_t request, Operation operation, Reply reply) noexcept {
  auto outcome = outcome_of(operation, NotedRequest::of_thread().without_waiting());
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
