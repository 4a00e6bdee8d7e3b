// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/completion.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "fs/control/option_table.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/mounts.hpp"

namespace sluice::tools {
namespace {

// Possible values of an option, by the placeholder that help texts use for its value. Those of
// options of a mount are in the table of options.
constexpr std::array kValues{
    std::pair{"WHEN", "auto always never"}, std::pair{"PURPOSE", "models"},
    std::pair{"POLICIES", "all sluice lru lfu arc s3fifo gdsf autotier belady belady-size budget"}};

std::string_view values_of(std::string_view placeholder) {
  for (const auto& [name, values] : kValues) {
    if (placeholder == name) return values;
  }
  for (const OptionSpec& option : option_table()) {
    if (placeholder == option.placeholder) return option.words;
  }
  return {};
}

struct Cursor {
  std::string before;  // the option whose value is completed, or empty
  std::string word;
  std::string kept;  // the beginning of the shell's word that is not `word`: "--color="
};

// Shells split words differently: bash makes three words of --color=auto.
Cursor find_cursor(std::string before, std::string word) {
  if (word == "=") return {std::move(before), "", ""};
  const auto sign = word.find('=');
  if (!word.starts_with("--") || sign == std::string::npos)
    return {std::move(before), std::move(word), ""};
  return {word.substr(0, sign), word.substr(sign + 1), word.substr(0, sign + 1)};
}

void offer(const Cursor& cursor, std::string_view word, std::string_view meaning) {
  if (!word.starts_with(cursor.word)) return;
  std::printf("%s%.*s\t%.*s\n", cursor.kept.c_str(), static_cast<int>(word.size()), word.data(),
              static_cast<int>(meaning.size()), meaning.data());
}

void offer_tiers(const Cursor& cursor) {
  const auto mount = choose_mount("");
  if (!mount) return;
  const auto status = mount_status(*mount);
  if (!status) return;
  for (const auto& tier : member_of(*status, "tiers")) {
    offer(cursor, text_of(tier, "name"), text_of(tier, "path"));
  }
}

// Those that can change while the pool is mounted.
void offer_options(const Cursor& cursor) {
  const auto mount = choose_mount("");
  const auto status = mount ? mount_status(*mount) : Error(ENOENT, "choose a mount");
  for (const OptionSpec& option : option_table()) {
    const std::string name(option.name);
    if (!option.is_live || option.group == OptionSpec::Group::Rule) continue;
    if (option.group != OptionSpec::Group::Tier) {
      offer(cursor, name, option.help);
    } else if (status) {
      for (const auto& tier : member_of(*status, "tiers"))
        offer(cursor, text_of(tier, "name") + "." + name, option.help);
    }
  }
}

// `kind` is the placeholder in the help text. For an unknown one the shell offers files.
void offer_values(const Cursor& cursor, std::string_view kind) {
  if (kind == "TIER") return offer_tiers(cursor);
  if (kind == "OPTION") return offer_options(cursor);
  std::string_view rest = values_of(kind);
  while (!rest.empty()) {
    const auto end = std::min(rest.find(' '), rest.size());
    offer(cursor, rest.substr(0, end), "");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? "" : text.substr(begin);
}

}  // namespace

std::vector<OptionLine> parse_options(std::string_view text) {
  std::vector<OptionLine> out;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    std::string_view rest = trimmed(line);
    std::string_view letter;
    if (rest.size() > 4 && rest[0] == '-' && rest.substr(2, 2) == ", ") {
      letter = rest.substr(0, 2);
      rest.remove_prefix(4);
    }
    if (!rest.starts_with("--")) {
      if (out.empty()) continue;
      std::string& meaning = out.back().meaning;
      meaning.append(meaning.empty() ? "" : " ").append(rest);
      continue;
    }
    OptionLine& option = out.emplace_back();
    option.letter = letter;
    const auto take = [&rest] {
      const auto length = std::min(rest.find(' '), rest.size());
      const std::string_view word = rest.substr(0, length);
      rest.remove_prefix(length);
      return word;
    };
    option.name = take();
    // One space precedes the placeholder of a value, several precede the meaning.
    if (rest.size() > 1 && rest[1] != ' ') {
      rest.remove_prefix(1);
      option.value = take();
    }
    option.meaning = trimmed(rest);
  }
  return out;
}

int complete_verbs(std::span<char* const> arguments, std::span<const Verb> verbs) {
  if (arguments.size() < 3) return kUsage;
  const Cursor cursor{"", arguments[2], ""};
  for (const auto& verb : verbs) offer(cursor, verb.name, verb.summary);
  offer(cursor, "--help", "list the verbs");
  return kDone;
}

int complete_options(std::span<char* const> arguments, const HelpText& help, std::string_view verb,
                     bool is_first) {
  if (arguments.size() < 3) return kUsage;
  const Cursor cursor = find_cursor(arguments[1], arguments[2]);
  const auto options = parse_options(help.options);
  for (const auto& option : options) {
    if (option.name != cursor.before || option.value.empty()) continue;
    offer_values(cursor, option.value);
    return kDone;
  }
  if (cursor.word.starts_with('-')) {
    for (const auto& option : options) offer(cursor, option.name, option.meaning);
    return kDone;
  }
  // "sluice pin TIER PATH...": a first argument that is not a file.
  std::string_view place = help.usage.substr(program_of(help).size() + 1 + verb.size());
  place = place.substr(0, place.find('\n'));
  if (!is_first || !place.starts_with(' ')) return kDone;
  place = place.substr(1, place.find(' ', 1) - 1);
  offer_values(cursor, place == "NAME" ? "TIER" : place);
  return kDone;
}

int command_complete(int argc, char** argv, std::span<const Verb> verbs) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) words.emplace_back();
  const bool is_help = words.size() > 1 && words[0] == "help";
  if (is_help) words.erase(words.begin());
  std::string word = words.back();
  words.pop_back();
  // Bash passes "--color", "=", "au" for --color=au.
  if (!words.empty() && words.back() == "=") words.pop_back();
  std::string before = words.empty() ? "" : words.back();
  std::string mark(kCompletionMark);
  if (words.empty()) {
    if (!is_help) offer({"", word, ""}, "--version", "print the version");
    const std::array<char*, 3> arguments{mark.data(), before.data(), word.data()};
    return complete_verbs(arguments, verbs);
  }
  for (const auto& verb : verbs) {
    if (verb.name != words[0]) continue;
    std::vector<char*> arguments{words[0].data()};
    // The verb itself knows whether it has verbs.
    if (words.size() > 1 && !words[1].starts_with('-')) arguments.push_back(words[1].data());
    arguments.insert(arguments.end(), {mark.data(), before.data(), word.data()});
    const auto count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    return verb.run(count, arguments.data());
  }
  return kDone;
}

}  // namespace sluice::tools
