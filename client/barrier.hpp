// SPDX-License-Identifier: BSD-2-Clause
// The boundary to C: no exception crosses it, and an Error becomes a negative errno and an error
// text.
#pragma once

#include <cstdint>
#include <new>
#include <string>

#include "client/file.hpp"
#include "client/include/sluice/sluice.h"
#include "client/request.hpp"
#include "client/sentence.hpp"

#define SLUICE_API extern "C" __attribute__((visibility("default")))

namespace sluice {

// Passed to barrier() when the error text needs no path.
inline constexpr const char* kNowhere = nullptr;

// EINVAL if a required argument is missing.
inline Result<void> need(bool given, Operation what) {
  if (!given) return Error{EINVAL, what};
  return {};
}

inline std::string text_of(const File* file) { return file != nullptr ? file->path() : ""; }
inline std::string text_of(const char* path) { return path != nullptr ? path : ""; }

// Runs `work`, which returns a Result<std::int64_t>. `where` is a File or a path, and may be null.
template <typename Where, typename Work>
std::int64_t barrier(const char* what, const Where* where, Work work) noexcept {
  try {
    const Result<std::int64_t> result = work();
    if (result) return *result;
    say(what, text_of(where), result.error());
    return -result.error().code;
  } catch (const std::bad_alloc&) {
    say_no_memory();
    return -ENOMEM;
  } catch (...) {
    // Our code throws nothing else. If it does by mistake, the host program must not end.
    say(what, {}, Error{EIO, "an unexpected exception"});
    return -EIO;
  }
}

}  // namespace sluice
