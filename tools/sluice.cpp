// SPDX-License-Identifier: BSD-2-Clause
// sluice <verb> [options] <path>: the table of verbs and what holds for all of them.
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include "base/log.hpp"
#include "fs/options.hpp"
#include "tools/commands.hpp"

namespace sluice {
namespace {

struct Verb {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr std::array kVerbs{
    Verb{"mount", "present tiers as one namespace", command_mount},
    Verb{"umount", "unmount, and wait until all is written", command_umount},
    Verb{"status", "tiers, fill, features in use, what lives where", command_status},
    Verb{"fsck", "check a pool that is not mounted", command_fsck},
};

void print_help(std::FILE* to) {
  std::fputs("usage: sluice <verb> [options] <path>\n\n", to);
  for (const auto& verb : kVerbs) {
    std::fprintf(to, "  %-8s %s\n", verb.name.data(), verb.summary.data());
  }
  std::fputs(
      "\n  sluice <verb> -h      the verb's options\n"
      "  sluice <verb> --help  its whole description\n"
      "  sluice --version\n",
      to);
}

int complain_about_verb(std::string_view word) {
  std::vector<std::string_view> names;
  std::string list;
  for (const auto& verb : kVerbs) {
    names.push_back(verb.name);
    list.append(list.empty() ? "" : ", ").append(verb.name);
  }
  const auto close = closest_word(word, names);
  std::fprintf(stderr, "sluice: unknown verb '%s'; %s\n", log::escaped(word).c_str(),
               close ? ("did you mean '" + std::string(*close) + "'?").c_str()
                     : ("allowed: " + list).c_str());
  return kUsage;
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_help(stderr);
    return kUsage;
  }
  const std::string_view word = argv[1];
  if (word == "-h" || word == "--help" || word == "help") {
    print_help(stdout);
    return kDone;
  }
  if (word == "--version") {
    std::puts("sluice " SLUICE_VERSION);
    return kDone;
  }
  for (const auto& verb : kVerbs) {
    if (verb.name == word) return verb.run(argc - 1, argv + 1);
  }
  return complain_about_verb(word);
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv, const HelpText& help) {
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  // Before CLI11 looks: a missing argument must not keep anyone from the help.
  for (const std::string_view argument : arguments.subspan(1)) {
    if (argument == "--") break;
    if (argument != "-h" && argument != "--help") continue;
    print("usage: ");
    print(help.usage);
    print("\n\n");
    print(help.options);
    if (argument == "--help") print(help.details);
    return kDone;
  }
  try {
    app.set_help_flag();
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sluice: %s: %s; see 'sluice %s --help'\n", argv[0],
                 log::escaped(error.what()).c_str(), argv[0]);
    return kUsage;
  }
  return std::nullopt;
}

int fail(std::string_view verb, std::string_view message) {
  std::fprintf(stderr, "sluice: %.*s: %.*s\n", static_cast<int>(verb.size()), verb.data(),
               static_cast<int>(message.size()), message.data());
  return kFailed;
}

}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice: unexpected: %s\n", error.what());
  }
  return sluice::kFailed;
}
