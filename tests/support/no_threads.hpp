// SPDX-License-Identifier: BSD-2-Clause
// While it exists, the process cannot create threads (EAGAIN), because no stack can be allocated.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace sluice::test {

class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    pthread_attr_getstacksize(&attributes, &before_);
    pthread_attr_destroy(&attributes);
    set(std::size_t{1} << 60);
  }
  ~NoThreads() { set(before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  static void set(std::size_t size) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, size);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }

  std::size_t before_ = 0;
};

}  // namespace sluice::test
