// SPDX-License-Identifier: BSD-2-Clause
// Chains of directories named "d", each inside the previous one, and threads whose stack is too
// small to descend such a chain by recursion. Threads: caller locks.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/unique_fd.hpp"

namespace sluice::test {

// So deep that the path is longer than PATH_MAX, even with names of one byte.
inline constexpr int kDeep = 5000;

// Opens the directory `levels` below `top`.
inline UniqueFd open_chain(const std::string& top, int levels) {
  UniqueFd at(::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; at && i < levels; ++i)
    at.reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!at) throw std::runtime_error("open chain below " + top);
  return at;
}

// Creates the chain and returns its last directory.
inline UniqueFd make_chain(const std::string& top, int levels) {
  UniqueFd at(::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; at && i < levels; ++i) {
    ::mkdirat(at.get(), "d", 0755);
    at.reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  if (!at) throw std::runtime_error("make chain below " + top);
  return at;
}

// Removes the chain `top`/d with its files. Works from the top: it moves the rest of the chain up
// after each level.
inline void remove_chain(const std::string& top) {
  const std::string here = top + "/d", below = top + "/below";
  for (bool more = true; more;) {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(here.c_str()), ::closedir);
    if (!stream) return;
    const int fd = ::dirfd(stream.get());
    while (const dirent* entry = ::readdir(stream.get())) ::unlinkat(fd, entry->d_name, 0);
    more = ::renameat(fd, "d", AT_FDCWD, below.c_str()) == 0;
    if (::rmdir(here.c_str()) < 0) return;
    if (more && ::rename(below.c_str(), here.c_str()) < 0) return;
  }
}

// Runs `work` in a thread with 256 KiB of stack, and waits for it.
inline void on_small_stack(std::function<void()> work) {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_t thread{};
  const auto run = [](void* what) -> void* {
    (*static_cast<std::function<void()>*>(what))();
    return nullptr;
  };
  const int code = ::pthread_create(&thread, &attributes, run, &work);
  ::pthread_attr_destroy(&attributes);
  if (code != 0) throw std::runtime_error("start a thread");
  ::pthread_join(thread, nullptr);
}

}  // namespace sluice::test
