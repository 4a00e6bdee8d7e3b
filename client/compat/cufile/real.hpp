// SPDX-License-Identifier: BSD-2-Clause
// NVIDIA's own libcufile, which serves every file that is not on a Sluice mount. The search for it
// starts with the first call that needs it. Our own library is never mistaken for it, and it is
// never unloaded.
//
// Places, in this order: SLUICE_CUFILE_REAL (if set, nothing else is tried); a library that the
// process has loaded; nvidia/*/lib beside the loaded Python packages; LD_LIBRARY_PATH; CUDA_HOME,
// CUDA_PATH and CONDA_PREFIX; the directories of CUDA's installer and of distributions. If it is
// not found, it is searched for again only after the process has loaded more libraries.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <utility>

#include "base/check.hpp"

namespace sluice::dropin {

class Real {
 public:
  // The handle from dlopen(); null if there is no library.
  static void* library();
  // True during a call of NVIDIA's library. If that call reaches one of our functions through the
  // dynamic loader, we pass it back unchanged.
  static bool is_calling() { return t_calls > 0; }
  // Prints to stderr, once, that there is no library for `path` and what to do.
  static void report_missing(const char* path);

  class Call {
   public:
    Call() { ++t_calls; }
    ~Call() { --t_calls; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
  };

 private:
  static thread_local int t_calls;
};

// A function of the library, looked up when first called. Constant-initialized, so that it costs
// nothing when a process starts.
template <typename Function>
class RealFunction {
 public:
  constexpr explicit RealFunction(const char* name) : name_(name) {}

  // True if the function exists.
  explicit operator bool() { return get() != nullptr; }
  // CHECKED: the function exists.
  template <typename... Arguments>
  auto operator()(Arguments... arguments) {
    const Real::Call call;
    const auto function = get();
    SLUICE_CHECK(function != nullptr, "NVIDIA's cuFile has the function");
    return function(arguments...);
  }

 private:
  Function* get();

  const char* const name_;
  std::atomic<Function*> function_{nullptr};  // null, then one value
};

// dlsym() in the library; null if there is no library, or it is too old for this function.
void* find_in_real(const char* name);

template <typename Function>
Function* RealFunction<Function>::get() {
  Function* function = function_.load(std::memory_order_acquire);
  if (function != nullptr) return function;
  function = reinterpret_cast<Function*>(find_in_real(name_));
  function_.store(function, std::memory_order_release);
  return function;
}

}  // namespace sluice::dropin
