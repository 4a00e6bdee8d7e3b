// SPDX-License-Identifier: BSD-2-Clause
// A forked child that works until it is done or its owner goes: killed and reaped by the
// destructor. Threads: caller locks.
#pragma once

#include <sys/types.h>

#include <functional>

namespace sluice::test {

class Child {
 public:
  explicit Child(const std::function<void()>& work);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits until it has ended by itself; false when it had not within ten seconds.
  bool join();

 private:
  pid_t pid_;
};

}  // namespace sluice::test
