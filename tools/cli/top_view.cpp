// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/top_view.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/units.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/text_width.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::seconds;

constexpr std::size_t kBar = 16;       // of a tier
constexpr std::size_t kShortBar = 10;  // of a move
constexpr std::size_t kTierName = 10;

std::string padded_left(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(width > used ? width - used : 0, ' ').append(text);
}

std::string size_text(double bytes) {
  return format_size(static_cast<std::uint64_t>(std::clamp(bytes, 0.0, 1e18)));
}

std::string rate_text(double bytes) { return bytes < 1 ? "-" : size_text(bytes) + "/s"; }

std::string count_rate(double count) {
  return format_count(static_cast<std::uint64_t>(std::clamp(std::round(count), 0.0, 1e18))) + "/s";
}

unsigned percent_of(double part, double whole) {
  return whole > 0 ? static_cast<unsigned>(std::clamp(100 * part / whole, 0.0, 100.0)) : 0;
}

std::string name_text(const Json& object, const char* key) {
  return printable(text_of(object, key));
}

// "3.0 GiB left (5 min)": what all queued and running moves will take.
std::string left_text(const Json& migration) {
  const bool is_known = member_of(migration, "bytes_left").is_number();
  std::string text =
      size_text(real_of(migration, is_known ? "bytes_left" : "queued_bytes")) + " left";
  if (member_of(migration, "time_left_s").is_number() && number_of(migration, "queued") > 0) {
    const seconds left(static_cast<std::int64_t>(real_of(migration, "time_left_s")));
    text += " (" + format_duration(left) + ")";
  }
  return text;
}

class Frame {
 public:
  Frame(const Json& before, const Json& now, std::int64_t time, FrameSize size, const Style& style)
      : before_(before),
        now_(now),
        time_(time),
        size_(size),
        style_(style),
        elapsed_(real_of(now, "uptime_s") - real_of(before, "uptime_s")) {}

  std::vector<std::string> lines() {
    head();
    tiers();
    requests();
    gpu();
    moves();
    hottest();
    if (lines_.size() > size_.rows) lines_.resize(size_.rows);
    return std::move(lines_);
  }

 private:
  // The growth of a count per second; 0 if it is unknown or the daemon was restarted.
  double rate(double then, double count) const {
    return elapsed_ > 0 && count > then ? (count - then) / elapsed_ : 0;
  }
  double rate(const Json& then, const Json& object, const char* key) const {
    return rate(real_of(then, key), real_of(object, key));
  }

  std::size_t rows_left() const {
    return size_.rows > lines_.size() ? size_.rows - lines_.size() : 0;
  }
  // Does not cut `painted`, which may contain colours: callers cut the text before they add
  // colours.
  void add(std::string painted) { lines_.push_back(std::move(painted)); }
  void add_plain(std::string_view text, Color color = Color::None) {
    add(style_.paint(color, cut_to(text, size_.columns)));
  }
  void blank() { add(""); }

  void head() {
    const Json& requests = member_of(now_, "requests");
    double sum = 0;
    for (const auto& [name, count] : requests.items())
      sum += rate(member_of(before_, "requests"), requests, name.c_str());
    const auto up = static_cast<std::int64_t>(real_of(now_, "uptime_s"));
    const std::string rest = "  up " + format_duration(seconds(up)) + ", " +
                             format_count(number_of(now_, "open_files")) + " open files, " +
                             count_rate(sum) + " requests";
    const std::size_t room = size_.columns > rest.size() ? size_.columns - rest.size() : 0;
    const std::string mount =
        cut_front(name_text(now_, "mountpoint"), std::max<std::size_t>(room, 12));
    const std::size_t used = display_width(mount);
    add(style_.paint(Color::Bold, cut_to(mount, size_.columns)) +
        cut_to(rest, size_.columns > used ? size_.columns - used : 0));
    blank();
  }

  const Json& tier_before(const std::string& name) const {
    static const Json kNone;
    for (const Json& tier : member_of(before_, "tiers")) {
      if (text_of(tier, "name") == name) return tier;
    }
    return kNone;
  }

  void tiers() {
    const Json& tiers = member_of(now_, "tiers");
    add_plain(fitted("TIER", kTierName) + fitted(" FULL", kBar + 9) + padded_left("FREE", 11) +
                  padded_left("READ", 14) + padded_left("WRITE", 14) + padded_left("BUSY", 6),
              Color::Bold);
    // Leave half of a small screen for the other parts.
    const std::size_t most = std::max<std::size_t>(3, size_.rows / 2);
    std::size_t shown = 0;
    for (const Json& tier : tiers) {
      if (++shown > most) break;
      add_tier(tier);
    }
    if (tiers.size() > most)
      add_plain("... and " + std::to_string(tiers.size() - most) + " more", Color::Dim);
    blank();
  }

