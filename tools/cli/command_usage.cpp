// SPDX-License-Identifier: BSD-2-Clause
// sluice usage.
#include <chrono>
#include <cstdio>

#include "base/clock.hpp"
#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/units.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/output.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr HelpText kHelp{
    .usage = "sluice usage [--now] [--limit N] [--json] [--bytes] [DIR]",
    .options = R"(      --now         list the files of the pool now, even if that takes long
      --limit N     show the N largest (20); 0 shows all that the daemon knows
      --json        one JSON object; its members are stable
      --bytes       exact numbers of bytes in the table
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
Shows what takes the room below a directory, largest first, and on which tiers it is:
bytes and, in parentheses, files. Like du, it counts what files occupy on their disks,
and a file with several names once. Unlike du, it reads no directory: the daemon
remembers what it counted when it last planned moves. The first line says when that
was. The daemon counts again with --now, and if it does not know the directory yet.

It remembers the 50,000 largest files and directories of the pool. At most 200 in one
directory are shown; the last line is the sum of all others. Links, empty directories
and files on a tier that is offline are not counted.

DIR can be omitted inside a mount (the current directory is shown), or if there is only
one mount (its root is shown). Only root may use this, because it shows names that others
may not see.

Examples:
  sluice usage
  sluice usage --now /mnt/pool/models
  sluice usage --json /mnt/pool | jq '.children[] | select(.tiers.hdd > 0) | .name'

Exit status: 0 shown, 1 failed, 2 wrong usage.
)"};

struct Request {
  std::string directory;
  std::string color = "auto";
  std::uint64_t limit = 20;
  bool now = false;
  bool json = false;
  bool bytes = false;
};

// A directory of a mount.
struct Place {
  std::string mount;
  std::string below;  // the mount: "" is its root, others are "/a/b"
};

std::optional<Place> find_place(const std::string& given) {
  const auto mounts = mount_table();
  std::string directory = given;
  if (directory.empty()) directory = sluice_mount_of(mounts, real_path(".")) ? "." : "";
  if (directory.empty()) {
    const auto mount = mount_for("usage", "");
    if (!mount) return std::nullopt;
    return Place{*mount, ""};
  }
  std::string problem;
  const auto target = find_target(mounts, directory, problem);
  if (target && !target->is_directory)
    problem = log::escaped(directory) + ": not a directory; 'sluice explain' describes a file";
  if (!problem.empty()) {
    fail("usage", problem);
    return std::nullopt;
  }
  const auto mount = mount_for("usage", directory);
  if (!mount) return std::nullopt;
  if (*mount != target->mount) {
    fail("usage", log::escaped(directory) + ": in a bind mount; name the directory below " +
                      log::escaped(*mount));
    return std::nullopt;
  }
  return Place{*mount, real_path(directory).substr(target->mount.size())};
}

// Makes the daemon list the files of the pool. It does that whenever it plans moves.
Result<void> count_now(const std::string& mount) {
  ProgressLine line;
  ControlListener listener;
  listener.line = [&](const Json& each) {
    const Json& progress = member_of(each, "progress");
    if (progress.is_object() && line.is_terminal() && line.is_due())
      line.show("examining files: " + format_count(number_of(progress, "files")));
    return true;
  };
  SLUICE_TRY(ask_daemon(mount, {{"verb", "plan"}}, listener));
  return {};
}

// `is_new` says whether the files are to be listed first, and then whether they were.
Result<Json> ask_usage(const Place& place, bool& is_new) {
  const Json request = {{"verb", "tree"}, {"path", percent_encoded(place.below)}};
  if (is_new) SLUICE_TRY(count_now(place.mount));
  auto answer = ask_daemon(place.mount, request);
  // A directory that the daemon does not know is new.
  if (!is_new && (!answer || number_of(answer->last, "time") == 0)) {
    is_new = true;
    SLUICE_TRY(count_now(place.mount));
    answer = ask_daemon(place.mount, request);
  }
  ControlAnswer usage = SLUICE_TRY(std::move(answer));
  usage.last.erase("done");
  return std::move(usage.last);
}

