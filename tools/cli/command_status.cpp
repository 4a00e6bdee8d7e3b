// SPDX-License-Identifier: BSD-2-Clause
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "tiering/choose/worth.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/stuck_mount.hpp"
#include "tools/cli/tier_count.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/output.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::steady_clock;

constexpr HelpText kHelp{.usage = "sluice status [--json] [--bytes] [--count] [--limits] [MOUNT]",
                         .options = R"(      --json        one JSON object; its members are stable
      --bytes       exact numbers of bytes in the table
      --count       count all files, even if that takes long
      --limits      show every limit, not only those in use
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
                         .details = R"(
Shows how full each tier is, the number of files on it and the bytes they hold (HOLDS:
less than USED if others use the disk, too), how fast it reads (the time until the
first byte, and the rate after it; '~': not measured yet, usual for this kind of disk),
what a GB of room there is worth (the waiting it saves a day; '-': no file waits for it),
the features in use, or why they are off, and how often the daemon was restarted.
USED, FREE, SIZE and FULL are those of df, except that twins count as free. A tier that
is offline, read-only, failing, degraded (its disk or filesystem has errors), full,
above its watermark or draining has a line that says so, where new files go then, and
whether files leave it. Options that were set on trial ('sluice set') are shown. Files
and bytes are counted by walking the tiers, for two seconds unless --count is given. An
incomplete count is marked '>=', or "complete": false in JSON.

HOLDS is the sum of the files' sizes, so sparse files make it more than USED. A tier that
has a capacity shows that as SIZE, and what is left of it as FREE.

A limit is shown while part of it is in use: the amount in use, the most allowed, and
the error when it is exceeded. For a limit per user, USED is that of the user with the
most.

If the daemon was stopped (SIGSTOP), or crashes so often that its next start is delayed,
the command says so after 3 s and fails. Otherwise it waits until the mount answers.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice status
  sluice status /mnt/pool
  sluice status --json /mnt/pool | jq '.tiers[] | {name, free}'

Exit status: 0 shown, 1 failed (not a mount of sluice, or no daemon), 2 wrong usage.
)"};

constexpr std::chrono::seconds kCountBudget{2};
constexpr std::size_t kBarWidth = 20;

struct Request {
  std::string mount;
  std::string color = "auto";
  bool json = false;
  bool bytes = false;
  bool count = false;
  bool limits = false;
};

// Adds "files", "bytes" and "complete" to each tier. Each gets an equal part of the remaining time.
void add_counts(Json& tiers, bool to_the_end) {
  const auto end = steady_clock::now() + kCountBudget;
  ProgressLine line;
  auto left = static_cast<long>(tiers.size());
  for (auto& tier : tiers) {
    if (!tier.is_object()) continue;
    TierCount count;
    if (flag_of(tier, "online")) {
      const auto now = steady_clock::now();
      const auto deadline = to_the_end ? steady_clock::time_point::max() : now + (end - now) / left;
      const std::string name = text_of(tier, "name");
      count = count_tier(text_of(tier, "path"), deadline, [&](const TierCount& so_far) {
        if (!to_the_end || !line.is_terminal() || !line.is_due()) return;
        line.show("counting " + name + ": " + format_files(so_far.files));
      });
    }
    --left;
    tier["files"] = count.files;
    tier["bytes"] = count.bytes;
    tier["complete"] = count.complete;
  }
}

Table::Cell fill_cell(const Style& style, const Json& tier) {
  const unsigned percent = percent_used(tier);
  const auto high = static_cast<unsigned>(number_of(tier, "high_watermark"));
  const auto low = static_cast<unsigned>(number_of(tier, "low_watermark"));
  std::string text = std::to_string(percent) + "%";
  text.insert(0, text.size() < 4 ? 4 - text.size() : 0, ' ');
  if (style.is_terminal()) text = fill_bar(percent, high, kBarWidth) + " " + text;
  const bool is_crowded = has_state(tier, "full") || has_state(tier, "above-watermark");
  return {text, is_crowded ? Color::Red : percent >= low ? Color::Yellow : Color::Green};
}

// "0.12 ms, 1.9 GiB/s": until the first byte, and after it. "~": it was not measured yet.
std::string speed_text(const Json& speed) {
  if (!speed.is_object()) return "";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%s%.2g ms, ",
                text_of(speed, "source") == "kind" ? "~" : "", real_of(speed, "latency_us") / 1e3);
  return text.data() + format_size(static_cast<std::uint64_t>(real_of(speed, "bytes_per_s"))) +
         "/s";
}

