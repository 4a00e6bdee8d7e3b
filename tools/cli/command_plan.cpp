// SPDX-License-Identifier: BSD-2-Clause
#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/units.hpp"
#include "tiering/choose/tier_facts.hpp"
#include "tiering/choose/worth.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr HelpText kHelp{.usage = "sluice plan [--json] [--limit N] [--bytes] [MOUNT]",
                         .options = R"(      --limit N     show the first N moves (20); 0 shows all
      --json        one JSON object with all moves; its members are stable
      --bytes       exact numbers of bytes in the table
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
                         .details = R"(
Shows what a pass would move now, and why, without moving anything. Moves are listed
in the order in which they would be made. Files that should move but cannot yet are
counted by reason. The lines below say how much waiting the moves save and, for each
tier, what room there is worth (its price), or why no files go there or leave it. For
directories with a budget it shows the files that would be deleted next, without those
that may not be deleted now. 'sluice tier run' runs such a pass.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice plan
  sluice plan --json /mnt/pool | jq '.list[] | select(.to == "nvme") | .path'

Exit status: 0 shown, 1 failed, 2 wrong usage.
)"};

struct Request {
  std::string mount;
  std::string color = "auto";
  std::optional<std::uint64_t> limit;
  bool json = false;
  bool bytes = false;
};

struct Sum {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
};

// A plan as it arrives. Moves beyond the limit are counted but not kept: there may be millions.
struct ShownPlan {
  Json list = Json::array();
  Json victims = Json::array();                             // files that a budget deletes next
  std::map<std::pair<std::string, std::string>, Sum> sums;  // by tiers, from and to

  void add(const Json& move, std::uint64_t limit) {
    Sum& sum = sums[{text_of(move, "from"), text_of(move, "to")}];
    ++sum.files;
    sum.bytes += number_of(move, "bytes");
    if (limit == 0 || list.size() < limit) list.push_back(move);
  }
};

// Completes "not moved yet: 3 files, ...".
std::string waiting_text(const std::string& reason) {
  std::string word = reason;
  std::replace(word.begin(), word.end(), '-', '_');
  if (word == "min_stay") return "arrived recently (min_stay)";
  if (word == "only_once") return "used only once so far";
  if (word == "no_room") return "without room on the tier where they belong";
  if (word == "offline") return "on a tier that is offline, or wanted there";
  if (word == "draining") return "wanted on a tier that is being emptied";
  if (word == "read_only") return "on a tier that is read-only, or wanted there";
  if (word == "failing") return "wanted on a tier that fails";
  if (word == "nowhere") return "on a tier that is being emptied, and no other one takes files";
  if (word == "hard_links") return "with a hard link outside of the pool, or that was not found";
  if (word == "pending") return "whose move waits for something, see 'sluice moves'";
  return reason;
}

// What a tier accepts, and what room there is worth; nothing if that is as usual, and thresholds
// decide.
std::string tier_line(const Json& tier, Objective objective, bool is_slowest) {
  const Intake intake = intake_named(text_of(tier, "intake"));
  const std::string stuck = text_of(tier, "stuck");
  const Json& price = member_of(tier, "price");
  const std::string is = " " + std::string(words_of(intake));
  if (intake >= Intake::ReadOnly) return is + ": no files move there or away";
  if (intake >= Intake::Draining) return is + ": no files move there";
  std::string out;
  if (intake != Intake::Open)
    out = is + ": " + (stuck.empty() ? "files move there only when others leave" : stuck);
  if (!price.is_number() || is_slowest) return out;
  if (price.get<double>() > 0) {
    return out + (out.empty() ? "" : "; it") + " is worth " +
           price_text(price.get<double>(), objective) + ": files that save less do not go there";
  }
  return out.empty() ? is + " for every file that saves something there" : out;
}

// What the moves save, and what is to be said about the tiers.
std::string worth_lines(const Style& style, const ShownPlan& plan, const Json& last) {
  const Objective objective =
      text_of(last, "optimize") == "hits" ? Objective::Hits : Objective::Time;
  std::string out;
  if (const Json& saves = member_of(last, "saves");
      saves.is_number() && number_of(last, "moves") > 0) {
    const double value = saves.get<double>();
    const bool makes_room = std::any_of(plan.list.begin(), plan.list.end(), [](const Json& move) {
      const std::string reason = text_of(move, "reason");
      return reason == "crowded" || reason == "outranked";
    });
    out += value < 0 ? "they cost about " + value_text(-value, objective) + " a day" +
                           (makes_room ? ", for lack of room\n" : "\n")
                     : "they save about " + value_text(value, objective) + " a day\n";
  }
  const Json& tiers = member_of(last, "tiers");
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const std::string line = tier_line(tiers[i], objective, i + 1 == tiers.size());
    if (!line.empty()) out += safe_name(style, text_of(tiers[i], "name") + line) + "\n";
  }
  return out;
}

