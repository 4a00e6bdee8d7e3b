// SPDX-License-Identifier: BSD-2-Clause
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/units.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/mounts.hpp"
#include "tools/common/move_summary.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr HelpText kHelp{
    .usage = "sluice moves [--limit N] [--follow] [--json] [PATH]",
    .options =
        R"(      --limit N     show the newest N moves, and N of those that run, queue or wait
                    (20); 0 shows all
      --follow      show moves as they end, and how much is left, until interrupted
      --json        one JSON object; its members are stable; with --follow one a line
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
Shows the moves that run, with what is copied so far; those that queue, in their order;
and those that wait for something, such as a file that is open, each with its reason.
Then come the newest moves that were made, failed or were cancelled, and the files that
were deleted because their directory has a budget. Bursts of small moves are combined
in one line; --json has each of them. The daemon keeps records of the last 100,000
moves.

PATH is a mount, or a file or directory in it: then only its moves are shown, or those
of everything below it. PATH may name a file that was deleted, and may be copied from
these lists. A file is found even if it was renamed since. PATH can be omitted if the
current directory is in a mount, or if there is only one mount.

Examples:
  sluice moves --limit 100
  sluice moves /mnt/pool/datasets
  sluice moves --follow
  sluice moves --json | jq '.receipts[] | select(.code != 0)'

Exit status: 0 shown, 1 failed, 2 wrong usage.
)"};

struct Request {
  std::string given;
  std::string color = "auto";
  std::uint64_t limit = 20;
  bool json = false;
  bool follow = false;
};

// What the user wants to see of a mount.
struct View {
  std::string mount;
  std::string path;      // below the mount; empty: everything
  std::uint64_t id = 0;  // of the file; 0: unknown
};

// `given` may be a path of the machine, which need not exist any more, or one below the mount, as
// the lists show it.
std::optional<View> view_of(const std::string& given) {
  if (given.empty()) {
    const auto mount = mount_for("moves", given);
    return mount ? std::optional(View{*mount, "", 0}) : std::nullopt;
  }
  struct stat st {};
  const std::string path = real_path(given);
  const auto id_at = [&](const std::string& at) -> std::uint64_t {
    return ::lstat(at.c_str(), &st) == 0 && S_ISREG(st.st_mode) ? st.st_ino : 0;
  };
  if (const auto point = sluice_mount_of(mount_table(), path)) {
    const auto whole = mount_for("moves", *point);
    if (!whole) return std::nullopt;
    if (path == *point) return View{*whole, "", 0};
    // In a bind mount of a directory, only a file can be recognized, by its id.
    const std::string& root = is_inside(*whole, path) ? *whole : *point;
    return View{*whole, path.substr(root.size()), id_at(path)};
  }
  const bool is_elsewhere = ::lstat(given.c_str(), &st) == 0;
  const auto only = choose_mount("");
  if (is_elsewhere || !only || !given.starts_with("/")) {
    fail("moves", log::escaped(given) + ": not on a mount of sluice; 'findmnt -t fuse.sluice' " +
                      "lists the mounts");
    return std::nullopt;
  }
  const std::string below = given.substr(0, given.find_last_not_of('/') + 1);
  return View{*only, below, id_at(*only + below)};
}

Json request_for(const View& view, Json request) {
  if (!view.path.empty()) {
    request["path"] = percent_encoded(view.path);
    request["id"] = view.id;
  }
  return request;
}

// On a terminal a time is short: there must be room for the path.
std::string shown_time(const Style& style, std::int64_t time, std::int64_t now) {
  const std::string full = format_time(time), today = format_time(now);
  if (!style.is_terminal() || full.size() != today.size()) return full;
  const auto same = [&](std::size_t length) {
    return full.compare(0, length, today, 0, length) == 0;
  };
  return same(10) ? full.substr(11) : same(4) ? full.substr(5, 11) : full.substr(0, 10);
}

std::string tiers_text(const Style& style, const Json& move) {
  return safe_name(style, text_of(move, "from") + " -> " + text_of(move, "to"));
}

std::string waited_text(const Json& move, std::int64_t now) {
  const auto since = static_cast<std::int64_t>(number_of(move, "since"));
  return format_duration(seconds(since > 0 && since < now ? now - since : 0));
}

const Table::Column kPathColumn{"PATH", Table::Align::Left, Table::Shorten::Middle};
const Table::Column kWhyColumn{"WHY", Table::Align::Left, Table::Shorten::End};