// "0.2 s/GB"; "-" if no file waits for room or nothing is known.
std::string price_cell(const Json& price, Objective objective) {
  if (!price.is_number() || price.get<double>() <= 0) return "-";
  std::string text = price_text(price.get<double>(), objective);
  return text.substr(0, text.find(" a day"));
}

std::string tier_table(const Style& style, const Json& tiers, Objective objective, bool exact) {
  using Align = Table::Align;
  const auto size = [&](std::uint64_t bytes) {
    return exact ? std::to_string(bytes) : format_size(bytes);
  };
  Table table({{"TIER"},
               {"FULL"},
               {"USED", Align::Right},
               {"FREE", Align::Right},
               {"SIZE", Align::Right},
               {"FILES", Align::Right},
               {"HOLDS", Align::Right},
               {"READS", Align::Right},
               {"WORTH/DAY", Align::Right},
               {"ON"},
               {"PATH"}});
  for (const auto& tier : tiers) {
    const std::string name = safe_name(style, text_of(tier, "name"));
    const std::string path = safe_name(style, text_of(tier, "path"));
    if (!flag_of(tier, "online")) {
      table.add(
          {name,
           {"offline: " + safe_name(style, text_of(tier, "why")) + " (" + path + ")", Color::Red}});
      continue;
    }
    const std::string mark = flag_of(tier, "complete") ? "" : ">=";
    const auto capacity = number_of(tier, "capacity");
    table.add({name, fill_cell(style, tier), size(number_of(tier, "used")),
               size(number_of(tier, "free")),
               // As df shows it: with what the filesystem keeps for root.
               size(capacity > 0 ? capacity : number_of(tier, "total") + number_of(tier, "kept")),
               mark + format_count(number_of(tier, "files")), mark + size(number_of(tier, "bytes")),
               speed_text(member_of(tier, "speed")),
               price_cell(member_of(tier, "price"), objective), text_of(tier, "filesystem"), path});
  }
  return table.text(style);
}

// What is not as usual, a line for each. That a tier is offline is in the table.
std::string state_lines(const Style& style, const Json& tiers) {
  std::string out;
  for (const auto& tier : tiers) {
    for (const auto& state : member_of(tier, "states")) {
      const std::string name = text_of(state, "name");
      if (name == "offline") continue;
      out += safe_name(style, text_of(tier, "name")) + ": " +
             style.paint(flag_of(state, "serious") ? Color::Red : Color::Yellow, name) + ", " +
             safe_name(style, text_of(state, "words")) + "\n";
    }
  }
  return out.empty() ? out : out + "\n";
}

std::string feature_lines(const Style& style, const Json& features) {
  std::string out;
  for (const auto& [name, feature] : features.items()) {
    const bool on = flag_of(feature, "on");
    const std::string why = text_of(feature, "why");
    out += name + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ') +
           style.paint(on ? Color::Green : Color::Yellow, on ? "on" : "off") +
           (why.empty() ? "" : " (" + safe_name(style, why) + ")") + "\n";
  }
  return out;
}

std::string migration_line(const Style& style, const Json& migration) {
  const bool paused = flag_of(migration, "paused"), automatic = flag_of(migration, "automatic");
  std::string out = "migration   ";
  if (paused) {
    out += style.paint(Color::Yellow, "paused") + " (run 'sluice tier resume' to continue)";
  } else if (automatic) {
    const auto left =
        static_cast<std::int64_t>(number_of(migration, "next_pass")) - real_clock().seconds();
    out += style.paint(Color::Green, "on") + ", " +
           (flag_of(migration, "passing") ? "a pass is running"
            : left > 0 ? "next pass in at most " + format_duration(std::chrono::seconds(left))
                       : "the next pass begins now");
  } else {
    out += style.paint(Color::Yellow, "off") + " (only requested moves are made)";
  }
  out += "; " + format_count(number_of(migration, "moved")) + " moved, " +
         format_count(number_of(migration, "active")) + " under way, " +
         format_count(number_of(migration, "queued")) + " queued, " +
         format_count(number_of(migration, "pending")) + " waiting";
  if (const auto failed = number_of(migration, "failed"); failed > 0)
    out += ", " + style.paint(Color::Red, format_count(failed) + " failed");
  if (const double share = real_of(migration, "share"); share > 0 && share < 1) {
    out += "; others use the disks, so moves work " +
           std::to_string(std::max(1, static_cast<int>(100 * share))) + "% of the time";
  }
  return out + "\n";
}

