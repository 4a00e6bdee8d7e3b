// SPDX-License-Identifier: BSD-2-Clause
#include "client/sentence.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/log.hpp"

namespace sluice {
namespace {

// Not a std::string: setting the text must not need memory, and it must exist as long as other
// destructors of the thread call us.
thread_local std::array<char, 768> t_sentence{};

// If a path is too long, its beginning is cut off, because the end says more.
struct Shown {
  explicit Shown(const std::string& path)
      : skip(path.size() > kMost ? path.size() - kMost : 0),
        dots(skip > 0 ? "..." : ""),
        text(path.c_str() + skip) {}
  static constexpr std::size_t kMost = 400;
  const std::size_t skip;
  const char* const dots;
  const char* const text;
};

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
  const Shown path(where);
  std::snprintf(t_sentence.data(), t_sentence.size(), "%s%s%s%s: %s: %s%s", what,
                where.empty() ? "" : " ", path.dots, path.text, error.operation, reason,
                next_step(error.code));
}

void say(const char* what, const std::string& where, const BadIndex& bad,
         std::uint64_t record_bytes) noexcept {
  const Shown path(where);
  std::snprintf(t_sentence.data(), t_sentence.size(),
                "%s %s%s: index[%zu] is %" PRIu64 ", but the file has %" PRIu64
                " whole records of %" PRIu64 " bytes: they are numbered from 0",
                what, path.dots, path.text, bad.position, bad.value, bad.records, record_bytes);
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
