// SPDX-License-Identifier: BSD-2-Clause
#include "client/sentence.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace sluice {
namespace {

using Sentence = std::array<char, 768>;

// Not a std::string: setting the text must not need memory, and it must exist as long as other
// destructors of the thread call us.
thread_local Sentence t_sentence{};

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
    case ECONNABORTED:
      return "; see its log";
    case ENOMEM:
      return "; free some GPU or host memory";
    default:
      return "";
  }
}

// "read PATH: read the file: ..." would say a thing twice.
bool is_repeated(std::string_view what, std::string_view operation) {
  if (!operation.starts_with(what)) return false;
  operation.remove_prefix(what.size());
  return operation.empty() || operation == " the file";
}

void compose(Sentence& out, const char* what, const std::string& where,
             const Error& error) noexcept {
  if (error.detail) {
    std::snprintf(out.data(), out.size(), "%s", error.detail->c_str());
    return;
  }
  const char* reason = ::strerrordesc_np(error.code);
  if (reason == nullptr) reason = "an unknown error";
  const Shown path(where);
  const bool repeated = is_repeated(what, error.operation);
  std::snprintf(out.data(), out.size(), "%s%s%s%s: %s%s%s%s", what, where.empty() ? "" : " ",
                path.dots, path.text, repeated ? "" : error.operation, repeated ? "" : ": ", reason,
                next_step(error.code));
}

}  // namespace

void say(const char* what, const std::string& where, const Error& error) noexcept {
  compose(t_sentence, what, where, error);
}

Error explained(const char* what, const std::string& where, const Error& error) {
  Sentence sentence{};
  compose(sentence, what, where, error);
  Error out = error;
  out.detail = std::make_shared<const std::string>(sentence.data());
  return out;
}

Error explained(const char* what, const std::string& where, const BadIndex& bad,
                std::uint64_t record_bytes) {
  const Shown path(where);
  Sentence sentence{};
  std::snprintf(sentence.data(), sentence.size(),
                "%s %s%s: index[%zu] is %" PRIu64 ", but the file has %" PRIu64
                " whole records of %" PRIu64 " bytes: they are numbered from 0",
                what, path.dots, path.text, bad.position, bad.value, bad.records, record_bytes);
  return {ERANGE, "check the index", sentence.data()};
}

void say_no_memory() noexcept { say("libsluice", {}, Error{ENOMEM, "allocate"}); }

const char* last_sentence() noexcept { return t_sentence.data(); }

}  // namespace sluice
