// SPDX-License-Identifier: BSD-2-Clause
#include "client/sentence.hpp"

#include <array>
#include <cstdio>
#include <cstring>

#include "base/log.hpp"

namespace sluice {
namespace {

// Not a string: a thread's last words must not need memory, nor be gone when the thread's other
// destructors call us.
thread_local std::array<char, 768> t_sentence{};

const char* next_step(int code) {
  switch (code) {
    case EOPNOTSUPP:
      return "; leave the route to Sluice (auto), or see 'sluice doctor'";
    case ENODEV:
      return "; see 'sluice doctor'";
    case EBADF:
      return "; open it for that";
    case ENOTCONN:
      return "; the mount's daemon has died: 'sluice umount', then mount again";
    case ENOMEM:
      return "; free some GPU or host memory";
    default:
      return "";
  }
}

}  // namespace

void say(const char* what, const std::string& where, const Error& error) noexcept {
  const char* reason = ::strerrordesc_np(error.code);
  if (reason == nullptr) reason = "an unknown error";
  // Paths longer than the sentence lose their beginning; their end tells more.
  constexpr std::size_t kPath = 400;
  const std::size_t skip = where.size() > kPath ? where.size() - kPath : 0;
  std::snprintf(t_sentence.data(), t_sentence.size(), "%s%s%s%s: %s: %s%s", what,
                where.empty() ? "" : " ", skip > 0 ? "..." : "", where.c_str() + skip,
                error.operation, reason, next_step(error.code));
}

namespace {
constexpr char kSaid[] = "said already";
}  // namespace

Error said(int code, const std::string& words) noexcept {
  std::snprintf(t_sentence.data(), t_sentence.size(), "%s", words.c_str());
  return {code, kSaid};
}

bool is_said(const Error& error) noexcept { return error.operation == kSaid; }

void say_no_memory() noexcept { say("libsluice", {}, Error{ENOMEM, "allocate"}); }

const char* last_sentence() noexcept { return t_sentence.data(); }

}  // namespace sluice
