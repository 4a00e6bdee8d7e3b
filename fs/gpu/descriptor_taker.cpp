// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/descriptor_taker.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/process.hpp"
#include "base/thread.hpp"
#include "base/unix_socket.hpp"

namespace sluice {
namespace {

// How long the thread may take to answer. It never blocks; a thread that does not answer in time is
// replaced.
constexpr int kAnswerTimeoutMs = 1000;

// What to take. The pidfd and the socket for the answer are sent with it.
struct Request {
  int fd = -1;
  uid_t user = 0;
};

// The answer: an errno; if that is 0, the descriptor is sent with it.
struct Answer {
  int code = 0;
};

// False: errno tells why.
template <typename Body>
bool send_message(int socket, const Body& body, std::span<const int> fds) {
  const auto sent = send_with_fds(socket, std::as_bytes(std::span(&body, 1)), fds);
  return sent && *sent == sizeof body;
}

// Empty if the other side has closed (errno is 0) or after an error. Descriptors that were not sent
// stay empty.
template <typename Body, std::size_t N>
std::optional<Body> receive_message(int socket, std::array<UniqueFd, N>& fds) {
  Body body;
  std::vector<UniqueFd> came;
  const auto got = receive_with_fds(socket, std::as_writable_bytes(std::span(&body, 1)), came);
  for (std::size_t i = 0; i < std::min(N, came.size()); ++i) fds[i] = std::move(came[i]);
  if (got && *got == 0) errno = 0;
  if (!got || *got != sizeof body) return std::nullopt;
  return body;
}

// This asks no filesystem except the kernel's own: F_GET_SEALS works only for shared memory, and
// statx() returns the cached type. Drivers export device files or, as for DMA buffers, files
// without a type.
bool can_not_block(int fd) {
  if (::fcntl(fd, F_GET_SEALS) >= 0) return true;
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) < 0) return false;
  return S_ISCHR(status.stx_mode) || (status.stx_mode & S_IFMT) == 0;
}

}  // namespace

// The new thread shares the caller's table, so nothing is copied for it.
void DescriptorTaker::close_elsewhere(UniqueFd taken, uid_t user, const HangingPtr& hanging) {
  const auto close_it = [user, hanging](UniqueFd fd) {
    begin_thread(kTakeThread, ThreadKind::Serving);
    fd.reset();  // may block forever
    MutexLock lock(hanging->mutex);
    --hanging->of_all;
    if (--hanging->of_user[user] == 0) hanging->of_user.erase(user);
  };
  const int number = taken.release();
  try {
    std::thread([=] { close_it(UniqueFd(number)); }).detach();
  } catch (const std::system_error&) {
    close_it(UniqueFd(number));  // the next caller gets no answer and replaces this thread
  }
}

void DescriptorTaker::work(int requests, const HangingPtr& hanging) {
  for (;;) {
    std::array<UniqueFd, 2> came;
    const auto request = receive_message<Request>(requests, came);
    if (!request && errno == 0) break;
    const auto& [process, answer] = came;
    if (!request || !process || !answer) continue;
    // pidfd_getfd, which glibc 2.36 does not have; the number is the same on every architecture.
    UniqueFd taken(static_cast<int>(::syscall(438, process.get(), request->fd, 0)));
    if (!taken) {
      send_message(answer.get(), Answer{errno}, {});
      continue;
    }
    if (can_not_block(taken.get())) {
      const int fd = taken.get();
      if (!send_message(answer.get(), Answer{0}, {&fd, 1}))
        send_message(answer.get(), Answer{errno}, {});
      continue;
    }
    {
      MutexLock lock(hanging->mutex);
      ++hanging->of_user[request->user];
      ++hanging->of_all;
    }
    send_message(answer.get(), Answer{EINVAL}, {});
    close_elsewhere(std::move(taken), request->user, hanging);
  }
  ::close(requests);
}

Result<DescriptorTaker::RequestsPtr> DescriptorTaker::requests() {
  MutexLock lock(mutex_);
  if (requests_) return requests_;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
    return Error::last("take a descriptor");
  }
  const auto ours = std::make_shared<UniqueFd>(ends[0]);
  UniqueFd theirs(ends[1]);
  const timeval timeout{.tv_sec = kAnswerTimeoutMs / 1000, .tv_usec = 0};
  ::setsockopt(ours->get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  // The thread's end stays open in our table until the thread has its own table.
  int started[2];
  if (::pipe2(started, O_CLOEXEC) < 0) return Error::last("take a descriptor");
  const UniqueFd told(started[0]);
  UniqueFd tell(started[1]);
  try {
    // Not joined, because it may hang.
    std::thread([end = theirs.get(), tell = tell.get(), hanging = hanging_] {
      begin_thread(kTakerThread, ThreadKind::Serving);
      if (::unshare(CLONE_FILES) < 0) {
        const char failed = 1;
        [[maybe_unused]] const ssize_t put = ::write(tell, &failed, 1);
        return;
      }
      const char ready = 0;
      [[maybe_unused]] const ssize_t put = ::write(tell, &ready, 1);
      close_all_but(end);
      work(end, hanging);
    }).detach();
  } catch (const std::system_error&) {
    return Error(EAGAIN, "start a thread");
  }
  char failed = 1;
  ssize_t got = 0;
  do {
    got = ::read(told.get(), &failed, 1);
  } while (got < 0 && errno == EINTR);
  if (failed != 0) return Error(EAGAIN, "start a thread");
  requests_ = ours;
  return ours;
}

void DescriptorTaker::replace(const RequestsPtr& silent) {
  MutexLock lock(mutex_);
  if (requests_ != silent) return;
  requests_ = nullptr;
  log::get().warn("replacing the thread that takes descriptors: it does not answer");
}

Result<UniqueFd> DescriptorTaker::take(const UniqueFd& process, int fd, uid_t user) {
  {
    MutexLock lock(hanging_->mutex);
    const auto mine = hanging_->of_user.find(user);
    if (hanging_->of_all >= kMostOfAll ||
        (mine != hanging_->of_user.end() && mine->second >= kMostOfUser)) {
      return Error(EBUSY, "too many refused descriptors hang in close()");
    }
  }
  const RequestsPtr to = SLUICE_TRY(requests());
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
    return Error::last("take a descriptor");
  }
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const std::array<int, 2> fds{process.get(), theirs.get()};
  if (!send_message(to->get(), Request{fd, user}, fds)) {
    const int code = errno;
    replace(to);
    return Error(code == EAGAIN ? EBUSY : code, "take a descriptor");
  }
  theirs.reset();  // so that the end of the other side is noticed
  pollfd answered{ours.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&answered, 1, kAnswerTimeoutMs);
  } while (ready < 0 && errno == EINTR);
  std::array<UniqueFd, 1> taken;
  const auto answer = ready == 1 ? receive_message<Answer>(ours.get(), taken) : std::nullopt;
  if (!answer) {
    replace(to);
    return Error(EBUSY, "take a descriptor");
  }
  if (answer->code == EINVAL) {
    return Error(EINVAL, "the descriptor is neither memory nor a device");
  }
  if (answer->code != 0) return Error(answer->code, "take a descriptor");
  if (!taken[0]) return Error(EMFILE, "take a descriptor");
  return std::move(taken[0]);
}

unsigned DescriptorTaker::hanging() const {
  MutexLock lock(hanging_->mutex);
  return hanging_->of_all;
}

}  // namespace sluice
