// SPDX-License-Identifier: BSD-2-Clause
// The sentence of sluice_error(): what failed, where, why, and what to do next. One a thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "gpu/records.hpp"

namespace sluice {

// `what` is "read", `where` a path or empty.
void say(const char* what, const std::string& where, const Error& error) noexcept;
// An index has a number that is none of a record: which, and how many records there are.
void say(const char* what, const std::string& where, const BadIndex& bad,
         std::uint64_t record_bytes) noexcept;
// Says `words` as they are: for what an Error has no room for, as which part of a file is wrong.
// The Error is for returning, and barrier() lets it pass without another word.
Error said(int code, const std::string& words) noexcept;
bool is_said(const Error& error) noexcept;
// For where there is no memory for more.
void say_no_memory() noexcept;
// Empty if nothing has failed yet in this thread.
const char* last_sentence() noexcept;

}  // namespace sluice
