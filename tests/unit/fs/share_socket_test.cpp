// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/share_socket.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "base/unix_socket.hpp"
#include "tests/support/files.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"
#include "tests/support/wait.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

class ShareSocketTest : public testing::Test {
 protected:
  std::string path() const { return dir_ / "run" + "/sluice/share.sock"; }
  void SetUp() override { ASSERT_EQ(::mkdir((dir_ / "run").c_str(), 0755), 0); }
  static bool good() { return true; }
  static UniqueFd memory() { return UniqueFd(::memfd_create("memory", MFD_CLOEXEC)); }
  static ino_t inode_of(const UniqueFd& fd) {
    struct stat status {};
    return ::fstat(fd.get(), &status) == 0 ? status.st_ino : 0;
  }
  // What the server answers: "fd INODE", the name of an error, or "closed".
  static std::string exchange(const std::string& path, const void* bytes, std::size_t size) {
    const auto socket = connect_unix(path);
    if (!socket) return "no connection";
    ::send(socket->get(), bytes, size, MSG_NOSIGNAL);
    ::shutdown(socket->get(), SHUT_WR);
    sluice_share_reply reply{};
    std::vector<UniqueFd> fds;
    const auto got =
        receive_with_fds(socket->get(), std::as_writable_bytes(std::span(&reply, 1)), fds);
    if (!got || *got != sizeof reply) return "closed";
    if (reply.error != 0)
      return fds.empty() ? test::errno_name(static_cast<int>(reply.error)) : "leaked";
    const std::string first = "fd " + std::to_string(fds.empty() ? 0 : inode_of(fds.front()));
    const auto verdict =
        receive_with_fds(socket->get(), std::as_writable_bytes(std::span(&reply, 1)), fds);
    if (!verdict || *verdict != sizeof reply) return first + ", no verdict";
    return first + (reply.error != 0 ? ", bad" : "");
  }
  std::string exchange(const ShareSocket::Token& token) const {
    return exchange(path(), token.data(), token.size());
  }

  test::TempDir dir_;
};

TEST_F(ShareSocketTest, TellsWhetherTheMemoryIsGood) {
  ShareSocket socket(path());
  UniqueFd fd = memory();
  const std::string expected = "fd " + std::to_string(inode_of(fd));
  const auto token = socket.offer(::getuid(), std::move(fd), [] { return false; });
  ASSERT_TRUE(token);
  EXPECT_EQ(exchange(*token), expected + ", bad");
}

TEST_F(ShareSocketTest, ATokenIsGoodOnce) {
  ShareSocket socket(path());
  UniqueFd fd = memory();
  const std::string expected = "fd " + std::to_string(inode_of(fd));
  const auto token = socket.offer(::getuid(), std::move(fd), good);
  ASSERT_TRUE(token);
  const auto other = socket.offer(::getuid(), memory(), good);
  ASSERT_TRUE(other);
  EXPECT_NE(*token, *other);
  EXPECT_EQ(exchange(*token), expected);
  EXPECT_EQ(exchange(*token), "ENOENT");
  EXPECT_EQ(socket.tokens(), 1u);
}

TEST_F(ShareSocketTest, ATokenEnds) {
  ShareSocket socket(path(), 1ms);
  const auto token = socket.offer(::getuid(), memory(), good);
  ASSERT_TRUE(token);
  // Its memory is released without any request.
  EXPECT_TRUE(test::eventually([&] { return socket.tokens() == 0; }));
  EXPECT_EQ(exchange(*token), "ENOENT");
}

TEST_F(ShareSocketTest, ATokenIsForItsUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "root can become other users";
  ASSERT_EQ(::chmod((dir_ / "").c_str(), 0755), 0);
  ShareSocket socket(path());
  const auto token = socket.offer(test::kAlice.uid, memory(), good);
  ASSERT_TRUE(token);
  EXPECT_EQ(test::as_user(test::kBob, [&] { return exchange(*token); }), "ENOENT");
  EXPECT_EQ(exchange(*token), "ENOENT") << "root is another user, too";
  EXPECT_EQ(test::as_user(test::kAlice, [&] { return exchange(*token).substr(0, 2); }), "fd");
}

TEST_F(ShareSocketTest, TokensAreLimited) {
  ShareSocket socket(path());
  for (std::size_t i = 0; i < ShareSocket::kMostOfUser; ++i) {
    ASSERT_TRUE(socket.offer(1000, memory(), good));
  }
  EXPECT_TRUE(failed_with(socket.offer(1000, memory(), good), EBUSY));
  for (uid_t user = 1001; socket.tokens() < ShareSocket::kMostOfAll; ++user) {
    for (std::size_t i = 0; i < ShareSocket::kMostOfUser; ++i) {
      ASSERT_TRUE(socket.offer(user, memory(), good));
    }
  }
  EXPECT_TRUE(failed_with(socket.offer(2000, memory(), good), EBUSY));
}

TEST_F(ShareSocketTest, SilentConnectionsEnd) {
  ShareSocket socket(path());
  const auto token = socket.offer(::getuid(), memory(), good);
  ASSERT_TRUE(token);
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < ShareSocket::kConnectionsOfUser; ++i) {
    auto connection = connect_unix(path());
    ASSERT_TRUE(connection);
    ::send(connection->get(), token->data(), i, MSG_NOSIGNAL);
    silent.push_back(*std::move(connection));
  }
  EXPECT_TRUE(test::eventually([&] { return exchange(*token).starts_with("fd"); }));
}

// Nothing that is sent harms the server, or gets a descriptor.
TEST_F(ShareSocketTest, GarbageIsHarmless) {
  ShareSocket socket(path());
  const auto token = socket.offer(::getuid(), memory(), good);
  ASSERT_TRUE(token);
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < 2000; ++i) {
    std::array<std::uint8_t, 64> bytes{};
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    // Often nearly the token.
    if (random() % 2 == 0) {
      std::copy(token->begin(), token->end(), bytes.begin());
      bytes[random() % token->size()] ^= static_cast<std::uint8_t>(1 << random() % 8);
    }
    const std::size_t size = random() % bytes.size();
    const std::string answer = exchange(path(), bytes.data(), size);
    EXPECT_TRUE(answer == "ENOENT" || answer == "closed") << answer << " " << size;
  }
  EXPECT_EQ(exchange(*token).substr(0, 2), "fd");
}

TEST_F(ShareSocketTest, TheSocketGoesWithTheServer) {
  {
    ShareSocket socket(path());
    EXPECT_NE(::access(path().c_str(), F_OK), 0) << "made before it is needed";
    ASSERT_TRUE(socket.offer(::getuid(), memory(), good));
    struct stat status {};
    ASSERT_EQ(::stat(path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0666u);
  }
  EXPECT_NE(::access((dir_ / "run" + "/sluice").c_str(), F_OK), 0);
  ShareSocket nowhere("");
  EXPECT_TRUE(failed_with(nowhere.offer(::getuid(), memory(), good), EOPNOTSUPP));
}

}  // namespace
}  // namespace sluice