  void add_tier(const Json& tier) {
    const std::string name = fitted(name_text(tier, "name"), std::min(kTierName, size_.columns));
    const std::size_t room = size_.columns - display_width(name);
    if (!flag_of(tier, "online")) {
      add(name + style_.paint(Color::Red, cut_to(" offline", room)));
      add_states(tier);
      return;
    }
    const unsigned percent = percent_used(tier);
    const auto high = static_cast<unsigned>(number_of(tier, "high_watermark"));
    const auto low = static_cast<unsigned>(number_of(tier, "low_watermark"));
    const bool is_crowded = has_state(tier, "full") || has_state(tier, "above-watermark");
    const Color color = is_crowded ? Color::Red : percent >= low ? Color::Yellow : Color::Green;
    const std::string bar = cut_to(" " + fill_bar(percent, high, kBar), room);
    const Json& before = tier_before(text_of(tier, "name"));
    const Json& disk = member_of(tier, "disk");
    // Disk statistics include passthrough; those of the daemon do not.
    const bool has_disk = disk.is_object();
    const Json& now = has_disk ? disk : tier;
    const Json& then = has_disk ? member_of(before, "disk") : before;
    const bool is_known = then.is_object();
    const double busy = is_known ? rate(then, now, "busy_ms") / 1000 : 0;
    const std::string rest =
        padded_left(std::to_string(percent) + "%", 6) +
        padded_left(size_text(real_of(tier, "free")), 11) +
        padded_left(rate_text(is_known ? rate(then, now, "read_bytes") : 0), 14) +
        padded_left(rate_text(is_known ? rate(then, now, "written_bytes") : 0), 14) +
        padded_left(has_disk ? std::to_string(percent_of(busy, 1)) + "%" : "", 6);
    const std::size_t used = display_width(bar);
    add(name + style_.paint(color, bar) + cut_to(rest, room > used ? room - used : 0));
    add_states(tier);
  }

  // What is not as usual, in whole sentences.
  void add_states(const Json& tier) {
    const std::string indent(kTierName + 1, ' ');
    for (const Json& state : member_of(tier, "states")) {
      const Color color = flag_of(state, "serious") ? Color::Red : Color::Yellow;
      std::istringstream words(name_text(state, "name") + ": " + name_text(state, "words"));
      std::string line = indent;
      for (std::string word; words >> word;) {
        const bool is_first = line.size() <= indent.size() + 2;
        if (!is_first && display_width(line) + 1 + display_width(word) > size_.columns) {
          add_plain(line, color);
          line = indent + "  ";
        }
        line += (line.ends_with(' ') ? "" : " ") + word;
      }
      add_plain(line, color);
    }
  }

  // The most frequent kinds that fit on one line.
  void requests() {
    const Json& requests = member_of(now_, "requests");
    std::vector<std::pair<double, std::string>> kinds;
    for (const auto& [name, count] : requests.items()) {
      const double each = rate(member_of(before_, "requests"), requests, name.c_str());
      if (each >= 0.5) kinds.emplace_back(-each, printable(name));
    }
    std::sort(kinds.begin(), kinds.end());
    std::string line;
    for (const auto& [negative, name] : kinds) {
      const std::string each = "  " + name + " " + count_rate(-negative);
      if (kTierName + line.size() + each.size() > size_.columns) break;
      line += each;
    }
    labelled("REQUESTS", line.empty() ? "  none" : line);
  }

  void labelled(std::string_view label, const std::string& text) {
    const std::size_t width = std::min(kTierName, size_.columns);
    add(style_.paint(Color::Bold, fitted(label, width)) + cut_to(text, size_.columns - width));
  }

  void gpu() {
    const Json& routes = member_of(member_of(now_, "gpu"), "routes");
    const Json& then = member_of(member_of(before_, "gpu"), "routes");
    if (number_of(member_of(routes, "all"), "operations") == 0) return;
    std::string label = "GPU";
    for (const auto& [name, route] : routes.items()) {
      if (name == "all") continue;
      const Json& before = member_of(then, name);
      labelled(std::exchange(label, ""),
               "  " + fitted(printable(name), 8) +
                   padded_left(rate_text(rate(before, route, "bytes")), 14) +
                   padded_left(count_rate(rate(before, route, "operations")), 12) + ", " +
                   size_text(real_of(route, "bytes")) + " so far, p99 " +
                   format_score(real_of(route, "p99_us")) + " us");
    }
    for (const Json& device : member_of(member_of(now_, "gpu"), "devices")) {
      const Json& hbm = member_of(device, "hbm");
      if (hbm.empty()) continue;
      labelled("HBM", "  " + size_text(real_of(hbm, "bytes")) + " of " +
                          size_text(real_of(hbm, "limit")) + " with " +
                          format_count(number_of(hbm, "files")) + " files, " +
                          format_count(number_of(hbm, "hits")) + " hits, " +
                          printable(text_of(device, "uuid")));
    }
  }