// What one line of the table is about.
struct Sums {
  std::uint64_t files = 0, bytes = 0;
  struct OnTier {
    std::uint64_t files = 0, bytes = 0;
  };
  std::vector<OnTier> on;  // by tier

  void add(const Json& json, const Json& tiers) {
    on.resize(tiers.size());
    files += number_of(json, "files");
    bytes += number_of(json, "bytes");
    for (std::size_t i = 0; i < on.size(); ++i) {
      const std::string name = text_of(tiers[i], "name");
      on[i].files += number_of(member_of(json, "tier_files"), name);
      on[i].bytes += number_of(member_of(json, "tiers"), name);
    }
  }
};

class View {
 public:
  View(const Style& style, const Request& request, const Json& tiers)
      : style_(style), request_(request), tiers_(tiers) {}

  std::string text(const std::string& where, const Json& usage, bool is_new) const {
    const auto age = real_clock().seconds() - static_cast<std::int64_t>(number_of(usage, "time"));
    std::string out =
        style_.paint(Color::Bold, safe_name(style_, where)) + ": " +
        size(number_of(usage, "bytes")) + " in " + format_files(number_of(usage, "files")) +
        ", counted " +
        (is_new ? "now"
                : format_duration(std::chrono::seconds(age)) + " ago (--now counts again)") +
        "\n";
    std::vector<Table::Column> columns{{"SIZE", Table::Align::Right},
                                       {"FILES", Table::Align::Right}};
    for (const Json& tier : tiers_) {
      columns.push_back({"ON " + safe_name(style_, text_of(tier, "name")), Table::Align::Right});
    }
    columns.push_back({"NAME"});
    Table table(std::move(columns));
    Sums others;
    others.add(member_of(usage, "rest"), tiers_);
    std::uint64_t shown = 0;
    for (const Json& child : member_of(usage, "children")) {
      if (request_.limit != 0 && shown++ >= request_.limit) {
        others.add(child, tiers_);
        continue;
      }
      Sums sums;
      sums.add(child, tiers_);
      table.add(row(sums, safe_name(style_, text_of(child, "name")) +
                              (flag_of(child, "directory") ? "/" : "")));
    }
    if (others.files > 0) table.add(row(others, "(all others)"));
    out += table.text(style_);
    for (const Json& tier : tiers_) {
      if (!flag_of(tier, "online"))
        out += "not counted: files on " + safe_name(style_, text_of(tier, "name")) +
               ", which is offline\n";
    }
    return out;
  }

 private:
  std::string size(std::uint64_t bytes) const {
    return request_.bytes ? std::to_string(bytes) : format_size(bytes);
  }

  std::vector<Table::Cell> row(const Sums& sums, const std::string& name) const {
    std::vector<Table::Cell> cells{size(sums.bytes), format_count(sums.files)};
    for (const Sums::OnTier& on : sums.on) {
      cells.emplace_back(on.files == 0 ? "-"
                                       : size(on.bytes) + " (" + format_count(on.files) + ")");
    }
    cells.emplace_back(name);
    return cells;
  }

  const Style& style_;
  const Request& request_;
  const Json& tiers_;
};

}  // namespace

int command_usage(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.flag("--now", request.now);
  arguments.option("--limit", request.limit);
  arguments.flag("--json", request.json);
  arguments.flag("--bytes", request.bytes);
  arguments.option("--color", request.color);
  arguments.option("DIR", request.directory);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("usage", request.color);
  if (!style) return kUsage;
  const auto place = find_place(request.directory);
  if (!place) return kFailed;
  bool is_new = request.now;
  const auto usage = ask_usage(*place, is_new);
  if (!usage) return fail("usage", usage.error().text());
  if (request.json) {
    std::puts(usage->dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return kDone;
  }
  const auto status = mount_status(place->mount);
  if (!status) return fail("usage", describe_status_error(status.error(), place->mount));
  const View view(*style, request, member_of(*status, "tiers"));
  std::fputs(view.text(place->mount + place->below, *usage, is_new).c_str(), stdout);
  return kDone;
}

}  // namespace sluice::tools::cli
