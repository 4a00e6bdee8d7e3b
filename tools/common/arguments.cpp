// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/arguments.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <span>
#include <type_traits>
#include <vector>

#include "base/log.hpp"
#include "fs/control/options.hpp"
#include "tools/common/completion.hpp"
#include "tools/common/manual.hpp"
#include "tools/common/verbs.hpp"

namespace sluice::tools {
namespace {

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// Describes the first option among `arguments` that `app` does not have; empty if it has all.
std::string describe_unknown(const CLI::App& app, std::span<char* const> arguments) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::vector<std::string_view> names(known.begin(), known.end());
  for (const std::string_view argument : arguments) {
    if (argument == "--") break;
    const std::string_view name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--") || std::find(names.begin(), names.end(), name) != names.end())
      continue;
    const auto close = closest_word(name, names);
    return "unknown option '" + std::string(name) + "'" +
           (close ? "; did you mean '" + std::string(*close) + "'?" : "");
  }
  return {};
}

// CLI11's words for a value that is not a number name no allowed ones.
template <typename T>
std::string check_number(const std::string& text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec == std::errc{} && parsed.ptr == end) return {};
  const char* const allowed = std::is_floating_point_v<T> ? "a number"
                              : std::is_signed_v<T>       ? "a whole number"
                                                          : "a whole number, 0 or more";
  return std::string("must be ") + allowed + ", not '" + text + "'";
}

template <typename T>
struct NumberOf {
  using Type = T;
};
template <typename T>
struct NumberOf<std::optional<T>> {
  using Type = T;
};

// What is wrong, in our words.
std::string describe(const CLI::App& app, const CLI::ParseError& error,
                     std::span<char* const> arguments) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::string unknown = describe_unknown(app, arguments);
    if (!unknown.empty()) return unknown;
    const auto extra = app.remaining();
    if (!extra.empty()) return "unexpected argument '" + extra.front() + "'";
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return what.substr(0, what.find(':')) + " needs a value";
  return what;
}

}  // namespace

Arguments::Arguments() : app_(std::make_unique<CLI::App>()) {}
Arguments::~Arguments() = default;

void Arguments::flag(const std::string& names, bool& into) { app_->add_flag(names, into); }

void Arguments::flag(const std::string& names, std::function<void()> call) {
  app_->add_flag_callback(names, std::move(call));
}

template <typename T>
void Arguments::option(const std::string& names, T& into, Need need) {
  CLI::Option* option = app_->add_option(names, into);
  option->required(need == Need::Required);
  if constexpr (std::is_arithmetic_v<typename NumberOf<T>::Type>) {
    option->check(check_number<typename NumberOf<T>::Type>, "");
  }
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    // An option with a value must not take the arguments that follow it.
    if (names.starts_with('-')) option->allow_extra_args(false);
  }
}

template void Arguments::option(const std::string&, std::string&, Need);
template void Arguments::option(const std::string&, std::vector<std::string>&, Need);
template void Arguments::option(const std::string&, int&, Need);
template void Arguments::option(const std::string&, unsigned&, Need);
template void Arguments::option(const std::string&, std::uint64_t&, Need);
template void Arguments::option(const std::string&, double&, Need);
template void Arguments::option(const std::string&, std::optional<unsigned>&, Need);
template void Arguments::option(const std::string&, std::optional<std::uint64_t>&, Need);

void Arguments::option_call(const std::string& names,
                            std::function<void(const std::string&)> call) {
  app_->add_option_function<std::string>(names, std::move(call));
}

void Arguments::never_together(const std::string& one, const std::string& other) {
  app_->get_option(one)->excludes(app_->get_option(other));
}

std::optional<int> Arguments::parse(int argc, char** argv, const HelpText& help) {
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  // Before CLI11 parses: help must work even if a required argument is missing.
  for (const std::string_view argument : arguments.subspan(1)) {
    if (argument == "--") break;
    if (argument == kCompletionMark) {
      const auto mark = std::find(arguments.begin() + 1, arguments.end(), argument);
      return complete_options({mark, arguments.end()}, help, argv[0],
                              mark == arguments.begin() + 1);
    }
    if (argument == kManualMark) return print_manual_part(arguments.subspan(1), help, argv[0]);
    if (argument != "-h" && argument != "--help") continue;
    print("usage: ");
    print(help.usage);
    print("\n\n");
    print(help.options);
    if (argument == "--help") print(help.details);
    return kDone;
  }
  try {
    app_->set_help_flag();
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::string what = describe(*app_, error, arguments.subspan(1));
    const bool asks = what.ends_with('?');
    const std::string program(program_of(help));
    std::fprintf(stderr, "%s: %s: %s%s see '%s %s --help'\n", program.c_str(), argv[0],
                 log::escaped(what).c_str(), asks ? "" : ";", program.c_str(), argv[0]);
    return kUsage;
  }
  return std::nullopt;
}

}  // namespace sluice::tools
