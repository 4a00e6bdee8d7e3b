// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/output.hpp"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>

#include "base/log.hpp"
#include "tools/common/text_width.hpp"

namespace sluice::tools {
namespace {

const char* escape_code(Color color) {
  switch (color) {
    case Color::None:
      return "";
    case Color::Bold:
      return "\033[1m";
    case Color::Dim:
      return "\033[2m";
    case Color::Red:
      return "\033[31m";
    case Color::Green:
      return "\033[32m";
    case Color::Yellow:
      return "\033[33m";
  }
  return "";
}

}  // namespace

std::optional<FrameSize> terminal_size(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return FrameSize{size.ws_col, size.ws_row != 0 ? std::size_t{size.ws_row} : 24};
}

std::optional<Style> Style::create(std::string_view when) {
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  if (when == "always") return Style(is_terminal, true);
  if (when == "never") return Style(is_terminal, false);
  if (when != "auto") return std::nullopt;
  const char* no_color = std::getenv("NO_COLOR");
  return Style(is_terminal, is_terminal && (no_color == nullptr || *no_color == '\0'));
}

std::string Style::paint(Color color, const std::string& text) const {
  if (!has_color_ || color == Color::None || text.empty()) return text;
  return escape_code(color) + text + "\033[0m";
}

std::vector<std::size_t> Table::widths(std::size_t columns) const {
  constexpr std::size_t kNarrowest = 8;
  constexpr std::size_t kGap = 2;
  std::vector<std::size_t> out;
  std::size_t all = 0;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    out.push_back(display_width(columns_[i].header));
    for (const auto& row : rows_) {
      const bool runs_on = i + 1 == row.size() && row.size() < columns_.size();
      if (i < row.size() && !runs_on) out[i] = std::max(out[i], display_width(row[i].text));
    }
    all += out[i] + (i > 0 ? kGap : 0);
  }
  // The widest column is shortened first.
  for (; all > columns; --all) {
    std::size_t* widest = nullptr;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].shorten == Shorten::Never || out[i] <= kNarrowest) continue;
      if (widest == nullptr || out[i] > *widest) widest = &out[i];
    }
    if (widest == nullptr) break;
    --*widest;
  }
  return out;
}

std::string Table::shortened(std::size_t column, const std::string& text, std::size_t width) const {
  switch (columns_[column].shorten) {
    case Shorten::Never:
      return text;
    case Shorten::Middle:
      return cut_middle(text, width);
    case Shorten::End:
      break;
  }
  return display_width(text) <= width ? text : cut_to(text, width - 3) + "...";
}

std::string Table::text(const Style& style) const {
  const auto size = style.is_terminal() ? terminal_size(STDOUT_FILENO) : std::nullopt;
  return text(style, size ? size->columns : std::numeric_limits<std::size_t>::max());
}

std::string Table::text(const Style& style, std::size_t columns) const {
  const std::vector<std::size_t> widths = this->widths(columns);
  std::string out;
  const auto append_row = [&](const std::vector<Cell>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool is_last = i + 1 == row.size();
      const bool runs_on = is_last && row.size() < columns_.size();
      const std::string text = runs_on ? row[i].text : shortened(i, row[i].text, widths[i]);
      const std::size_t width = display_width(text);
      const std::string padding(widths[i] > width ? widths[i] - width : 0, ' ');
      const std::string cell = style.paint(row[i].color, text);
      if (columns_[i].align == Align::Right && (!is_last || row.size() == columns_.size())) {
        out += padding + cell;
      } else {
        out += is_last ? cell : cell + padding;
      }
      out += is_last ? "\n" : "  ";
    }
  };
  std::vector<Cell> header;
  for (const auto& column : columns_) header.emplace_back(column.header, Color::Bold);
  append_row(header);
  for (const auto& row : rows_) append_row(row);
  return out;
}

std::string fill_bar(unsigned percent, unsigned mark, std::size_t width) {
  const std::size_t filled = (std::min(percent, 100u) * width + 50) / 100;
  std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
  const std::size_t at = std::min(mark, 100u) * width / 100;
  if (at < width && at >= filled) bar[at] = '|';
  return "[" + bar + "]";
}

std::string format_count(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string format_files(std::uint64_t number) {
  return format_count(number) + (number == 1 ? " file" : " files");
}

std::string format_score(double score) {
  std::array<char, 64> out{};
  std::snprintf(out.data(), out.size(), "%.*f", score < 1000 ? 1 : 0, score);
  std::string text = out.data();
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string format_time(std::int64_t seconds) {
  if (seconds == 0) return "-";
  const std::time_t time = seconds;
  std::tm local{};
  std::array<char, 64> out{};
  if (::localtime_r(&time, &local) == nullptr ||
      std::strftime(out.data(), out.size(), "%Y-%m-%d %H:%M:%S", &local) == 0) {
    return std::to_string(seconds);
  }
  return out.data();
}

std::string safe_name(const Style& style, const std::string& text) {
  return style.is_terminal() ? printable(text) : text;
}

std::string shell_word(const std::string& text) {
  const bool is_plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c >= 0x80 || std::isalnum(c) != 0 || std::strchr("/._-+=:,@%", c) != nullptr;
  });
  if (is_plain) return text;
  // log::escaped() writes \xNN, which shells understand between $' and '.
  const std::string shown = log::escaped(text);
  std::string out = shown == text ? "'" : "$'";
  for (const char c : shown) {
    if (c == '\'') {
      out += shown == text ? "'\\''" : "\\'";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace sluice::tools
