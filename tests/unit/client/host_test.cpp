// SPDX-License-Identifier: BSD-2-Clause
// Requests with host memory, without CUDA.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <thread>

#include "tests/support/child.hpp"
#include "tests/support/files.hpp"
#include "tests/unit/client/client.hpp"

namespace sluice {
namespace {

using test::open_file;
using test::random_bytes;
using test::register_memory;

class ClientHostTest : public ::testing::Test {
 protected:
  ClientHostTest()
      : content_(random_bytes(5'000'001)),
        path_(dir_.make_file("file", content_)),
        memory_(content_.size() + 100),
        file_(open_file(path_, O_RDWR)),
        buffer_(register_memory(memory_.data(), memory_.size())) {}

  std::string memory(std::size_t offset, std::size_t length) const {
    return {memory_.data() + offset, length};
  }

  test::TempDir dir_;
  const std::string content_;
  const std::string path_;
  std::vector<char> memory_;
  const test::FileHandle file_;
  const test::BufferHandle buffer_;
};

TEST_F(ClientHostTest, ReadsTheWholeFileAndSaysHow) {
  struct sluice_result result {};
  ASSERT_EQ(sluice_read(file_.get(), buffer_.get(), 0, content_.size(), 0, &result),
            static_cast<ssize_t>(content_.size()))
      << sluice_error();
  EXPECT_TRUE(memory(0, content_.size()) == content_);
  EXPECT_EQ(result.bytes, content_.size());
  EXPECT_STREQ(sluice_route_name(result.route), "host");
  EXPECT_STREQ(sluice_why_text(result.why), "the buffer is in host memory");
  EXPECT_EQ(result.in_process, 1u);
}

// The child does not have the threads that share a large read.
TEST_F(ClientHostTest, ChildReadsAfterAFork) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not support threads in a forked child";
#endif
  const auto size = static_cast<ssize_t>(content_.size());
  ASSERT_EQ(sluice_read(file_.get(), buffer_.get(), 0, content_.size(), 0, nullptr), size);
  test::Child child([&] {
    std::fill(memory_.begin(), memory_.end(), '\0');
    if (sluice_read(file_.get(), buffer_.get(), 0, content_.size(), 0, nullptr) != size) ::abort();
    if (memory(0, content_.size()) != content_) ::abort();
    std::vector<char> own(content_.size());
    const auto file = open_file(path_);
    const auto buffer = register_memory(own.data(), own.size());
    std::promise<ssize_t> done;
    sluice_read_async(
        file.get(), buffer.get(), 0, own.size(), 0,
        [](void* user, ssize_t bytes, const struct sluice_result*) {
          static_cast<std::promise<ssize_t>*>(user)->set_value(bytes);
        },
        &done);
    if (done.get_future().get() != size || std::string(own.data(), own.size()) != content_)
      ::abort();
    dir_.make_file("done", "");
  });
  EXPECT_TRUE(child.join()) << "the child hangs";
  EXPECT_TRUE(test::exists(dir_ / "done"));
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, content_.size(), 0, nullptr), size);
}

TEST_F(ClientHostTest, OffsetsNeedNoAlignment) {
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 13, 1'000'003, 777, nullptr), 1'000'003);
  EXPECT_TRUE(memory(13, 1'000'003) == content_.substr(777, 1'000'003));
  EXPECT_EQ(memory(0, 13), std::string(13, '\0'));
  EXPECT_EQ(memory(13 + 1'000'003, 1), std::string(1, '\0'));
}

TEST_F(ClientHostTest, AReadIsShortOnlyAtTheEndOfTheFile) {
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, 100, content_.size() - 7, nullptr), 7);
  EXPECT_EQ(memory(0, 8), content_.substr(content_.size() - 7) + '\0');
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, 100, content_.size(), nullptr), 0);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, 100, content_.size() + 9999, nullptr), 0);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, 0, 0, nullptr), 0);
}

TEST_F(ClientHostTest, RangesOutsideTheBufferAreRefused) {
  const std::size_t size = memory_.size();
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, size + 1, 0, nullptr), -ERANGE);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), size, 1, 0, nullptr), -ERANGE);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 1, SIZE_MAX, 0, nullptr), -ERANGE);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), SIZE_MAX, 2, 0, nullptr), -ERANGE);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, 2, INT64_MAX, nullptr), -EINVAL);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, 2, UINT64_MAX, nullptr), -EINVAL);
  EXPECT_EQ(sluice_write(file_.get(), buffer_.get(), size, 1, 0, nullptr), -ERANGE);
}

