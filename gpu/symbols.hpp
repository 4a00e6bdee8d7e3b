// SPDX-License-Identifier: BSD-2-Clause
// Looks up functions of a library that was loaded with dlopen(). Threads: caller locks.
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
  // The first required function that was not found; null if all were found.
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

// The reason why dlopen() of `library` has just failed. If the library does not exist, its name is
// enough.
inline std::string load_error(const std::string& library) {
  const char* reason = ::dlerror();
  const std::string text = reason != nullptr ? reason : "no reason given";
  const bool absent =
      text.rfind(library + ": cannot open shared object file: No such file", 0) == 0;
  return library + (absent ? " is not installed" : " can't be loaded: " + text);
}

}  // namespace sluice
