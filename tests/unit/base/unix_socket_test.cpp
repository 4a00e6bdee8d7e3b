// SPDX-License-Identifier: BSD-2-Clause
#include "base/unix_socket.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

TEST(UnixSocketTest, CanHaveAPathLongerThanAnAddress) {
  test::TempDir dir;
  const std::string path = dir.make_dir(std::string(200, 'd')) + "/s.sock";
  const auto listening = listen_unix(path, 4);
  ASSERT_TRUE(listening) << listening.error().text();
  const auto connected = connect_unix(path);
  ASSERT_TRUE(connected) << connected.error().text();
  const UniqueFd accepted(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(::send(connected->get(), "x", 1, 0), 1);
  char got = 0;
  EXPECT_EQ(::recv(accepted.get(), &got, 1, 0), 1);
  EXPECT_EQ(got, 'x');
}

TEST(UnixSocketTest, IsPrivateWhateverTheUmaskIsAndReplacesAnOldFile) {
  test::TempDir dir;
  const std::string path = dir.make_file("s.sock", "left by an earlier one");
  const mode_t before = ::umask(0);
  const auto listening = listen_unix(path, 4);
  ::umask(before);
  ASSERT_TRUE(listening) << listening.error().text();
  EXPECT_EQ(test::lstat_of(path).st_mode, mode_t{S_IFSOCK | 0600});
}

TEST(UnixSocketTest, FailuresHaveTheRightErrno) {
  test::TempDir dir;
  EXPECT_TRUE(failed_with(connect_unix(dir / "none/s.sock"), ENOENT));
  EXPECT_TRUE(failed_with(connect_unix(dir / "s.sock"), ENOENT));
  EXPECT_TRUE(failed_with(listen_unix(dir / "none/s.sock", 1), ENOENT));
  EXPECT_TRUE(failed_with(listen_unix(dir / std::string(120, 's'), 1), ENAMETOOLONG));
  { ASSERT_TRUE(listen_unix(dir / "s.sock", 1)); }
  EXPECT_TRUE(failed_with(connect_unix(dir / "s.sock"), ECONNREFUSED));
}

}  // namespace
}  // namespace sluice
