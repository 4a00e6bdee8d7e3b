// SPDX-License-Identifier: BSD-2-Clause
// Result<T> is a value or an Error: what every fallible function of Sluice returns.
//
// The member names are std::expected's, so that moving to it is a change of one line here. An Error
// is an errno, a string literal that names the operation and, where a person will read it, a detail
// of its own. Without a detail it allocates nothing, because answers such as ENOENT are frequent.
// Threads: immutable values.
#pragma once

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace sluice {

// The name of an operation. Only literals convert to it, so an Error can never dangle.
struct Operation {
  const char* text;
  // NOLINTNEXTLINE(google-explicit-constructor): a literal *is* the name of an operation.
  consteval Operation(const char* literal) : text(literal) {}
};

struct Error {
  int code;               // an errno, never 0
  const char* operation;  // what failed, for the log
  // One line for a person, complete in itself: what failed, where, why, what to do next. Null if
  // `code` and `operation` say enough.
  std::shared_ptr<const std::string> detail;

  Error(int errno_value, Operation op) : code(errno_value), operation(op.text) {}
  Error(int errno_value, Operation op, std::string sentence)
      : code(errno_value),
        operation(op.text),
        detail(std::make_shared<const std::string>(std::move(sentence))) {}
  static Error last(Operation op) { return {errno, op}; }

  // The detail; without one, "open directory: No such file or directory".
  std::string text() const;
  // The same error with the place put in front of the text: "/etc/sluice.toml:3: unknown key".
  Error at(const std::string& place) const;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): `return value;` and `return error;` are the point.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return state_.index() == 0; }
  bool has_value() const { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)) {}

  explicit operator bool() const { return !error_; }
  bool has_value() const { return !error_; }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

// True when `result` failed with exactly `code`.
template <typename T>
bool failed_with(const Result<T>& result, int code) {
  return !result && result.error().code == code;
}

// Evaluates `expression` (a Result) and returns its error from the enclosing function, or yields
// its value. One to a statement: nesting shadows `result_` and the compiler says so.
#define SLUICE_TRY(expression)                  \
  ({                                            \
    auto result_ = (expression);                \
    if (!result_) return result_.error();       \
    ::sluice::detail::take(std::move(result_)); \
  })

namespace detail {
template <typename T>
T take(Result<T>&& result) {
  return *std::move(result);
}
inline void take(Result<void>&&) {}
}  // namespace detail

}  // namespace sluice
