// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/ring_answers.hpp"

#include <dlfcn.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace sluice {
namespace {

// When the session ends, libfuse cancels its threads. Closing a descriptor is a cancellation point,
// and a cancellation in a destructor would end the process.
struct ThisThread {
  std::shared_ptr<RingAnswers> answers;

  ~ThisThread() {
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    answers.reset();
  }
};
thread_local ThisThread this_thread;

using SubmitAndWait = int (*)(io_uring*, unsigned);

SubmitAndWait liburings_own() {
  static const auto own =
      reinterpret_cast<SubmitAndWait>(::dlsym(RTLD_NEXT, "io_uring_submit_and_wait"));
  return own;
}

}  // namespace

RingAnswers::RingAnswers() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

std::shared_ptr<RingAnswers> RingAnswers::of_this_thread() { return this_thread.answers; }

bool RingAnswers::defer(unsigned most) {
  if (!wake_ || deferred_.load() >= most) return false;
  deferred_.fetch_add(1);
  return true;
}

void RingAnswers::send(std::function<void()> answer) {
  {
    MutexLock lock(mutex_);
    sent_.push_back(std::move(answer));
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof one);
}

void RingAnswers::call_sent() {
  std::vector<std::function<void()>> sent;
  {
    MutexLock lock(mutex_);
    sent.swap(sent_);
  }
  for (const auto& answer : sent) answer();
  deferred_.fetch_sub(static_cast<unsigned>(sent.size()));
}

int RingAnswers::submit_and_wait(io_uring* ring, unsigned wanted) {
  // Usually no request is deferred, and one system call is enough.
  if (deferred_.load() == 0) return liburings_own()(ring, wanted);
  // libfuse ends this thread by an event of the ring and by cancelling it. The event is enough, and
  // the cancellation would unwind our stack frames.
  int cancel_state = 0;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  int result = io_uring_submit(ring);
  while (deferred_.load() > 0) {
    call_sent();
    if (io_uring_cq_ready(ring) >= wanted) break;
    std::array<pollfd, 2> events{{{ring->ring_fd, POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    ::poll(events.data(), events.size(), -1);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t woken = ::read(wake_.get(), &count, sizeof count);
  }
  ::pthread_setcancelstate(cancel_state, nullptr);
  // No request is deferred any more, and perhaps no event has come. libfuse handles that and calls
  // again.
  return result;
}

}  // namespace sluice

// libfuse calls this function instead of liburing's, because a definition in the program takes
// precedence over one in a shared library.
extern "C" __attribute__((visibility("default"))) int io_uring_submit_and_wait(io_uring* ring,
                                                                               unsigned wanted) {
  auto& answers = sluice::this_thread.answers;
  if (!answers) answers = std::make_shared<sluice::RingAnswers>();
  return answers->submit_and_wait(ring, wanted);
}
