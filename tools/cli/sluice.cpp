// SPDX-License-Identifier: BSD-2-Clause
// sluice <verb> [options] <path>: the table of verbs and what holds for all of them.
#include <array>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include "base/log.hpp"
#include "fs/options.hpp"
#include "gpu/cufile_api.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/completion.hpp"
#include "tools/common/manual.hpp"
#include "tools/common/mounts.hpp"

namespace sluice {
namespace {

constexpr std::array kVerbs{
    Subverb{"init", "write a configuration from the disks that are here", command_init},
    Subverb{"mount", "present tiers as one namespace", command_mount},
    Subverb{"umount", "unmount, and wait until all is written", command_umount},
    Subverb{"status", "tiers, fill, features in use, what lives where", command_status},
    Subverb{"top", "a live view: tiers, moves, hottest files, throughput", command_top},
    Subverb{"web", "a page to watch it in a browser", command_web},
    Subverb{"explain", "why a file is where it is, and what would change that", command_explain},
    Subverb{"plan", "what would move, and why", command_plan},
    Subverb{"move", "send files to a tier", command_move},
    Subverb{"moves", "what has moved, and what is waiting to", command_moves},
    Subverb{"pin", "keep files, or all below a directory, on a tier", command_pin},
    Subverb{"unpin", "let heat decide again", command_unpin},
    Subverb{"tier", "run a pass, pause and resume, drain or add a tier", command_tier},
    Subverb{"trace", "record accesses, for the simulator", command_trace},
    Subverb{"simulate", "replay a trace against policies", command_simulate},
    Subverb{"gpu", "bring files to GPU memory, and measure it", command_gpu},
    Subverb{"log-level", "how much a running mount logs", command_log_level},
    Subverb{"doctor", "what this machine can do, and the one thing to fix", command_doctor},
    Subverb{"bundle", "collect a report of a problem, without names and content", command_bundle},
    Subverb{"fsck", "check a pool that is not mounted", command_fsck},
};

void print_help(std::FILE* to) {
  std::fputs("usage: sluice <verb> [options] <path>\n\n", to);
  for (const auto& verb : kVerbs) {
    std::fprintf(to, "  %-9s %s\n", verb.name.data(), verb.summary.data());
  }
  std::fputs(
      "\n  sluice <verb> -h      the verb's options\n"
      "  sluice help <verb>    its whole description, as does man sluice-<verb>\n"
      "  sluice --version\n",
      to);
}

// `who` is "sluice" or "sluice: tier".
int complain_about_verb(const std::string& who, std::string_view word,
                        std::span<const Subverb> verbs) {
  std::vector<std::string_view> names;
  std::string list;
  for (const auto& verb : verbs) {
    names.push_back(verb.name);
    list.append(list.empty() ? "" : ", ").append(verb.name);
  }
  const auto close = closest_word(word, names);
  std::fprintf(stderr, "%s: unknown verb '%s'; %s\n", who.c_str(), log::escaped(word).c_str(),
               close ? ("did you mean '" + std::string(*close) + "'?").c_str()
                     : ("allowed: " + list).c_str());
  return kUsage;
}

int run(int argc, char** argv);

// `sluice help tier run` is `sluice tier run --help`.
int run_help(int argc, char** argv) {
  std::string help = "--help";
  std::vector<char*> words(argv, argv + argc);
  words.erase(words.begin() + 1);
  words.insert(words.end(), {help.data(), nullptr});
  return run(argc, words.data());
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_help(stderr);
    return kUsage;
  }
  const std::string_view word = argv[1];
  if (word == "-h" || word == "--help" || (word == "help" && argc == 2)) {
    print_help(stdout);
    return kDone;
  }
  if (word == "help") return run_help(argc, argv);
  if (word == "--version") {
    std::puts("sluice " SLUICE_VERSION);
    return kDone;
  }
  // For the shells and the build: not in the table, so not in the help.
  if (word == "complete") return command_complete(argc - 1, argv + 1, kVerbs);
  if (word == "manual") return command_manual(argc - 1, argv + 1, kVerbs);
  for (const auto& verb : kVerbs) {
    if (verb.name == word) return verb.run(argc - 1, argv + 1);
  }
  return complain_about_verb("sluice", word, kVerbs);
}

}  // namespace

int run_subverb(int argc, char** argv, std::span<const Subverb> subverbs) {
  const std::string_view word = argc < 2 ? "" : argv[1];
  const bool is_help = word == "-h" || word == "--help";
  if (word == kCompletionMark) {
    return complete_verbs({argv + 1, static_cast<std::size_t>(argc - 1)}, subverbs);
  }
  if (word == kManualMark) {
    for (const auto& each : subverbs) {
      std::string name = std::string(argv[0]) + " " + std::string(each.name);
      std::vector<char*> words(argv, argv + argc);
      words[0] = name.data();
      words.push_back(nullptr);
      if (const int code = each.run(argc, words.data()); code != kDone) return code;
    }
    return kDone;
  }
  if (word.empty() || is_help) {
    std::FILE* to = is_help ? stdout : stderr;
    std::fprintf(to, "usage: sluice %s <verb> [options]\n\n", argv[0]);
    for (const auto& each : subverbs) {
      std::fprintf(to, "  %-8s %s\n", each.name.data(), each.summary.data());
    }
    std::fprintf(to, "\n  sluice %s <verb> --help  its whole description\n", argv[0]);
    return is_help ? kDone : kUsage;
  }
  for (const auto& each : subverbs) {
    if (each.name != word) continue;
    std::string name = std::string(argv[0]) + " " + argv[1];
    argv[1] = name.data();
    return each.run(argc - 1, argv + 1);
  }
  return complain_about_verb(std::string("sluice: ") + argv[0], word, subverbs);
}

int fail(std::string_view verb, std::string_view message) {
  std::fprintf(stderr, "sluice: %.*s: %.*s\n", static_cast<int>(verb.size()), verb.data(),
               static_cast<int>(message.size()), message.data());
  return kFailed;
}

int misuse(std::string_view verb, std::string_view message) {
  fail(verb, message);
  return kUsage;
}

std::optional<Style> style_for(std::string_view verb, const std::string& when) {
  const auto style = Style::create(when);
  if (!style) misuse(verb, "--color must be auto, always or never");
  return style;
}

std::optional<std::string> mount_for(std::string_view verb, const std::string& given) {
  const MountChoice choice = choose_mount(given);
  if (choice.problem.empty()) return choice.point;
  fail(verb, choice.problem);
  return std::nullopt;
}

}  // namespace sluice

int main(int argc, char** argv) {
  sluice::keep_cufile_log_away();  // while there is one thread, and before any daemon forks
  try {
    return sluice::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice: unexpected: %s\n", error.what());
  }
  return sluice::kFailed;
}
