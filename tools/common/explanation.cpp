// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/explanation.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/units.hpp"
#include "metadata/store.hpp"
#include "tiering/choose/tier_facts.hpp"
#include "tiering/choose/worth.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLabelWidth = 8;

std::string duration_of(std::int64_t seconds) {
  return format_duration(std::chrono::seconds(std::max<std::int64_t>(seconds, 0)));
}

// Why a file that should move does not, from the protocol's word; unknown words are returned as is.
// `tier` is the one that keeps it.
std::string hold_text(const std::string& hold, const std::string& tier) {
  std::string word(hold);
  std::replace(word.begin(), word.end(), '-', '_');
  if (word == "min_stay") return "it arrived recently (min_stay)";
  if (word == "only_once") return "it was used only once so far";
  if (word == "no_room") return "it does not fit there, unless files of less worth leave";
  if (word == "offline") return tier + " is offline";
  if (word == "draining") return tier + " is being emptied";
  if (word == "read_only") return tier + " is read-only";
  if (word == "failing") return tier + " fails";
  if (word == "nowhere") return "no other tier takes files";
  if (word == "too_large") return "it is larger than all of " + tier;
  return hold;
}

// Writes one explanation.
class Writer {
 public:
  Writer(const Json& json, std::int64_t now) : json_(json), now_(now) {}

  std::vector<ExplanationLine> lines() {
    write_where();
    if (is_offline()) {
      write_work();
      write_moves();
      return std::move(lines_);
    }
    write_heat();
    write_why();
    write_worth();
    write_choices();
    write_budgets();
    write_changes();
    write_work();
    write_moves();
    return std::move(lines_);
  }

 private:
  bool is_offline() const { return member_of(json_, "offline").is_string(); }

  void line(std::string_view label, std::string text, Color color = Color::None) {
    lines_.push_back({std::string(label), std::move(text), color});
  }

  void write_where() {
    if (is_offline()) {
      line("on", text_of(json_, "tier") + ", which is offline: " + text_of(json_, "offline"),
           Color::Red);
      const std::string tier = text_of(json_, "tier");
      line("", flag_of(json_, "given_up")
                   ? "the pool goes on without that tier: 'sluice tier lost " + tier +
                         "' lists the files that were there"
                   : "it can be used again when the tier is back; see 'sluice status'");
      return;
    }
    std::string text = text_of(json_, "tier") + ", " + format_size(number_of(json_, "bytes"));
    if (const auto arrived = static_cast<std::int64_t>(number_of(json_, "arrived")); arrived > 0) {
      text += ", there for " + duration_of(now_ - arrived);
    }
    if (const auto links = number_of(json_, "links"); links > 1) {
      text += ", " + format_count(links) + " hard links";
    }
    line("on", text);
    const std::string location = text_of(json_, "location");
    if (!location.empty()) line("at", location);
  }

  void write_heat() {
    const auto opens = number_of(json_, "opens");
    std::string text = "score " + format_score(real_of(json_, "score"));
    const auto last = static_cast<std::int64_t>(number_of(json_, "last_use"));
    if (opens == 0 && last == 0) {
      text += ": never opened";
    } else {
      text += ": opened " + (opens == 1 ? "once" : format_count(opens) + " times");
      if (last > 0) text += ", last used " + duration_of(now_ - last) + " ago";
    }
    line("heat", text);
  }

  void write_why() {
    const std::string why = text_of(json_, "why");
    const std::string wants = text_of(json_, "wants");
    if (wants.empty() || wants == text_of(json_, "tier")) {
      if (!why.empty()) line("why", why);
      return;
    }
    line("wants", "to move to " + wants + (why.empty() ? "" : ": " + why));
    const std::string hold = text_of(json_, "hold");
    if (!hold.empty()) line("but", hold_text(hold, text_of(json_, "hold_tier")), Color::Yellow);
  }

  // What the file is worth on each tier, against what room there is worth.
  void write_worth() {
    const Json& uses = member_of(json_, "uses_per_day");
    if (!uses.is_number()) return;
    const Objective objective =
        text_of(json_, "optimize") == "hits" ? Objective::Hits : Objective::Time;
    std::array<char, 64> text{};
    const double often = uses.get<double>();
    std::snprintf(text.data(), text.size(), "used about %.2g times a day",
                  often < 0.001 ? 0 : often);
    if (text.data() == std::string_view("used about 1 times a day"))
      std::snprintf(text.data(), text.size(), "used about once a day");
    line("value", text.data());
    for (const auto& each : member_of(json_, "worth")) {
      std::string words = "saves about " + value_text(real_of(each, "saves"), objective) +
                          " a day on " + text_of(each, "tier") + " against " +
                          text_of(each, "against") + ", " +
                          price_text(real_of(each, "per_gb"), objective);
      const Intake intake = intake_named(text_of(each, "intake"));
      const Json& price = member_of(each, "price");
      const bool has_price = price.is_number() && price.get<double>() > 0;
      if (intake >= Intake::Draining || (intake != Intake::Open && !has_price)) {
        words += "; it " + std::string(words_of(intake));
      } else if (has_price) {
        words += "; room there is worth " + price_text(price.get<double>(), objective);
      } else if (price.is_number()) {
        words += "; everything has room there";
      }
      line("", words);
    }
  }

