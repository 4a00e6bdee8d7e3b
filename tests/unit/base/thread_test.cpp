// SPDX-License-Identifier: BSD-2-Clause
#include "base/thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <string>
#include <thread>

namespace sluice {
namespace {

cpu_set_t cores_of_caller() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  EXPECT_EQ(::sched_getaffinity(0, sizeof cores, &cores), 0);
  return cores;
}

TEST(ThreadTest, IsNotBoundToTheCoreOfItsStarter) {
  const cpu_set_t all = cores_of_caller();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core only";
  cpu_set_t seen;
  std::string name(16, '\0');
  // Like a libfuse thread: bound to one core, and the first that starts a worker.
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    std::thread([&] {
      begin_thread("sluice-test");
      seen = cores_of_caller();
      ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    }).join();
  }).join();

  EXPECT_TRUE(CPU_EQUAL(&seen, &all)) << CPU_COUNT(&seen) << " of " << CPU_COUNT(&all);
  EXPECT_STREQ(name.c_str(), "sluice-test");
}

}  // namespace
}  // namespace sluice
