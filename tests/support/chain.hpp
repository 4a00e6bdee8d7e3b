// SPDX-License-Identifier: BSD-2-Clause
// Chains of directories, each with one in it, all called "d": deeper than a path may be long.
// Threads: caller locks.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "base/file_at.hpp"
#include "base/unique_fd.hpp"

namespace sluice::test {

inline constexpr int kDeep = 20'000;

// The directory `levels` below `top`.
inline UniqueFd open_chain(const std::string& top, int levels) {
  UniqueFd at(::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; at && i < levels; ++i)
    at.reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!at) throw std::runtime_error("open chain below " + top);
  return at;
}

// Makes it, and all above.
inline UniqueFd make_chain(const std::string& top, int levels) {
  UniqueFd at(::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; at && i < levels; ++i) {
    ::mkdirat(at.get(), "d", 0755);
    at.reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  if (!at) throw std::runtime_error("make chain below " + top);
  return at;
}

// Removes the chain `top`/d with the files in it. rm takes a minute for so deep a one, and whoever
// goes down by recursion crashes: here, what is below comes up.
inline void remove_chain(const std::string& top) {
  const std::string here = top + "/d", below = top + "/below";
  for (bool more = true; more;) {
    const UniqueFd fd(::open(here.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return;
    if (const auto names = sluice::names_in(fd.get())) {
      for (const std::string& name : *names) ::unlinkat(fd.get(), name.c_str(), 0);
    }
    more = ::renameat(fd.get(), "d", AT_FDCWD, below.c_str()) == 0;
    if (::rmdir(here.c_str()) < 0) return;
    if (more && ::rename(below.c_str(), here.c_str()) < 0) return;
  }
}

}  // namespace sluice::test
