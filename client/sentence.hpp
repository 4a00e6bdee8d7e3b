// SPDX-License-Identifier: BSD-2-Clause
// The sentence of sluice_error(): what failed, where, why, and what to do next. One a thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "gpu/records.hpp"

namespace sluice {

// Says the error's detail if it has one, which part of a file is wrong, say; else "read PATH: ",
// the operation, the reason and the next step. `what` is "read", `where` a path or empty.
void say(const char* what, const std::string& where, const Error& error) noexcept;
// The same sentence as the detail of an error, for code that knows more than its caller.
Error explained(const char* what, const std::string& where, const Error& error);
// ERANGE: an index has the number of no record. Says which number, and how many records there are.
Error explained(const char* what, const std::string& where, const BadIndex& bad,
                std::uint64_t record_bytes);
// For where there is no memory for more.
void say_no_memory() noexcept;
// Empty if nothing has failed yet in this thread.
const char* last_sentence() noexcept;

}  // namespace sluice
