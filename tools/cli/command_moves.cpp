// SPDX-License-Identifier: BSD-2-Clause
#include <cstdio>
#include <utility>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr HelpText kHelp{
    .usage = "sluice moves [--limit N] [--json] [MOUNT]",
    .options = R"(      --limit N     show the newest N moves and N waiting ones (20)
      --json        one JSON object; its members are stable
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
Shows the waiting moves, each with its reason, and then the newest moves that were
made or failed, and the files that were deleted because their directory has a budget.
The daemon keeps records of the last 100,000 of them.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice moves --limit 100
  sluice moves --json | jq '.receipts[] | select(.code != 0)'

Exit status: 0 shown, 1 failed, 2 wrong usage.
)"};

std::string pending_table(const Style& style, const Json& pending, std::int64_t now) {
  Table table({{"WAITING", Table::Align::Right}, {"TO"}, {"WHY"}, {"PATH"}});
  for (const auto& each : pending) {
    const auto since = static_cast<std::int64_t>(number_of(each, "since"));
    const auto waited = std::chrono::seconds(since > 0 && since < now ? now - since : 0);
    table.add({format_duration(waited), safe_name(style, text_of(each, "to")),
               safe_name(style, text_of(each, "why")), safe_name(style, text_of(each, "path"))});
  }
  return table.text(style);
}

std::string tiers_of(const Json& receipt) {
  const std::string to = text_of(receipt, "to");
  return text_of(receipt, "from") + (to.empty() ? "" : " -> " + to);
}

std::string receipt_table(const Style& style, const Json& receipts) {
  using Align = Table::Align;
  Table table({{"TIME"},
               {"FROM -> TO"},
               {"SIZE", Align::Right},
               {"TOOK", Align::Right},
               {"RESULT"},
               {"WHY"},
               {"PATH"}});
  for (const auto& each : receipts) {
    const std::string result = text_of(each, "result");
    const auto took = number_of(each, "ms");
    table.add({format_time(static_cast<std::int64_t>(number_of(each, "time"))),
               safe_name(style, tiers_of(each)),
               format_size(number_of(each, "bytes")),
               took < 1000 ? std::to_string(took) + " ms"
                           : format_duration(std::chrono::seconds(took / 1000)),
               {result, result == "moved" || result == "deleted" ? Color::Green
                        : result == "failed"                     ? Color::Red
                                                                 : Color::Yellow},
               safe_name(style, text_of(each, "reason")),
               safe_name(style, text_of(each, "path"))});
  }
  return table.text(style);
}

}  // namespace

int command_moves(int argc, char** argv) {
  Arguments arguments;
  std::string given;
  std::string color = "auto";
  std::uint64_t limit = 20;
  bool as_json = false;
  arguments.option("--limit", limit);
  arguments.flag("--json", as_json);
  arguments.option("--color", color);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("moves", color);
  if (!style) return kUsage;
  const auto mount = mount_for("moves", given);
  if (!mount) return kFailed;

  Json pending = Json::array();
  Json receipts = Json::array();
  std::uint64_t waiting = 0;
  ControlListener listener;
  listener.line = [&](const Json& line) {
    if (const Json& each = member_of(line, "pending"); each.is_object()) {
      if (++waiting <= limit) pending.push_back(each);
    }
    if (const Json& each = member_of(line, "receipt"); each.is_object()) receipts.push_back(each);
    return true;
  };
  const auto answer = ask_daemon(*mount, {{"verb", "moves"}, {"most", limit}}, listener);
  if (!answer) return fail("moves", answer.error().text());

  if (as_json) {
    const Json out = {
        {"waiting", waiting}, {"pending", std::move(pending)}, {"receipts", std::move(receipts)}};
    std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return kDone;
  }
  std::string out;
  if (waiting > 0) {
    out += style->paint(Color::Bold, format_files(waiting) + " waiting to move") + "\n" +
           pending_table(*style, pending, real_clock().seconds());
    if (waiting > limit) {
      out += style->paint(Color::Dim, "... and " + format_count(waiting - limit) + " more") + "\n";
    }
    out += "\n";
  }
  out += receipts.empty() ? "nothing has moved yet\n" : receipt_table(*style, receipts);
  std::fputs(out.c_str(), stdout);
  return kDone;
}

}  // namespace sluice
