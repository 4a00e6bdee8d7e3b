// SPDX-License-Identifier: BSD-2-Clause
// NVIDIA's own libcufile, which serves every file that is not on a Sluice mount. It is looked for
// when a call first needs it, never found in ourselves, and never unloaded.
//
// Where, in this order: SLUICE_CUFILE_REAL, and then nowhere else; one that the process has loaded;
// nvidia/*/lib beside the Python packages that are loaded; LD_LIBRARY_PATH; CUDA_HOME, CUDA_PATH
// and CONDA_PREFIX; where CUDA's installer and the distributions put it. One that is not there is
// looked for again only when the process has loaded more libraries.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <utility>

namespace sluice::dropin {

class Real {
 public:
  // What dlopen() gave; null if there is none.
  static void* library();
  // A call of NVIDIA's library that ends up in one of ours, by the loader's rules, is its own
  // affair: it goes back unseen.
  static bool is_calling() { return t_calls > 0; }
  // No library: says what to do about it on stderr, once.
  static void complain(const char* path);

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

// One function of it, looked up when it is first called. Constant-initialized: costs nothing at the
// start of a process.
template <typename Function>
class RealFunction {
 public:
  constexpr explicit RealFunction(const char* name) : name_(name) {}

  // Whether there is one.
  explicit operator bool() { return get() != nullptr; }
  // REQUIRES: there is one.
  template <typename... Arguments>
  auto operator()(Arguments... arguments) {
    const Real::Call call;
    return get()(arguments...);
  }

 private:
  Function* get();

  const char* const name_;
  std::atomic<Function*> function_{nullptr};  // set to one value only
};

// dlsym() in it; null if there is no library, or it is too old for that.
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