// Empty if there are no twins.
std::string twins_line(const Json& tiers, const Json& migration, bool exact) {
  std::string out;
  for (const auto& tier : tiers) {
    const auto files = number_of(tier, "twins"), bytes = number_of(tier, "twin_bytes");
    if (files == 0) continue;
    out += (out.empty() ? "" : ", ") + format_count(files) + " on " + text_of(tier, "name") + " (" +
           (exact ? std::to_string(bytes) : format_size(bytes)) + ", counted as free)";
  }
  const Json& since = member_of(migration, "twins");
  if (out.empty() && number_of(since, "used") == 0) return "";
  return "twins       " + (out.empty() ? "none" : out) + "; " +
         format_count(number_of(since, "used")) + " used, " +
         format_count(number_of(since, "dropped")) + " dropped\n";
}

// Empty if no directory has a budget.
std::string budget_line(const Style& style, const Json& budgets) {
  const auto trees = number_of(budgets, "trees");
  if (trees == 0) return "";
  std::string out =
      "budgets     " + format_count(trees) + (trees == 1 ? " directory, " : " directories, ") +
      format_size(number_of(budgets, "used")) + " of " + format_size(number_of(budgets, "budget")) +
      " used; " + format_files(number_of(budgets, "deleted")) + " deleted, " +
      format_size(number_of(budgets, "deleted_bytes"));
  if (const auto stuck = number_of(budgets, "stuck"); stuck > 0)
    out += ", " + style.paint(Color::Yellow, format_count(stuck) + " full");
  return out + " (see 'sluice budget')\n";
}

// Empty if the first daemon still serves.
std::string restarts_line(const Style& style, const Json& status) {
  const auto restarts = number_of(status, "restarts");
  if (restarts == 0) return "";
  std::string out = "restarts    " + format_count(restarts);
  if (const std::string why = text_of(status, "restart_reason"); !why.empty())
    out += ", the last because " + safe_name(style, why);
  return out + "\n";
}

// Empty if no option is tried out.
std::string trials_line(const Style& style, const Json& trials) {
  std::string out;
  for (const auto& [name, value] : trials.items())
    out += (out.empty() ? "" : ", ") + safe_name(style, name) + " = " +
           safe_name(style, text_of(trials, name));
  if (out.empty()) return "";
  return "on trial    " + out + " (until the next reload, restart or mount)\n";
}

std::string micros(const Json& route, const char* name) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f us", real_of(route, name));
  return text.data();
}

// Empty on a mount that has no GPU and has served no GPU reads.
std::string gpu_lines(const Style& style, const Json& gpu, bool exact) {
  using Align = Table::Align;
  const auto size = [&](std::uint64_t bytes) {
    return exact ? std::to_string(bytes) : format_size(bytes);
  };
  const Json& routes = member_of(gpu, "routes");
  const Json& devices = member_of(gpu, "devices");
  if (!flag_of(gpu, "enabled")) return "gpu         off (turned off by gpu = false)\n";
  std::string out;
  for (const auto& device : devices) {
    out += "gpu         " + safe_name(style, text_of(device, "name")) + ", " +
           size(number_of(device, "memory")) + ", " + text_of(device, "uuid") +
           (flag_of(device, "lost") ? style.paint(Color::Red, " (lost; mount again)") : "") + "\n";
  }
  for (const auto& device : devices) {
    const Json& hbm = member_of(device, "hbm");
    if (hbm.empty()) continue;
    out += "hbm         " + size(number_of(hbm, "bytes")) + " of " + size(number_of(hbm, "limit")) +
           " on " + text_of(device, "uuid") + ": " + format_count(number_of(hbm, "files")) +
           " files (" + format_count(number_of(hbm, "pinned")) + " pinned), " +
           format_count(number_of(hbm, "hits")) + " hits, " + size(number_of(hbm, "hit_bytes")) +
           " read from it, " + size(number_of(hbm, "filled_bytes")) + " filled, " +
           format_count(number_of(hbm, "evictions")) + " evicted\n";
  }
  if (devices.empty() && !text_of(gpu, "why").empty())
    out += "gpu         none (" + safe_name(style, text_of(gpu, "why")) + ")\n";
  if (number_of(member_of(routes, "all"), "operations") +
          number_of(member_of(routes, "all"), "failures") >
      0) {
    Table table({{"ROUTE"},
                 {"REQUESTS", Align::Right},
                 {"FAILED", Align::Right},
                 {"BYTES", Align::Right},
                 {"RATE", Align::Right},
                 {"PEAK", Align::Right},
                 {"P50", Align::Right},
                 {"P99", Align::Right}});
    for (const auto& [name, route] : routes.items()) {
      table.add({name, format_count(number_of(route, "operations")),
                 format_count(number_of(route, "failures")), size(number_of(route, "bytes")),
                 size(number_of(route, "bytes_per_s")) + "/s",
                 size(number_of(route, "peak_bytes_per_s")) + "/s", micros(route, "p50_us"),
                 micros(route, "p99_us")});
    }
    out += table.text(style);
  }
  if (number_of(gpu, "buffers") > 0) {
    out += "buffers     " + format_count(number_of(gpu, "buffers")) + " registered, " +
           size(number_of(gpu, "buffer_bytes")) + " (" + size(number_of(gpu, "host_bytes")) +
           " of host memory, limit " + size(number_of(gpu, "host_bytes_limit")) + "); " +
           size(number_of(gpu, "pinned_bytes")) + " pinned, " +
           size(number_of(gpu, "mapped_bytes")) + " of page cache mapped\n";
  }
  return out;
}

