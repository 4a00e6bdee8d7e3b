// SPDX-License-Identifier: BSD-2-Clause
#include "base/small_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

pid_t waiting_process() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  return child;
}

void end(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(SmallFileTest, ReadsAllBytesOrNone) {
  const test::TempDir dir;
  const std::string text = std::string(10'000, 'x') + '\0' + "end";
  test::write_file(dir / "file", text);

  EXPECT_EQ(text_of_file(dir / "file"), text);
  EXPECT_EQ(text_of_file(dir / "missing"), "");
  EXPECT_TRUE(failed_with(read_small_file(dir / "missing"), ENOENT));
  EXPECT_TRUE(failed_with(read_small_file(dir / "."), EISDIR));
}

TEST(SmallFileTest, FailsIfTheProcessEndsBetweenOpenAndRead) {
  for (const char* name : {"stat", "status", "comm", "fdinfo/0"}) {
    const pid_t child = waiting_process();
    const UniqueFd file(
        ::open(("/proc/" + std::to_string(child) + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(file) << name;
    end(child);

    EXPECT_FALSE(read_to_end(file.get())) << name;
  }
}

TEST(SmallFileTest, ReadsOfProcessesThatEndAreWholeOrEmpty) {
  for (int i = 0; i < 200; ++i) {
    const pid_t child = waiting_process();
    const std::string directory = "/proc/" + std::to_string(child);
    std::thread killer([child] { end(child); });
    while (::access(directory.c_str(), F_OK) == 0) {
      const std::string status = text_of_file(directory + "/status");
      if (!status.empty()) {
        EXPECT_NE(status.find("nonvoluntary_ctxt_switches:"), std::string::npos);
      }
      text_of_file(directory + "/fdinfo/0");
      text_of_file(directory + "/comm");
    }
    killer.join();
  }
}

}  // namespace
}  // namespace sluice
