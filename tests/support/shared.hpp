// SPDX-License-Identifier: BSD-2-Clause
// Memory that a forked child shares with its parent. Threads: T's own rules (use atomics).
#pragma once

#include <sys/mman.h>

#include <new>
#include <stdexcept>

namespace sluice::test {

template <typename T>
class Shared {
 public:
  Shared()
      : memory_(
            ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    new (memory_) T();
  }
  ~Shared() { ::munmap(memory_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T* operator->() const { return static_cast<T*>(memory_); }
  T& operator*() const { return *static_cast<T*>(memory_); }

 private:
  void* memory_;
};

}  // namespace sluice::test
