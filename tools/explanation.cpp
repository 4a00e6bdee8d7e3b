// SPDX-License-Identifier: BSD-2-Clause
#include "tools/explanation.hpp"

#include <algorithm>
#include <chrono>

#include "base/units.hpp"
#include "tools/mount_status.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLabelWidth = 8;

std::string duration_of(std::int64_t seconds) {
  return format_duration(std::chrono::seconds(std::max<std::int64_t>(seconds, 0)));
}

// Writes one explanation. Lives for one text.
class Writer {
 public:
  Writer(const Style& style, const Json& json, std::int64_t now)
      : style_(style), json_(json), now_(now) {}

  std::string text(const std::string& path) {
    out_ = style_.paint(Color::Bold, safe(path)) + "\n";
    write_where();
    write_heat();
    write_why();
    write_choices();
    write_changes();
    write_work();
    return out_;
  }

 private:
  std::string safe(const std::string& text) const { return safe_name(style_, text); }
  std::string named(const Json& object, std::string_view key) const {
    return safe(text_of(object, key));
  }

  void line(std::string_view label, const std::string& text, Color color = Color::None) {
    out_ += "  " + style_.paint(Color::Dim, std::string(label)) +
            std::string(kLabelWidth - std::min(label.size(), kLabelWidth - 1), ' ') +
            style_.paint(color, text) + "\n";
  }

  void write_where() {
    std::string text = named(json_, "tier") + ", " + format_size(number_of(json_, "bytes"));
    if (const auto arrived = static_cast<std::int64_t>(number_of(json_, "arrived")); arrived > 0) {
      text += ", there for " + duration_of(now_ - arrived);
    }
    if (const auto links = number_of(json_, "links"); links > 1) {
      text += ", one of " + format_count(links) + " names (hard links)";
    }
    line("on", text);
    const std::string location = named(json_, "location");
    if (!location.empty()) line("at", location);
  }

  void write_heat() {
    const auto opens = number_of(json_, "opens");
    std::string text = "score " + format_score(real_of(json_, "score"));
    const auto last = static_cast<std::int64_t>(number_of(json_, "last_use"));
    if (opens == 0 && last == 0) {
      text += ": never opened here";
    } else {
      text += ": opened " + (opens == 1 ? "once" : format_count(opens) + " times");
      if (last > 0) text += ", last used " + duration_of(now_ - last) + " ago";
    }
    line("heat", text);
  }

  void write_why() {
    const std::string why = named(json_, "why");
    const std::string wants = named(json_, "wants");
    if (wants.empty() || wants == named(json_, "tier")) {
      if (!why.empty()) line("why", why);
      return;
    }
    line("wants", "to be on " + wants + (why.empty() ? "" : ": " + why));
    const std::string hold = text_of(json_, "hold");
    if (!hold.empty()) line("but", safe(hold_text(hold)), Color::Yellow);
  }

  void write_choices() {
    if (const Json& pin = member_of(json_, "pin"); pin.is_object()) {
      const std::string from = text_of(pin, "from");
      const bool is_own = from.empty() || from == text_of(json_, "path");
      line("pin", named(pin, "tier") + (is_own ? ", its own" : ", from " + safe(from)));
    }
    if (const Json& rule = member_of(json_, "rule"); rule.is_object()) {
      const std::string tier = named(rule, "tier");
      line("rule", named(rule, "match") + " -> " + (tier.empty() ? "stay" : tier));
    }
  }

  void write_changes() {
    const double score = real_of(json_, "score");
    if (const Json& promote = member_of(json_, "promote"); promote.is_object()) {
      const double at = real_of(promote, "at");
      line("up", "to " + named(promote, "tier") + " from score " + format_score(at) + " on" +
                     (score < at ? ", which takes " + format_score(at - score) + " more"
                                 : ", which it has"));
    }
    if (const Json& demote = member_of(json_, "demote"); demote.is_object()) {
      line("down", "to " + named(demote, "tier") + " when its score falls below " +
                       format_score(real_of(demote, "below")));
    }
    const auto until = static_cast<std::int64_t>(number_of(json_, "stays_until"));
    if (until > now_) {
      line("stays", "for another " + duration_of(until - now_) + ", whatever its heat (min_stay)");
    }
  }

  void write_work() {
    if (const Json& moving = member_of(json_, "moving"); moving.is_object()) {
      line("moving", "to " + named(moving, "to") + ", now", Color::Green);
    }
    if (const Json& pending = member_of(json_, "pending"); pending.is_object()) {
      const std::string why = named(pending, "why");
      line("waiting", "to move to " + named(pending, "to") + (why.empty() ? "" : ": " + why),
           Color::Yellow);
    }
  }

  const Style& style_;
  const Json& json_;
  const std::int64_t now_;
  std::string out_;
};

}  // namespace

std::string explanation_text(const Style& style, const std::string& path, const Json& explanation,
                             std::int64_t now) {
  return Writer(style, explanation, now).text(path);
}

std::string hold_text(std::string_view hold) {
  std::string word(hold);
  std::replace(word.begin(), word.end(), '-', '_');
  if (word == "min_stay") return "it came not long ago (min_stay)";
  if (word == "only_once") return "it was used only once, which may have been all";
  if (word == "no_room") return "there is no room, and nothing there ranks lower";
  if (word == "offline") return "that tier is not there";
  return std::string(hold);
}

}  // namespace sluice
