// SPDX-License-Identifier: BSD-2-Clause
// The text of sluice_error(): what failed, where, why, and what to do. Each thread has its own.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "gpu/records.hpp"

namespace sluice {

// Sets the text: the error's detail if it has one, otherwise "read PATH: ", the operation (unless
// it is `what`), the reason and the next step. `what` is the operation, such as "read"; `where` is
// a path or empty.
void say(const char* what, const std::string& where, const Error& error) noexcept;
// Returns an error with the same text as its detail, for code that knows more than its caller.
Error explained(const char* what, const std::string& where, const Error& error);
// ERANGE: a record number is out of range. The detail says which, and how many records there are.
Error explained(const char* what, const std::string& where, const BadIndex& bad,
                std::uint64_t record_bytes);
// Sets a text without allocating memory.
void say_no_memory() noexcept;
// Empty if nothing has failed yet in this thread.
const char* last_sentence() noexcept;

}  // namespace sluice