std::string running_table(const Style& style, const Json& running, std::int64_t now) {
  using Align = Table::Align;
  Table table({{"DONE", Align::Right},
               {"COPIED", Align::Right},
               {"SIZE", Align::Right},
               {"FROM -> TO"},
               {"FOR", Align::Right},
               kPathColumn});
  for (const auto& each : running) {
    const auto total = number_of(each, "total");
    const auto bytes = std::min(number_of(each, "bytes"), total);
    const auto percent =
        total > 0
            ? static_cast<unsigned>(100.0 * static_cast<double>(bytes) / static_cast<double>(total))
            : 0;
    table.add({std::to_string(percent) + "%", format_size(bytes), format_size(total),
               tiers_text(style, each), waited_text(each, now),
               safe_name(style, text_of(each, "path"))});
  }
  return table.text(style);
}

std::string queue_table(const Style& style, const Json& queue) {
  Table table({{"SIZE", Table::Align::Right}, {"FROM -> TO"}, {"WAITS FOR"}, kPathColumn});
  for (const auto& each : queue) {
    table.add({format_size(number_of(each, "bytes")), tiers_text(style, each),
               safe_name(style, text_of(each, "why")), safe_name(style, text_of(each, "path"))});
  }
  return table.text(style);
}

std::string pending_table(const Style& style, const Json& pending, std::int64_t now) {
  Table table({{"WAITING", Table::Align::Right}, {"TO"}, kWhyColumn, kPathColumn});
  for (const auto& each : pending) {
    table.add({waited_text(each, now), safe_name(style, text_of(each, "to")),
               safe_name(style, text_of(each, "why")), safe_name(style, text_of(each, "path"))});
  }
  return table.text(style);
}

Color color_of(const std::string& result) {
  return result == "moved" || result == "deleted" ? Color::Green
         : result == "failed"                     ? Color::Red
                                                  : Color::Yellow;
}

std::string receipt_table(const Style& style, const std::vector<MoveRow>& rows,
                          std::uint64_t limit) {
  using Align = Table::Align;
  Table table({{"TIME"},
               {"FROM -> TO"},
               {"SIZE", Align::Right},
               {"TOOK", Align::Right},
               {"RESULT"},
               kWhyColumn,
               kPathColumn});
  const std::int64_t now = real_clock().seconds();
  std::uint64_t shown = 0;
  for (const MoveRow& row : rows) {
    if (++shown > limit) break;
    table.add({shown_time(style, row.time, now),
               safe_name(style, row.tiers),
               format_size(row.bytes),
               took_text(row.milliseconds),
               {row.result, color_of(row.result)},
               safe_name(style, row.reason),
               row.files == 1 ? safe_name(style, row.path)
                              : format_files(row.files) + " below " + safe_name(style, row.path)});
  }
  return table.text(style);
}

// Prints what ended, a few times a minute as a sum, and how much is left on the line below.
class Follower {
 public:
  explicit Follower(const Style& style) : style_(style) {}

  void take(const Json& line) {
    if (const Json& receipt = member_of(line, "receipt"); receipt.is_object()) ended_.add(receipt);
    if (const Json& left = member_of(line, "left"); left.is_object()) left_ = left;
    // A burst is summed up before it is printed; a single move is printed soon.
    if (ended_.size() > 0 && steady_clock::now() >= next_) print();
    if (!line_.is_due()) return;
    std::string text = left_text();
    // A line below the other would say the same again.
    if (line_.is_terminal() || text != shown_) line_.show(text);
    shown_ = std::move(text);
  }

 private:
  void print() {
    line_.clear();
    for (const MoveRow& row : ended_.rows()) {
      std::string text =
          format_time(row.time) + "  " + style_.paint(color_of(row.result), row.result) + "  ";
      if (row.files > 1) {
        text += summary_of(row) + "  below " + safe_name(style_, row.path);
      } else {
        text += row.tiers + "  " + format_size(row.bytes) + " in " + took_text(row.milliseconds) +
                "  " + safe_name(style_, row.path) +
                (row.reason.empty() ? "" : "  (" + safe_name(style_, row.reason) + ")");
      }
      std::puts(text.c_str());
    }
    std::fflush(stdout);
    ended_ = {};
    next_ = steady_clock::now() + seconds(2);
  }

  std::string left_text() const {
    const auto files = number_of(left_, "files");
    std::string text = files == 0 ? "nothing is queued"
                                  : format_files(files) + " and " +
                                        format_size(number_of(left_, "bytes")) + " left";
    if (files > 0 && member_of(left_, "seconds").is_number()) {
      const seconds left(static_cast<std::int64_t>(number_of(left_, "seconds")));
      text += ", for about " + format_duration(left);
    }
    if (const auto waiting = number_of(left_, "waiting"); waiting > 0)
      text += "; " + format_count(waiting) + " waiting";
    return text;
  }