std::string totals(const Style& style, const ShownPlan& plan, const Json& last,
                   const Request& request) {
  const auto size = [&](std::uint64_t bytes) {
    return request.bytes ? std::to_string(bytes) + " B" : format_size(bytes);
  };
  const auto moves = number_of(last, "moves");
  const auto looked_at = format_files(number_of(last, "files"));
  std::string out;
  if (moves == 0) {
    const Json& held = member_of(last, "held");
    const bool all_right = std::all_of(held.begin(), held.end(), [](const Json& count) {
      return !count.is_number_unsigned() || count.get<std::uint64_t>() == 0;
    });
    out = "nothing to move: " + looked_at + ", each on the right tier" +
          (all_right ? "" : " or not to be moved yet") + "\n";
  } else {
    if (plan.list.size() < moves) {
      out += style.paint(Color::Dim, "... and " + format_count(moves - plan.list.size()) +
                                         " more; --limit 0 shows all") +
             "\n";
    }
    out += "\n" + style.paint(Color::Bold, format_files(moves)) + " of " +
           format_count(number_of(last, "files")) + " would move, " +
           size(number_of(last, "bytes")) + "\n";
    for (const auto& [tiers, sum] : plan.sums) {
      out += "  " + safe_name(style, tiers.first) + " -> " + safe_name(style, tiers.second) + ": " +
             format_files(sum.files) + ", " + size(sum.bytes) + "\n";
    }
  }
  out += worth_lines(style, plan, last);
  for (const auto& [reason, count] : member_of(last, "held").items()) {
    const auto number = count.is_number_unsigned() ? count.get<std::uint64_t>() : 0;
    if (number == 0) continue;
    out += "not moved yet: " + format_files(number) + ", " +
           safe_name(style, waiting_text(reason)) + "\n";
  }
  if (const auto deep = number_of(last, "too_deep"); deep > 0) {
    out += "skipped: " + format_count(deep) +
           " directories whose path is longer than 4096 bytes; their files do not move\n";
  }
  return out;
}

std::string move_table(const Style& style, const ShownPlan& plan, bool exact) {
  using Align = Table::Align;
  Table table({{"FROM -> TO"}, {"SIZE", Align::Right}, {"SCORE", Align::Right}, {"WHY"}, {"PATH"}});
  for (const auto& move : plan.list) {
    const auto bytes = number_of(move, "bytes");
    table.add({safe_name(style, text_of(move, "from") + " -> " + text_of(move, "to")),
               exact ? std::to_string(bytes) : format_size(bytes),
               format_score(real_of(move, "score")), safe_name(style, text_of(move, "why")),
               safe_name(style, text_of(move, "path"))});
  }
  return table.text(style);
}

std::string victim_table(const Style& style, const ShownPlan& plan, bool exact) {
  using Align = Table::Align;
  Table table({{"DELETED NEXT FROM"}, {"SIZE", Align::Right}, {"LAST USED"}, {"PATH"}});
  for (const auto& victim : plan.victims) {
    const auto bytes = number_of(victim, "bytes");
    table.add({safe_name(style, text_of(victim, "tree")),
               exact ? std::to_string(bytes) : format_size(bytes),
               format_time(static_cast<std::int64_t>(number_of(victim, "last_use"))),
               safe_name(style, text_of(victim, "path"))});
  }
  return table.text(style);
}

}  // namespace

int command_plan(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.option("--limit", request.limit);
  arguments.flag("--json", request.json);
  arguments.flag("--bytes", request.bytes);
  arguments.option("--color", request.color);
  arguments.option("MOUNT", request.mount);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("plan", request.color);
  if (!style) return kUsage;
  const auto mount = mount_for("plan", request.mount);
  if (!mount) return kFailed;

  const std::uint64_t keep = request.limit.value_or(request.json ? 0 : 20);
  ShownPlan plan;
  Result<ControlAnswer> answer = ControlAnswer{};
  {
    ProgressLine line;
    ControlListener listener;
    listener.line = [&](const Json& each) {
      if (const Json& move = member_of(each, "move"); move.is_object()) plan.add(move, keep);
      if (const Json& victim = member_of(each, "victim"); victim.is_object())
        plan.victims.push_back(victim);
      const Json& progress = member_of(each, "progress");
      if (progress.is_object() && line.is_terminal() && line.is_due()) {
        line.show("examining files: " + format_count(number_of(progress, "files")));
      }
      return true;
    };
    answer = ask_daemon(*mount, {{"verb", "plan"}}, listener);
  }
  if (!answer) return fail("plan", answer.error().text());

  if (request.json) {
    Json out = answer->last;
    out.erase("done");
    out["list"] = std::move(plan.list);
    out["victims"] = std::move(plan.victims);
    std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return kDone;
  }
  std::string out;
  if (!plan.list.empty()) out = move_table(*style, plan, request.bytes);
  out += totals(*style, plan, answer->last, request);
  if (!plan.victims.empty()) out += "\n" + victim_table(*style, plan, request.bytes);
  std::fputs(out.c_str(), stdout);
  return kDone;
}

}  // namespace sluice::tools::cli
