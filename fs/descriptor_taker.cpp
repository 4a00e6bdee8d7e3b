// SPDX-License-Identifier: BSD-2-Clause
#include "fs/descriptor_taker.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/thread.hpp"

namespace sluice {
namespace {

// The message from the thread that takes to the one that asked: an errno, and if that is 0 the
// descriptor.
struct Message {
  int code = 0;
  iovec data{&code, sizeof code};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{nullptr, 0, &data, 1, nullptr, 0, 0};

  void allow_descriptor() {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

void answer_with(int socket, int code, int fd = -1) {
  Message message;
  message.code = code;
  if (fd >= 0) {
    message.allow_descriptor();
    cmsghdr* const part = CMSG_FIRSTHDR(&message.header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message.header, 0) < 0 && fd >= 0) answer_with(socket, errno);
}

Result<UniqueFd> wait_for_answer(const UniqueFd& socket) {
  Message message;
  message.allow_descriptor();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return Error::last("take a descriptor");
  if (message.code == EINVAL) {
    return Error(EINVAL, "a descriptor that is neither memory nor a device");
  }
  if (message.code != 0) return Error(message.code, "take a descriptor");
  const cmsghdr* const part = CMSG_FIRSTHDR(&message.header);
  if (part == nullptr) return Error(EMFILE, "take a descriptor");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
  return UniqueFd(fd);
}

void close_all_but(int one, int other) {
  const auto close_from = [](int first, unsigned last) {
    if (static_cast<unsigned>(first) <= last) ::close_range(static_cast<unsigned>(first), last, 0);
  };
  const auto [low, high] = std::minmax(one, other);
  if (low > 0) close_from(0, static_cast<unsigned>(low - 1));
  close_from(low + 1, static_cast<unsigned>(high - 1));
  close_from(high + 1, ~0u);
}

// Asks no filesystem but the kernel's own: F_GET_SEALS is for shared memory only, and statx() tells
// the type as it is known. Drivers export device files or, as DMA buffers are, files without a
// type.
bool can_not_block(int fd) {
  if (::fcntl(fd, F_GET_SEALS) >= 0) return true;
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) < 0) return false;
  return S_ISCHR(status.stx_mode) || (status.stx_mode & S_IFMT) == 0;
}

}  // namespace

void DescriptorTaker::work(int process, int fd, int answer, uid_t user, Hanging& hanging) {
  begin_thread("sluice-take");
  if (::unshare(CLONE_FILES) < 0) return answer_with(answer, errno);
  close_all_but(process, answer);
  // pidfd_getfd, which glibc 2.36 lacks; the number is the same on every architecture.
  UniqueFd taken(static_cast<int>(::syscall(438, process, fd, 0)));
  if (!taken) return answer_with(answer, errno);
  if (can_not_block(taken.get())) return answer_with(answer, 0, taken.get());
  {
    MutexLock lock(hanging.mutex);
    ++hanging.of_user[user];
    ++hanging.of_all;
  }
  answer_with(answer, EINVAL);
  taken.reset();  // may last for ever
  MutexLock lock(hanging.mutex);
  --hanging.of_all;
  if (--hanging.of_user[user] == 0) hanging.of_user.erase(user);
}

Result<UniqueFd> DescriptorTaker::take(const UniqueFd& process, int fd, uid_t user) {
  {
    MutexLock lock(hanging_->mutex);
    const auto mine = hanging_->of_user.find(user);
    if (hanging_->of_all >= kMostOfAll ||
        (mine != hanging_->of_user.end() && mine->second >= kMostOfUser)) {
      return Error(EBUSY, "too many refused descriptors that can't be closed");
    }
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0) {
    return Error::last("take a descriptor");
  }
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  try {
    // Not joined, for it may hang; its table is its own before it answers.
    std::thread([=, process = process.get(), answer = theirs.get(), hanging = hanging_] {
      work(process, fd, answer, user, *hanging);
    }).detach();
  } catch (const std::system_error&) {
    return Error(EAGAIN, "start a thread");
  }
  return wait_for_answer(ours);
}

}  // namespace sluice