  void moves() {
    const Json& migration = member_of(now_, "migration");
    const Json& moves = member_of(now_, "moves");
    const auto active = number_of(migration, "active");
    // The most important parts come first, because a narrow terminal cuts the rest off.
    std::string line = "  " + format_count(active) + " under way, " +
                       format_count(number_of(migration, "queued")) + " queued, " +
                       left_text(migration) + ", " + format_count(number_of(migration, "pending")) +
                       " waiting";
    const double copied = rate(member_of(before_, "migration"), migration, "copied_bytes");
    if (copied >= 1) line += ", " + rate_text(copied);
    line += ", " + format_count(number_of(migration, "moved")) + " done";
    if (flag_of(migration, "paused")) line += ", paused";
    labelled("MOVES", line);
    // Leave half of the remaining rows for the hottest files, if there are enough rows.
    const std::size_t room = rows_left() > 8 ? rows_left() / 2 : rows_left();
    std::size_t shown = 0;
    for (const Json& move : moves) {
      if (real_of(move, "since") <= 0) continue;  // not started yet
      if (++shown > room) break;
      add_move(move);
    }
    blank();
  }

  const Json& move_before(const Json& move) const {
    static const Json kNone;
    for (const Json& each : member_of(before_, "moves")) {
      if (text_of(each, "path") == text_of(move, "path") &&
          number_of(each, "since") == number_of(move, "since")) {
        return each;
      }
    }
    return kNone;
  }

  void add_move(const Json& move) {
    const double bytes = real_of(move, "bytes"), total = real_of(move, "total");
    const unsigned percent = total > 0 ? percent_of(bytes, total) : 100;
    const Json& before = move_before(move);
    const double speed = before.is_object() ? rate(before, move, "bytes") : 0;
    // From the average so far: an estimate from the last second would fluctuate.
    const double took = static_cast<double>(time_) - real_of(move, "since");
    std::string left;
    if (took > 0 && bytes > 0 && total > bytes) {
      const double guess = std::ceil((total - bytes) / bytes * took);
      if (guess < 1e9) left = format_duration(seconds(static_cast<std::int64_t>(guess))) + " left";
    }
    const std::string bar = cut_to(" " + fill_bar(percent, 100, kShortBar), size_.columns);
    const std::string rest = padded_left(std::to_string(percent) + "%", 5) +
                             padded_left(rate_text(speed), 13) + "  " + fitted(left, 15) +
                             name_text(move, "from") + " -> " + name_text(move, "to") + "  ";
    std::size_t room = size_.columns - display_width(bar);
    const std::string middle = cut_to(rest, room);
    room -= display_width(middle);
    add(style_.paint(Color::Green, bar) + middle + cut_front(name_text(move, "path"), room));
  }

  void hottest() {
    const Json& files = member_of(now_, "hottest");
    if (files.empty() || rows_left() < 2) return;
    add_plain(fitted("HOTTEST", kTierName) + padded_left("SCORE", 9) + "  FILE", Color::Bold);
    for (const Json& file : files) {
      if (rows_left() == 0) return;
      const std::string start =
          cut_to(fitted(name_text(file, "tier"), kTierName) +
                     padded_left(format_score(real_of(file, "score")), 9) + "  ",
                 size_.columns);
      add(start + cut_front(name_text(file, "path"), size_.columns - display_width(start)));
    }
  }

  const Json& before_;
  const Json& now_;
  const std::int64_t time_;
  const FrameSize size_;
  const Style& style_;
  const double elapsed_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> top_screen(const Json& before, const Json& now, std::int64_t time,
                                    FrameSize size, const Style& style) {
  if (size.rows < 2) return top_frame(before, now, time, size, style);
  auto lines = top_frame(before, now, time, {size.columns, size.rows - 1}, style);
  lines.resize(size.rows - 1);
  lines.push_back(style.paint(Color::Dim, cut_to(" q  quit", size.columns)));
  return lines;
}

std::vector<std::string> top_frame(const Json& before, const Json& now, std::int64_t time,
                                   FrameSize size, const Style& style) {
  return Frame(before, now, time, size, style).lines();
}

}  // namespace sluice::tools::cli
