// SPDX-License-Identifier: BSD-2-Clause
// Looking up the functions of a library that was loaded with dlopen(). Threads: caller locks.
#pragma once

#include <dlfcn.h>

#include <string>

namespace sluice {

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    return function != nullptr;
  }
  template <typename Function>
  void need(Function& function, const char* name) {
    if (!find(function, name) && missing_ == nullptr) missing_ = name;
  }
  // The first that was needed and is not there; null if all are.
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

// Why dlopen() of `library` just failed. Only one that is there and can't be loaded has more to
// tell than its name.
inline std::string load_error(const std::string& library) {
  const char* reason = ::dlerror();
  const std::string text = reason != nullptr ? reason : "no reason given";
  const bool absent =
      text.rfind(library + ": cannot open shared object file: No such file", 0) == 0;
  return library + (absent ? " is not installed" : " can't be loaded: " + text);
}

}  // namespace sluice
