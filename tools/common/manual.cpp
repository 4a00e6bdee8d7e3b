// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/manual.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <vector>

#include "tools/common/completion.hpp"
#include "tools/common/option_texts.hpp"

namespace sluice::tools {
namespace {

struct Section {
  const char* title;
  const char* begin = "";  // text at the beginning of the section
  const char* end = "";
};
constexpr std::array kSections{
    Section{"SYNOPSIS", ".nf\n", ".fi\n"},
    Section{"DESCRIPTION"},
    Section{"OPTIONS",
            "\\fB\\-h\\fR prints the options, \\fB\\-\\-help\\fR also the description.\n"},
    Section{"EXAMPLES"},
    Section{"EXIT STATUS"},
};

// Escapes `text` for roff so that it can be copied from the page: otherwise man shows typographic
// quotes and hyphens.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// A dot at the beginning of a line would be a roff request.
std::string as_line(std::string text) {
  return (text.starts_with('.') ? "\\&" : "") + std::move(text) + "\n";
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; }

// Literal words become bold; placeholders, which are in capitals, do not.
std::string painted_usage(std::string_view usage) {
  std::string out;
  while (!usage.empty()) {
    const auto end = std::find_if_not(usage.begin(), usage.end(), is_word);
    const auto length = static_cast<std::size_t>(end - usage.begin());
    const std::string_view word = usage.substr(0, length);
    if (word.empty()) {
      out += escaped(usage.substr(0, 1));
      usage.remove_prefix(1);
      continue;
    }
    const bool stands_for =
        word == "options" || word == "verb" ||
        std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isupper(c) != 0; });
    out += (stands_for ? "\\fI" : "\\fB") + escaped(word) + "\\fR";
    usage.remove_prefix(length);
  }
  return out;
}

// Quoted commands ('sluice plan') and options become bold; the quotes are removed.
std::string painted_text(std::string_view text) {
  constexpr std::string_view kCommand = "'sluice";
  std::string out;
  while (!text.empty()) {
    const auto command = text.find(kCommand);
    const auto option = text.find("--");
    const auto start = std::min({command, option, text.size()});
    out += escaped(text.substr(0, start));
    text.remove_prefix(start);
    if (text.empty()) break;
    const bool is_command = command < option;
    if (is_command) text.remove_prefix(1);
    const auto length =
        is_command ? std::min(text.find('\''), text.size())
                   : static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_word) -
                                              text.begin());
    out += "\\fB" + escaped(text.substr(0, length)) + "\\fR";
    text.remove_prefix(std::min(length + (is_command ? 1 : 0), text.size()));
  }
  return out;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

using Lines = std::span<const std::string_view>;

std::string verbatim(Lines lines) {
  std::string out = ".RS 4\n.nf\n";
  for (const auto line : lines)
    out += as_line(escaped(line.substr(std::min<std::size_t>(2, line.size()))));
  return out + ".fi\n.RE\n";
}

// "  on       its tier": a word, then its meaning after two or more spaces or on the next lines.
std::string definitions(Lines lines) {
  std::string out;
  for (const auto line : lines) {
    const std::string_view rest = line.substr(indent_of(line));
    if (indent_of(line) > 2) {
      out += as_line(painted_text(rest));
      continue;
    }
    const auto gap = rest.find("  ");
    out += ".TP\n\\fB" + escaped(rest.substr(0, gap)) + "\\fR\n";
    if (gap == std::string_view::npos) continue;
    const std::string_view meaning = rest.substr(gap);
    out += as_line(painted_text(meaning.substr(indent_of(meaning))));
  }
  return out;
}

bool defines(std::string_view line) {
  const std::string_view rest = line.substr(indent_of(line));
  return rest.find("  ") != std::string_view::npos;
}

// A block is a paragraph, a list of definitions (indented), or preformatted lines (indented).
std::string block_text(Lines block) {
  if (indent_of(block[0]) > 0) return defines(block[0]) ? definitions(block) : verbatim(block);
  std::string out = ".PP\n";
  for (const auto line : block) out += as_line(painted_text(line));
  return out;
}

