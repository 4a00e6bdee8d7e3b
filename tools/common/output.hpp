// SPDX-License-Identifier: BSD-2-Clause
// What verbs print: tables, bars and colour for people, JSON for programs. Data goes to stdout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools {

struct FrameSize {
  std::size_t columns = 80;
  std::size_t rows = 24;
};
// The size of the terminal behind `fd`; nothing if it is not a terminal or its size is unknown.
std::optional<FrameSize> terminal_size(int fd);

enum class Color { None, Bold, Dim, Red, Green, Yellow };

// Whether stdout is a terminal and may have colour. Immutable.
class Style {
 public:
  // `when` is auto, always or never; auto asks whether stdout is a terminal and NO_COLOR is unset.
  // Returns nothing for another word.
  static std::optional<Style> create(std::string_view when);

  bool is_terminal() const { return is_terminal_; }
  std::string paint(Color color, const std::string& text) const;

 private:
  Style(bool is_terminal, bool has_color) : is_terminal_(is_terminal), has_color_(has_color) {}

  bool is_terminal_;
  bool has_color_;
};

// Lines of cells under a header, each column as wide as its widest cell. On a terminal that is too
// narrow for that, the cells of columns that allow it are shortened.
class Table {
 public:
  enum class Align { Left, Right };
  enum class Shorten { Never, Middle, End };
  struct Column {
    std::string header;
    Align align = Align::Left;
    Shorten shorten = Shorten::Never;
  };
  struct Cell {
    // NOLINTNEXTLINE(google-explicit-constructor): a cell is a text, sometimes with a colour.
    Cell(std::string cell_text, Color cell_color = Color::None)
        : text(std::move(cell_text)), color(cell_color) {}
    std::string text;
    Color color;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // In a row shorter than the header, the last cell may be wider than its column.
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  std::string text(const Style& style) const;
  // For a terminal of so many columns. REQUIRES: the texts are results of printable().
  std::string text(const Style& style, std::size_t columns) const;

 private:
  std::vector<std::size_t> widths(std::size_t columns) const;
  std::string shortened(std::size_t column, const std::string& text, std::size_t width) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// "[########....|...]": `percent` of `width`, with a mark at `mark` percent.
std::string fill_bar(unsigned percent, unsigned mark, std::size_t width);

// "12", "1,204,332".
std::string format_count(std::uint64_t number);

// "1 file", "1,204 files".
std::string format_files(std::uint64_t number);

// A score: "0", "12.5", "1204".
std::string format_score(double score);

// Local time of a second since the epoch: "2026-11-15 06:07:28"; "-" for 0.
std::string format_time(std::int64_t seconds);

// printable() if stdout is a terminal; unchanged otherwise.
std::string safe_name(const Style& style, const std::string& text);

// A word of a command that the user may copy: quoted for a shell where needed, and without control
// characters.
std::string shell_word(const std::string& text);

}  // namespace sluice::tools