std::string limit_table(const Style& style, const Json& limits, bool exact, bool with_unused) {
  using Align = Table::Align;
  Table table({{"LIMIT"}, {"PER"}, {"USED", Align::Right}, {"MOST", Align::Right}, {"BEYOND"}});
  bool is_empty = true;
  for (const auto& limit : limits) {
    const auto used = number_of(limit, "used"), most = number_of(limit, "most");
    if (used == 0 && !with_unused) continue;
    const auto text = [&](std::uint64_t number) {
      return flag_of(limit, "bytes") && !exact ? format_size(number) : format_count(number);
    };
    table.add({text_of(limit, "what"), text_of(limit, "per"), text(used), text(most),
               text_of(limit, "error")});
    is_empty = false;
  }
  return is_empty ? "" : "\n" + table.text(style);
}

void print_for_people(const Style& style, const Json& status, bool exact, bool all_limits) {
  std::string out = style.paint(Color::Bold, safe_name(style, text_of(status, "mountpoint"))) +
                    ": pool " + text_of(status, "pool") + ", pid " +
                    std::to_string(number_of(status, "pid")) + " up " +
                    format_duration(std::chrono::seconds(number_of(status, "uptime_s"))) +
                    ", sluice " + text_of(status, "version") + "\n" + "state in " +
                    safe_name(style, text_of(status, "state")) + "\n\n";
  const Json& migration = member_of(status, "migration");
  const Objective objective =
      text_of(migration, "optimize") == "hits" ? Objective::Hits : Objective::Time;
  out += tier_table(style, member_of(status, "tiers"), objective, exact) + "\n";
  out += state_lines(style, member_of(status, "tiers"));
  out += feature_lines(style, member_of(status, "features"));
  out += restarts_line(style, status);
  out += migration_line(style, migration);
  out += twins_line(member_of(status, "tiers"), migration, exact);
  out += budget_line(style, member_of(status, "budgets"));
  out += trials_line(style, member_of(status, "trials"));
  out += "known       " + format_count(number_of(status, "inodes")) + " inodes, " +
         format_count(number_of(status, "open_files")) + " open files, " +
         format_count(number_of(status, "opens")) + " opens since the daemon started\n";
  out += gpu_lines(style, member_of(status, "gpu"), exact);
  out += limit_table(style, member_of(status, "limits"), exact, all_limits);
  std::fputs(out.c_str(), stdout);
}

}  // namespace

int command_status(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.flag("--json", request.json);
  arguments.flag("--bytes", request.bytes);
  arguments.flag("--count", request.count);
  arguments.flag("--limits", request.limits);
  arguments.option("--color", request.color);
  arguments.option("MOUNT", request.mount);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("status", request.color);
  if (!style) return kUsage;
  const auto mount = mount_for("status", request.mount);
  if (!mount) return kFailed;
  auto status = mount_status_or_reason(*mount);
  if (!status) return fail("status", describe_status_error(status.error(), *mount));
  if (const auto tiers = status->find("tiers"); tiers != status->end() && tiers->is_array()) {
    add_counts(*tiers, request.count);
  }
  if (request.json) {
    // File names may not be valid UTF-8; invalid bytes are replaced.
    std::puts(status->dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    print_for_people(*style, *status, request.bytes, request.limits);
  }
  return kDone;
}

}  // namespace sluice::tools::cli
