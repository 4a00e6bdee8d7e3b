// SPDX-License-Identifier: BSD-2-Clause
#include "base/service_notice.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "base/unique_fd.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

// The service manager's socket; `name` as in $NOTIFY_SOCKET.
class Manager {
 public:
  explicit Manager(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof address.sun_path - 1);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~Manager() { ::unsetenv("NOTIFY_SOCKET"); }

  std::string heard() const {
    std::array<char, 256> text{};
    const ssize_t got = ::recv(socket_.get(), text.data(), text.size(), MSG_DONTWAIT);
    return got < 0 ? "nothing" : std::string(text.data(), static_cast<std::size_t>(got));
  }

 private:
  UniqueFd socket_;
};

TEST(ServiceNoticeTest, ReachesASocketInTheFilesystem) {
  const test::TempDir dir;
  const Manager manager(dir / "notify");
  EXPECT_TRUE(tell_service_manager("READY=1\nSTATUS=mounted"));
  EXPECT_EQ(manager.heard(), "READY=1\nSTATUS=mounted");
}

TEST(ServiceNoticeTest, ReachesAnAbstractSocket) {
  const Manager manager("@sluice-test-" + std::to_string(::getpid()));
  EXPECT_TRUE(tell_service_manager("STOPPING=1"));
  EXPECT_EQ(manager.heard(), "STOPPING=1");
}

TEST(ServiceNoticeTest, WithoutAServiceManagerItDoesNothing) {
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(tell_service_manager("READY=1"));
}

TEST(ServiceNoticeTest, AnUnreachableSocketIsAnError) {
  for (const auto& [name, code] : {std::pair{std::string("relative"), EINVAL},
                                   {"/" + std::string(200, 'x'), EINVAL},
                                   {"/no/such/socket", ENOENT}}) {
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    const auto sent = tell_service_manager("READY=1");
    ASSERT_FALSE(sent) << name;
    EXPECT_EQ(sent.error().code, code) << name;
  }
  ::unsetenv("NOTIFY_SOCKET");
}

// In a process of its own, because the descriptors have fixed numbers.
TEST(ServiceNoticeTest, StoredDescriptorsAreTakenOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    UniqueFd null(::open("/dev/null", O_RDWR));
    ::dup2(null.get(), 60);
    ::dup2(60, 3);
    ::dup2(60, 4);
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    ::setenv("LISTEN_FDS", "2", 1);
    ::setenv("LISTEN_FDNAMES", "fuse:state", 1);
    const NamedDescriptors taken = take_stored_descriptors();
    const bool ok = taken.size() == 2 && taken.at("fuse").get() == 3 &&
                    taken.at("state").get() == 4 && ::fcntl(4, F_GETFD) == FD_CLOEXEC &&
                    std::getenv("LISTEN_FDS") == nullptr && take_stored_descriptors().empty();
    ::setenv("LISTEN_PID", "1", 1);
    ::setenv("LISTEN_FDS", "1", 1);
    ::_exit(ok && take_stored_descriptors().empty() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace sluice
