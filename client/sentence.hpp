// SPDX-License-Identifier: BSD-2-Clause
// The text of sluice_error(): what failed, where, why, and what to do. Each thread has its own.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "gpu/records.hpp"

namespace sluice {

// Sets the text. `what` is the operation, such as "read"; `where` is a path or empty.
void say(const char* what, const std::string& where, const Error& error) noexcept;
// Sets the text for an index with a number that no record has.
void say(const char* what, const std::string& where, const BadIndex& bad,
         std::uint64_t record_bytes) noexcept;
// Sets the text to `words`, for details that an Error can't contain. Returns an Error that
// barrier() passes on without changing the text.
Error said(int code, const std::string& words) noexcept;
bool is_said(const Error& error) noexcept;
// Sets a text without allocating memory.
void say_no_memory() noexcept;
// Empty if nothing has failed yet in this thread.
const char* last_sentence() noexcept;

}  // namespace sluice
