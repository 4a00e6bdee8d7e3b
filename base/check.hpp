// SPDX-License-Identifier: BSD-2-Clause
// Contracts that every build checks. SLUICE_CHECK(condition, "what must hold") prints the sentence
// and aborts if the condition is false, because continuing could lose data. A header says CHECKED:
// where a function checks what it requires, and REQUIRES: where it trusts its callers.
//
// It is for mistakes in our own code. What users, disks or other processes can cause is an Error.
#pragma once

#include <cstdio>
#include <cstdlib>

#define SLUICE_CHECK(condition, contract) \
  ((condition) ? static_cast<void>(0) : ::sluice::contract_broken(contract, __FILE__, __LINE__))

namespace sluice {

// In the header, because the cuFile drop-in links no library of ours.
[[noreturn, gnu::cold, gnu::noinline]] inline void contract_broken(const char* contract,
                                                                   const char* file, int line) {
  std::fprintf(stderr, "sluice: broken contract: %s (%s:%d)\n", contract, file, line);
  std::abort();
}

}  // namespace sluice