  const Style& style_;
  MoveSummary ended_;
  Json left_ = Json::object();
  std::string shown_;
  steady_clock::time_point next_ = steady_clock::now();
  ProgressLine line_;
};

int follow(const Style& style, const View& view, bool as_json) {
  Follower follower(style);
  ControlListener listener;
  listener.line = [&](const Json& line) {
    if (as_json) {
      std::puts(line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
      std::fflush(stdout);
    } else {
      follower.take(line);
    }
    return std::ferror(stdout) == 0;
  };
  const auto answer = ask_daemon(view.mount, request_for(view, {{"verb", "follow"}}), listener);
  return answer ? kDone : fail("moves", answer.error().text());
}

// What the daemon says about the moves of a mount.
struct Listing {
  Json running = Json::array();
  Json queue = Json::array();  // the first of those that queue
  Json pending = Json::array();
  Json receipts = Json::array();  // as they are, or
  MoveSummary summary;            // summed up
  std::uint64_t queued = 0, waiting = 0;
};

Result<Listing> listing_of(const View& view, const Request& request) {
  Listing out;
  ControlListener listener;
  listener.line = [&](const Json& line) {
    const auto take = [&](const char* name, Json& into) {
      if (const Json& each = member_of(line, name); each.is_object()) into.push_back(each);
    };
    take("running", out.running);
    take("queued", out.queue);
    take("pending", out.pending);
    if (const Json& all = member_of(line, "unfinished"); all.is_object()) {
      out.queued = number_of(all, "queued");
      out.waiting = number_of(all, "waiting");
    }
    if (request.json) {
      take("receipt", out.receipts);
    } else if (const Json& each = member_of(line, "receipt"); each.is_object()) {
      out.summary.add(each);
    }
    return out.summary.size() <= request.limit;
  };
  // A row may be thousands of moves.
  const std::uint64_t most =
      request.json ? request.limit : std::numeric_limits<std::uint32_t>::max();
  const Json message = {{"verb", "moves"},
                        {"most", most},
                        {"most_queued", request.limit},
                        {"most_pending", request.limit}};
  const auto answer = ask_daemon(view.mount, request_for(view, message), listener);
  if (!answer) return answer.error();
  return out;
}

void print_listing(const Style& style, const View& view, const Request& request,
                   const Listing& listing) {
  const std::int64_t now = real_clock().seconds();
  std::string out;
  const auto add = [&](std::uint64_t files, const char* what, const std::string& table,
                       std::size_t shown) {
    if (files == 0) return;
    out += style.paint(Color::Bold, format_files(files) + " " + what) + "\n" + table;
    if (files > shown)
      out += style.paint(Color::Dim, "... and " + format_count(files - shown) + " more") + "\n";
    out += "\n";
  };
  add(listing.running.size(), "moving", running_table(style, listing.running, now),
      listing.running.size());
  add(listing.queued, "queued", queue_table(style, listing.queue), listing.queue.size());
  add(listing.waiting, "waiting to move", pending_table(style, listing.pending, now),
      listing.pending.size());
  if (listing.summary.size() > 0) {
    out += receipt_table(style, listing.summary.rows(), request.limit);
  } else {
    out += view.path.empty() ? "nothing has moved yet\n"
                             : "nothing has moved at " + safe_name(style, view.path) + "\n";
  }
  std::fputs(out.c_str(), stdout);
}

int list(const Style& style, const View& view, const Request& request) {
  auto listing = listing_of(view, request);
  if (!listing) return fail("moves", listing.error().text());
  if (!request.json) {
    print_listing(style, view, request, *listing);
    return kDone;
  }
  const Json out = {
      {"running", std::move(listing->running)}, {"queued", listing->queued},
      {"queue", std::move(listing->queue)},     {"waiting", listing->waiting},
      {"pending", std::move(listing->pending)}, {"receipts", std::move(listing->receipts)}};
  std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  return kDone;
}

}  // namespace

int command_moves(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.option("--limit", request.limit);
  arguments.flag("--follow", request.follow);
  arguments.flag("--json", request.json);
  arguments.option("--color", request.color);
  arguments.option("PATH", request.given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (request.limit == 0) request.limit = std::numeric_limits<std::uint32_t>::max();
  const auto style = style_for("moves", request.color);
  if (!style) return kUsage;
  const auto view = view_of(request.given);
  if (!view) return kFailed;
  return request.follow ? follow(*style, *view, request.json) : list(*style, *view, request);
}

}  // namespace sluice::tools::cli