TEST_F(ClientHostTest, ErrorNamesTheMissingArgument) {
  EXPECT_EQ(sluice_read(nullptr, buffer_.get(), 0, 1, 0, nullptr), -EINVAL);
  EXPECT_STREQ(sluice_error(), "read: file must not be NULL: Invalid argument");
  EXPECT_EQ(sluice_write(file_.get(), nullptr, 0, 1, 0, nullptr), -EINVAL);
  EXPECT_EQ(std::string(sluice_error()),
            "write " + path_ + ": buffer must not be NULL: Invalid argument");
  EXPECT_EQ(sluice_readv(file_.get(), buffer_.get(), nullptr, 1, nullptr), -EINVAL);
  EXPECT_EQ(sluice_read_async(file_.get(), buffer_.get(), 0, 1, 0, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(sluice_read_stream(file_.get(), buffer_.get(), 0, 1, 0, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(sluice_query_file(file_.get(), nullptr, nullptr), -EINVAL);
  EXPECT_EQ(sluice_prefetch(nullptr, 0, 0, 0), -EINVAL);
  sluice_buffer* buffer = nullptr;
  EXPECT_EQ(sluice_buffer_register(nullptr, 1, &buffer), -EINVAL);
  EXPECT_EQ(sluice_buffer_register(&buffer, 0, &buffer), -EINVAL);
  EXPECT_EQ(sluice_buffer_register(&buffer, SIZE_MAX, &buffer), -EINVAL);
  EXPECT_EQ(sluice_buffer_register(&buffer, 1, nullptr), -EINVAL);
  EXPECT_EQ(buffer, nullptr);
  sluice_buffer_unregister(nullptr);
}

TEST_F(ClientHostTest, ErrorTextBelongsToTheCallingThread) {
  EXPECT_EQ(sluice_read(nullptr, nullptr, 0, 1, 0, nullptr), -EINVAL);
  const std::string here = sluice_error();
  std::thread([] {
    EXPECT_STREQ(sluice_error(), "");
    EXPECT_EQ(sluice_size(nullptr), -EINVAL);
  }).join();
  EXPECT_EQ(sluice_error(), here);
}

TEST_F(ClientHostTest, WritesTheBuffer) {
  const std::string bytes = random_bytes(3'000'017);
  std::memcpy(memory_.data() + 5, bytes.data(), bytes.size());
  struct sluice_result result {};
  ASSERT_EQ(sluice_write(file_.get(), buffer_.get(), 5, bytes.size(), 4'000'000, &result),
            static_cast<ssize_t>(bytes.size()))
      << sluice_error();
  EXPECT_EQ(result.bytes, bytes.size());
  EXPECT_TRUE(test::read_file(path_) == content_.substr(0, 4'000'000) + bytes);
}

TEST_F(ClientHostTest, SegmentsAreReadInOneRequest) {
  const struct sluice_segment segments[] = {
      {1000, 0, 10}, {0, 4'000'000, 1000}, {2000, content_.size() - 4, 100}, {3000, 5, 0}};
  struct sluice_result result {};
  EXPECT_EQ(sluice_readv(file_.get(), buffer_.get(), segments, 4, &result), 1014) << sluice_error();
  EXPECT_EQ(result.bytes, 1014u);
  EXPECT_EQ(memory(1000, 10), content_.substr(0, 10));
  EXPECT_EQ(memory(0, 1000), content_.substr(4'000'000, 1000));
  EXPECT_EQ(memory(2000, 4), content_.substr(content_.size() - 4));
  EXPECT_EQ(sluice_readv(file_.get(), buffer_.get(), segments, 0, nullptr), 0);
  const struct sluice_segment huge[] = {{0, 0, UINT64_MAX}, {0, 0, 2}};
  EXPECT_EQ(sluice_readv(file_.get(), buffer_.get(), huge, 2, nullptr), -EINVAL);
  const struct sluice_segment beyond[] = {{0, 0, 1}, {memory_.size(), 0, 1}};
  EXPECT_EQ(sluice_readv(file_.get(), buffer_.get(), beyond, 2, nullptr), -ERANGE);
}

TEST_F(ClientHostTest, RequestedRouteIsTakenOrRefused) {
  struct sluice_result result {};
  EXPECT_EQ(sluice_read_route(file_.get(), buffer_.get(), 0, 10, 0, SLUICE_ROUTE_HOST, &result),
            10);
  EXPECT_EQ(result.route, static_cast<unsigned>(SLUICE_ROUTE_HOST));
  EXPECT_EQ(sluice_read_route(file_.get(), buffer_.get(), 0, 10, 0, SLUICE_ROUTE_STAGED, nullptr),
            -EOPNOTSUPP);
  EXPECT_NE(std::string(sluice_error()).find("sluice doctor"), std::string::npos);
  EXPECT_EQ(sluice_read_route(file_.get(), buffer_.get(), 0, 10, 0, 99, nullptr), -EINVAL);
}

TEST_F(ClientHostTest, QueryReturnsTheRouteInAdvance) {
  struct sluice_query query {};
  ASSERT_EQ(sluice_query_file(file_.get(), buffer_.get(), &query), 0) << sluice_error();
  EXPECT_EQ(query.abi_version, SLUICE_ABI_VERSION);
  EXPECT_EQ(query.route, static_cast<unsigned>(SLUICE_ROUTE_HOST));
  EXPECT_EQ(query.file_size, content_.size());
  EXPECT_STREQ(query.tier, "");
  EXPECT_STRNE(query.reason, "");
}

TEST_F(ClientHostTest, PrefetchWarmsAndPromotesOnlyOnAMount) {
  EXPECT_EQ(sluice_prefetch(file_.get(), 0, 0, 0), 0) << sluice_error();
  EXPECT_EQ(sluice_prefetch(file_.get(), 4096, 4096, SLUICE_PREFETCH_WARM), 0);
  EXPECT_EQ(sluice_prefetch(file_.get(), 0, 0, SLUICE_PREFETCH_PROMOTE), -EOPNOTSUPP);
  EXPECT_EQ(sluice_prefetch(file_.get(), 0, 0, 64), -EINVAL);
}

TEST_F(ClientHostTest, ErrorsOfTheFileAreReturnedAsTheyAre) {
  const auto file = open_file(path_, O_RDONLY);
  EXPECT_EQ(sluice_write(file.get(), buffer_.get(), 0, 1, 0, nullptr), -EBADF);
}

struct Called {
  std::promise<std::pair<ssize_t, struct sluice_result>> promise;
  std::string thread;
  std::string sentence;

  static void back(void* user, ssize_t done, const struct sluice_result* result) {
    auto& self = *static_cast<Called*>(user);
    char name[16] = {};
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    self.thread = name;
    self.sentence = sluice_error();
    self.promise.set_value({done, *result});
  }
};

TEST_F(ClientHostTest, AsynchronousReadCallsBackWithItsResult) {
  Called called;
  ASSERT_EQ(
      sluice_read_async(file_.get(), buffer_.get(), 0, content_.size(), 0, &Called::back, &called),
      0);
  const auto [done, result] = called.promise.get_future().get();
  EXPECT_EQ(done, static_cast<ssize_t>(content_.size()));
  EXPECT_EQ(result.bytes, content_.size());
  EXPECT_EQ(called.thread, "sluice-io");
  EXPECT_TRUE(memory(0, content_.size()) == content_);
}

TEST_F(ClientHostTest, AsynchronousErrorReachesTheCallbackWithItsText) {
  Called called;
  ASSERT_EQ(
      sluice_write_async(file_.get(), buffer_.get(), memory_.size(), 1, 0, &Called::back, &called),
      0);
  const auto [done, result] = called.promise.get_future().get();
  EXPECT_EQ(done, -ERANGE);
  EXPECT_EQ(result.bytes, 0u);
  EXPECT_NE(called.sentence.find("the range exceeds the buffer"), std::string::npos);
}

// A chain: each callback starts the next read, as a pipeline would.
struct Chain {
  sluice_file* file;
  sluice_buffer* buffer;
  std::uint64_t offset, end;
  std::promise<void> finished;

  int go() { return sluice_read_async(file, buffer, offset, 10'000, offset, &Chain::back, this); }
  static void back(void* user, ssize_t done, const struct sluice_result*) {
    auto& self = *static_cast<Chain*>(user);
    self.offset += static_cast<std::uint64_t>(done);
    if (done <= 0 || self.offset >= self.end || self.go() != 0) self.finished.set_value();
  }
};

TEST_F(ClientHostTest, CallbacksMayStartRequests) {
  std::vector<std::unique_ptr<Chain>> chains;
  for (std::uint64_t i = 0; i < 20; ++i) {
    auto& chain = *chains.emplace_back(
        new Chain{file_.get(), buffer_.get(), i * 100'000, (i + 1) * 100'000, {}});
    ASSERT_EQ(chain.go(), 0);
  }
  for (auto& chain : chains) chain->finished.get_future().wait();
  EXPECT_TRUE(memory(0, 2'000'000) == content_.substr(0, 2'000'000));
}

TEST(ClientWordsTest, UnknownNumbersHaveATextToo) {
  EXPECT_STREQ(sluice_route_name(SLUICE_ROUTE_MAPPED), "mapped");
  EXPECT_STREQ(sluice_route_name(77), "?");
  EXPECT_STREQ(sluice_why_text(77), "?");
  EXPECT_STREQ(sluice_version(), SLUICE_VERSION);
}

}  // namespace
}  // namespace sluice
