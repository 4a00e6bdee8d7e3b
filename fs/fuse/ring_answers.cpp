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

// libfuse cancels its threads at the end, and closing a descriptor is a point where that would take
// effect: in a destructor it would end the process.
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

bool RingAnswers::lend(unsigned most) {
  if (!wake_ || away_.load() >= most) return false;
  away_.fetch_add(1);
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
  away_.fetch_sub(static_cast<unsigned>(sent.size()));
}

int RingAnswers::submit_and_wait(io_uring* ring, unsigned wanted) {
  // Mostly nothing is away, and one system call does it all.
  if (away_.load() == 0) return liburings_own()(ring, wanted);
  // libfuse ends this thread by an event of the ring, and by cancelling it. The first is enough,
  // and the second would unwind our frames.
  int cancel_state = 0;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  int result = io_uring_submit(ring);
  while (away_.load() > 0) {
    call_sent();
    if (io_uring_cq_ready(ring) >= wanted) break;
    std::array<pollfd, 2> events{{{ring->ring_fd, POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    ::poll(events.data(), events.size(), -1);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t woken = ::read(wake_.get(), &count, sizeof count);
  }
  ::pthread_setcancelstate(cancel_state, nullptr);
  // Nothing is away any more, and nothing has come: as above. libfuse copes with no event at all.
  return result;
}

}  // namespace sluice

// libfuse's call of liburing's function ends up here: a definition in the program comes before one
// in a shared library.
extern "C" __attribute__((visibility("default"))) int io_uring_submit_and_wait(io_uring* ring,
                                                                               unsigned wanted) {
  auto& answers = sluice::this_thread.answers;
  if (!answers) answers = std::make_shared<sluice::RingAnswers>();
  return answers->submit_and_wait(ring, wanted);
}