// Splits the details at empty lines. "Examples:" and "Exit status:" begin sections.
std::string detail_section(std::string_view details, std::string_view title) {
  const auto lines = lines_of(details);
  std::string out;
  for (std::size_t i = 0; i < lines.size();) {
    if (lines[i].empty()) {
      ++i;
      continue;
    }
    auto end = i;
    while (end < lines.size() && !lines[end].empty()) ++end;
    const Lines block(lines.data() + i, end - i);
    i = end;
    const bool is_example = block[0] == "Examples:" || block[0] == "Example:";
    constexpr std::string_view kExit = "Exit status: ";
    const bool is_exit = block[0].starts_with(kExit);
    if (title == "EXAMPLES" && is_example) out += verbatim(block.subspan(1));
    if (title == "DESCRIPTION" && !is_example && !is_exit) out += block_text(block);
    if (title != "EXIT STATUS" || !is_exit) continue;
    out += as_line(painted_text(block[0].substr(kExit.size())));
    for (const auto line : block.subspan(1)) out += as_line(painted_text(line));
  }
  // The macro .SH begins a paragraph; the first .PP is not needed.
  return out.starts_with(".PP\n") ? out.substr(4) : out;
}

std::string option_section(std::string_view options) {
  std::string out;
  for (const auto& option : parse_options(options)) {
    if (option.name == "--help") continue;  // described at the beginning of the section
    const std::string value = option.value.empty() ? "" : " " + option.value;
    const std::string letter = option.letter.empty() ? "" : option.letter + ", ";
    out += ".TP\n" + painted_usage(letter + option.name + value) + "\n" +
           as_line(painted_text(option.meaning));
  }
  return out;
}

}  // namespace

std::string painted(std::string_view text) { return painted_text(text); }

std::string manual_section(const HelpText& help, std::string_view title) {
  if (title == "SYNOPSIS") return painted_usage(help.usage) + "\n";
  if (title == "OPTIONS") return option_section(help.options);
  return detail_section(help.details, title);
}

int print_manual_part(std::span<char* const> arguments, const HelpText& help,
                      std::string_view verb) {
  if (arguments.size() < 2) return kUsage;
  const std::string_view title = arguments[1];
  const std::string text = manual_section(help, title);
  if (text.empty()) return kDone;
  const bool needs_heading = verb.find(' ') != std::string_view::npos && title != "SYNOPSIS";
  const std::string heading = needs_heading ? ".SS " + escaped(verb) + "\n" : "";
  std::fputs((heading + text).c_str(), stdout);
  return kDone;
}

int command_manual(int argc, char** argv, const Program& program) {
  const auto verbs = program.verbs;
  const std::string name_of_program = escaped(program.name);
  if (argc < 2) {
    for (const auto& verb : verbs) {
      std::printf(".TP\n.BR %s\\-%s (1)\n%s\n", name_of_program.c_str(), escaped(verb.name).c_str(),
                  painted_text(verb.summary).c_str());
    }
    return kDone;
  }
  if (argc > 2 && std::string_view(argv[1]) == "options") {
    return print_options(argv[2], argc > 3 ? argv[3] : "");
  }
  const auto verb = std::find_if(verbs.begin(), verbs.end(),
                                 [&](const Verb& each) { return each.name == argv[1]; });
  if (verb == verbs.end()) return kUsage;
  std::string capitals = std::string(program.name) + "-" + std::string(verb->name);
  std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::printf(".TH %s 1 \"\" \"sluice " SLUICE_VERSION "\" \"User Commands\"\n",
              escaped(capitals).c_str());
  std::printf(".SH NAME\n%s\\-%s \\- %s\n", name_of_program.c_str(), escaped(verb->name).c_str(),
              escaped(verb->summary).c_str());
  std::string name(verb->name), mark(kManualMark);
  for (const Section& section : kSections) {
    std::string title = section.title;
    std::printf(".SH %s\n%s", section.title, section.begin);
    std::array<char*, 4> arguments{name.data(), mark.data(), title.data(), nullptr};
    if (const int code = verb->run(3, arguments.data()); code != kDone) return code;
    std::fputs(section.end, stdout);
  }
  std::puts(".SH SEE ALSO\n.BR sluice (1),");
  if (program.name != "sluice") std::printf(".BR %s (1),\n", name_of_program.c_str());
  std::puts(
      ".BR libsluice (3),\n.BR sluice.toml (5)\n.PP\n"
      "Further documentation is in /usr/share/doc/sluice.");
  return kDone;
}

}  // namespace sluice::tools
