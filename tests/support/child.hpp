// SPDX-License-Identifier: BSD-2-Clause
// A forked child process. The destructor kills and reaps it if it is still running. Threads: caller
// locks.
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

  // Waits until it has ended by itself; returns false if that takes more than a minute.
  bool join();

 private:
  pid_t pid_;
};

}  // namespace sluice::test