  void write_choices() {
    if (const Json& hbm = member_of(json_, "hbm"); hbm.is_object()) {
      std::string text = flag_of(hbm, "pinned") ? "pinned" : "";
      for (const Json& copy : member_of(hbm, "copies")) {
        text += (text.empty() ? "" : ", ") + format_size(number_of(copy, "bytes")) +
                " in the memory of " + text_of(copy, "gpu");
      }
      if (!text.empty()) line("hbm", text);
    }
    if (const Json& pin = member_of(json_, "pin"); pin.is_object()) {
      const std::string from = text_of(pin, "from");
      const bool is_own = from.empty() || from == text_of(json_, "path");
      line("pin", text_of(pin, "tier") + (is_own ? ", set on this file" : ", from " + from));
    }
    if (const Json& rule = member_of(json_, "rule"); rule.is_object()) {
      const std::string tier = text_of(rule, "tier");
      line("rule", text_of(rule, "match") + " -> " + (tier.empty() ? "stay" : tier));
    }
  }

  void write_budgets() {
    const Json& budgets = member_of(json_, "budgets");
    if (!budgets.is_array()) return;
    for (const Json& each : budgets) {
      const std::uint64_t budget = number_of(each, "budget");
      const std::uint64_t used = number_of(each, "used");
      const std::uint64_t limit = budget + number_of(each, "before");
      const std::string when =
          limit > used ? "after about " + format_size(limit - used) + " more are written there"
                       : "now";
      const std::string kept = text_of(each, "kept");
      const bool is_kept_now =
          kept == "in_use" || kept == "moving" || kept == "fresh" || kept == "read_only";
      line("budget",
           text_of(each, "directory") + " may hold " + format_size(budget) + " and holds " +
               format_size(used) + "; this file " +
               (kept.empty() ? "is deleted " + when
                             : std::string("is not deleted ") + (is_kept_now ? "yet (" : "(") +
                                   kept_text(kept) + ")"));
    }
  }

  void write_changes() {
    const double score = real_of(json_, "score");
    if (const Json& promote = member_of(json_, "promote"); promote.is_object()) {
      const double at = real_of(promote, "at");
      line("up",
           "to " + text_of(promote, "tier") + " at score " + format_score(at) +
               (score < at ? ", " + format_score(at - score) + " more than now" : ", reached"));
    }
    if (const Json& demote = member_of(json_, "demote"); demote.is_object()) {
      line("down", "to " + text_of(demote, "tier") + " when its score falls below " +
                       format_score(real_of(demote, "below")));
    }
    const auto until = static_cast<std::int64_t>(number_of(json_, "stays_until"));
    if (until > now_) {
      const std::string tier = text_of(json_, "tier"), unless = text_of(json_, "stays_unless");
      line("stays", unless == "crowded"
                        ? tier + " lacks room, so it may have to leave; otherwise for another " +
                              duration_of(until - now_) + " (min_stay)"
                        : "for another " + duration_of(until - now_) + " (min_stay)" +
                              (unless.empty() ? "" : ", unless " + tier + " lacks room before"));
    }
  }

  void write_work() {
    if (const Json& twin = member_of(json_, "twin"); twin.is_object()) {
      line("twin", "on " + text_of(twin, "tier") +
                       (text_of(twin, "state") == "same"
                            ? ": going back there copies nothing"
                            : ": going back there copies nothing, if its bytes are the same"));
    }
    if (const Json& moving = member_of(json_, "moving"); moving.is_object()) {
      const std::uint64_t total = number_of(moving, "total");
      line("moving",
           "to " + text_of(moving, "to") + ", now" +
               (total > 0 ? ", " + format_size(number_of(moving, "bytes")) + " of " +
                                format_size(total) + " copied"
                          : ""),
           Color::Green);
    } else if (const Json& queued = member_of(json_, "queued"); queued.is_object()) {
      line("queued", "to move to " + text_of(queued, "to"), Color::Green);
    }
    if (const Json& pending = member_of(json_, "pending"); pending.is_object()) {
      const std::string why = text_of(pending, "why");
      line("waiting", "to move to " + text_of(pending, "to") + (why.empty() ? "" : ": " + why),
           Color::Yellow);
    }
  }

  // Its last moves, newest first.
  void write_moves() {
    const Json& moves = member_of(json_, "moves");
    if (!moves.is_array()) return;
    std::string label = "moved";
    for (const Json& each : moves) {
      const std::string reason = text_of(each, "reason");
      const std::string result = text_of(each, "result");
      line(std::exchange(label, ""),
           format_time(static_cast<std::int64_t>(number_of(each, "time"))) + " " +
               text_of(each, "from") + " -> " + text_of(each, "to") +
               (result == "failed" || result == "yielded" ? ", " + result : "") +
               (reason.empty() ? "" : ": " + reason));
    }
  }

  const Json& json_;
  const std::int64_t now_;
  std::vector<ExplanationLine> lines_;
};

}  // namespace

std::string kept_text(const std::string& why) {
  if (why == "pinned") return "a pin";
  if (why == "linked_outside") return "a hard link outside the directory";
  if (why == "of_others") return "the user who sets the budget could not delete it";
  if (why == "in_use") return "in use";
  if (why == "moving") return "being moved";
  if (why == "fresh") return "written in the last minute";
  if (why == "read_only") return "its tier is read-only";
  return why;
}

std::vector<ExplanationLine> explanation_lines(const Json& explanation, std::int64_t now) {
  return Writer(explanation, now).lines();
}

std::string explanation_text(const Style& style, const std::string& path, const Json& explanation,
                             std::int64_t now) {
  std::string out = style.paint(Color::Bold, safe_name(style, path)) + "\n";
  for (const auto& [label, text, color] : explanation_lines(explanation, now)) {
    out += "  " + style.paint(Color::Dim, label) +
           std::string(kLabelWidth - std::min(label.size(), kLabelWidth - 1), ' ') +
           style.paint(color, safe_name(style, text)) + "\n";
  }
  return out;
}

}  // namespace sluice::tools
