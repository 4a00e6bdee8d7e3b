// SPDX-License-Identifier: BSD-2-Clause
// A NotedRequest exists while a thread answers a request, so that it is known in which request a
// thread crashed. Requests that a successor could not simply repeat, and those that it repeats, get
// a RequestNote, which exists until the reply is sent. If the reply is sent later by another
// thread, that thread takes the request over.
//
// A callback of libfuse finds it by the thread: no argument leads from Session to the callback.
//
// Threads: belongs to the thread that created it.
#pragma once

#include <linux/fuse.h>

#include <memory>
#include <utility>

#include "fs/core/inodes/handover.hpp"
#include "fs/core/inodes/kernel_request.hpp"

namespace sluice {

class NotedRequest {
 public:
  NotedRequest(Handover& handover, std::uint64_t unique, std::uint32_t opcode, bool repeated)
      : handover_(handover),
        note_(needs_note(opcode) || repeated ? handover.begin_note(unique, opcode, repeated)
                                             : nullptr),
        unique_(unique),
        request_(note_, repeated) {
    begin();
  }
  ~NotedRequest() {
    if (current == this) end();
    if (note_ != nullptr) handover_.end_note(note_);
  }
  NotedRequest(const NotedRequest&) = delete;
  NotedRequest& operator=(const NotedRequest&) = delete;

  // Takes over the calling thread's request, for another thread. nullptr if it has none.
  static std::shared_ptr<NotedRequest> take_current() {
    if (current == nullptr) return nullptr;
    NotedRequest& from = *current;
    from.end();
    return std::shared_ptr<NotedRequest>(new NotedRequest(from));
  }
  // Makes it the request of the calling thread.
  void begin() {
    current = this;
    Handover::set_answered(unique_);
  }
  void end() {
    current = nullptr;
    Handover::set_answered(0);
  }
  // Whether the calling thread answers a request.
  static bool is_answering() { return current != nullptr; }
  // What the core is told of the calling thread's request.
  static KernelRequest of_thread() {
    return current == nullptr ? KernelRequest{} : current->request_;
  }

 private:
  explicit NotedRequest(NotedRequest& from)
      : handover_(from.handover_),
        note_(std::exchange(from.note_, nullptr)),
        unique_(from.unique_),
        request_(from.request_) {}

  static bool needs_note(std::uint32_t opcode) {
    switch (opcode) {
      case FUSE_SYMLINK:
      case FUSE_MKNOD:
      case FUSE_MKDIR:
      case FUSE_UNLINK:
      case FUSE_RMDIR:
      case FUSE_RENAME:
      case FUSE_RENAME2:
      case FUSE_LINK:
      case FUSE_OPEN:
      case FUSE_OPENDIR:
      case FUSE_WRITE:
      case FUSE_SETXATTR:
      case FUSE_REMOVEXATTR:
      case FUSE_CREATE:
      case FUSE_TMPFILE:
      case FUSE_FALLOCATE:
        return true;
      default:
        return false;
    }
  }

  static inline thread_local NotedRequest* current = nullptr;

  Handover& handover_;
  RequestNote* note_;  // may be null
  const std::uint64_t unique_;
  const KernelRequest request_;
};

}  // namespace sluice
