// SPDX-License-Identifier: BSD-2-Clause
// Where C begins: no exception passes, and an Error becomes a negative errno and a sentence.
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

// For barrier(), where the words need no place.
inline constexpr const char* kNowhere = nullptr;

// EINVAL for an argument that was not given.
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
    // Nothing of ours throws anything else; a host program must not end for our mistake.
    say(what, {}, Error{EIO, "an unexpected exception"});
    return -EIO;
  }
}

}  // namespace sluice
