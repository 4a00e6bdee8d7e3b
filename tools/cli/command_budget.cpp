// SPDX-License-Identifier: BSD-2-Clause
// sluice budget.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/explanation.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBudget = "user.sluice.budget";

constexpr HelpText kHelp{
    .usage = "sluice budget [--json] [DIR [SIZE|none] [--dry-run|--yes]]",
    .options = R"(      --dry-run     show what SIZE would delete, and set nothing
  -y, --yes         set it without asking, for scripts
      --json        one JSON object with all budgets, or with what SIZE deletes; its members
                    are stable
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
With SIZE, makes a directory expendable: when the files below it take more than that,
those of least value are DELETED, for good. 'none' removes the budget. Only the owner
of the directory and root may set it, and not for the whole mount. Never deleted are
files that are open, that were written in the last minute, that have a pin inside the
directory or a hard link outside it, or that the user who set the budget could not
delete. If nothing may be deleted, new files there fail with ENOSPC.

If SIZE makes it delete files, it first lists them (how many, how much, the first ten) and
asks. Without a terminal it refuses, unless there is --yes. A budget that deletes nothing
now, or no more than the one before, is set at once. The deletion takes seconds. If files
are used, written or opened meanwhile, others may be deleted instead.

With DIR alone, shows its budget. If DIR is the root of a mount, or without DIR, lists
all budgets of the mount (root only), how much of each is used, and how much was deleted
since the mount. 'sluice plan' shows what would be deleted next, 'sluice moves' what was.

The budget is stored with the directory as the attribute user.sluice.budget. Setting
that attribute directly asks no question.

Examples:
  sluice budget /mnt/pool/kv-cache 200GiB --dry-run
  sluice budget /mnt/pool/kv-cache 200GiB
  sluice budget /mnt/pool/kv-cache
  sluice budget /mnt/pool/kv-cache none

Exit status: 0 done, 1 failed or not set, 2 wrong usage.
)"};

std::string describe(const Error& error, const std::string& where) {
  switch (error.code) {
    case ENOTDIR:
      return where + ": not a directory; a budget is for all files below a directory";
    case EINVAL:
      return where + ": the root of the mount cannot have a budget; choose a directory in it";
    case EPERM:
    case EACCES:
      return where + ": not permitted; only its owner and root can set a budget";
    case EDQUOT:
      return where +
             ": you have set as many budgets as a user can have (see 'sluice status --limits'); "
             "end "
             "one with 'sluice budget DIRECTORY none', or set one on a directory above";
    case ENODATA:
      return where + ": it has no budget";
    case EROFS:
      return where +
             ": nothing was changed: a part of it is on a tier that is read-only; see 'sluice "
             "status'";
    case EOPNOTSUPP:
      return where + ": the daemon does not support budgets; is it an older version?";
    default:
      return where + ": " + std::strerror(error.code);
  }
}

struct Request {
  std::string directory, size;
  std::string color = "auto";
  bool json = false;
  bool yes = false;
  bool dry_run = false;
};

// Sets the budget of one directory, after it has said what that deletes.
class Setting {
 public:
  Setting(const Request& request, const Style& style, Target target)
      : request_(request), style_(style), target_(std::move(target)) {}

  int run() {
    // The budget must be set on the directory that the question is about, even if that is renamed
    // meanwhile.
    directory_ = UniqueFd(::open(target_.path.c_str(), O_PATH | O_CLOEXEC));
    if (!directory_) return fail("budget", described(Error::last("open")));
    if (request_.size == "none") {
      if (!request_.dry_run) return set();
      std::puts("removing a budget deletes nothing");
      return kDone;
    }
    const auto text = read_attribute(path(), (std::string(kBudget) + "." + request_.size).c_str());
    if (!text) return without_preview(text.error());
    preview_ = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!preview_.is_object())
      return fail("budget", "cannot parse the daemon's answer; is it another version of sluice?");
    const bool asks = deletes_more() && !request_.dry_run && !request_.yes;
    std::FILE* const to = asks ? stderr : stdout;
    if (request_.json) {
      std::puts(preview_.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    } else if (request_.dry_run || deletes_more() || number_of(preview_, "over") > 0) {
      std::fputs(report().c_str(), to);
    }
    // The files must have been listed; if that output failed, the program reports it.
    if (std::fflush(to) != 0) return kFailed;
    if (request_.dry_run) return kDone;
    if (asks && ::isatty(STDIN_FILENO) != 1)
      return fail("budget",
                  "nothing was set, because files would be deleted and there is no "
                  "terminal to ask on; give --yes to set it, or --dry-run to see only "
                  "what would go");
    if (asks && !agrees()) return fail("budget", "nothing was set and nothing is deleted");
    return set();
  }

 private:
  std::string path() const { return "/proc/self/fd/" + std::to_string(directory_.get()); }
  std::string described(const Error& error) const {
    return describe(error, log::escaped(target_.path));
  }

  int set() const {
    const auto done = request_.size == "none" ? remove_attribute(path(), kBudget)
                                              : set_attribute(path(), kBudget, request_.size);
    return done ? kDone : fail("budget", described(done.error()));
  }

  int without_preview(const Error& error) const {
    const std::string where = log::escaped(target_.path);
    std::string why;
    switch (error.code) {
      case ENODATA:
        why = "the daemon cannot say what would be deleted; is it an older version?";
        break;
      case ETIMEDOUT:
        why =
            "listing its files takes more than half a minute, so what would be deleted is not "
            "known";
        break;
      case EBUSY:
        why = "you are already running a preview of a budget; try again when it has ended";
        break;
      case EAGAIN:
        why = "the daemon was restarted; try again";
        break;
      default:
        return fail("budget", described(error));
    }
    if (!request_.yes) {
      return fail("budget", where + ": " + why +
                                (request_.dry_run ? "" : "; nothing was set, --yes sets it"));
    }
    std::fprintf(stderr, "%s: %s\n", where.c_str(), why.c_str());
    return set();
  }

  std::uint64_t going() const {
    return number_of(member_of(preview_, "now"), "files") +
           number_of(member_of(preview_, "later"), "files");
  }
  // Whether files are deleted that would otherwise stay.
  bool deletes_more() const {
    const Json& in_force = member_of(preview_, "in_force");
    const bool is_raised =
        in_force.is_number() && number_of(preview_, "budget") >= number_of(preview_, "in_force");
    return !is_raised && (going() > 0 || !flag_of(preview_, "complete"));
  }

  bool agrees() const {
    std::fputs("Set it and delete them? [y/N] ", stderr);
    std::string line;
    if (!std::getline(std::cin, line)) return false;
    return line == "y" || line == "Y" || line == "yes";
  }

  std::string sum_text(const Json& sum) const {
    return format_files(number_of(sum, "files")) + ", " + format_size(number_of(sum, "bytes"));
  }

  std::string report() const {
    const std::uint64_t budget = number_of(preview_, "budget");
    std::string out = safe_name(style_, target_.path) + " holds " +
                      format_size(number_of(preview_, "used")) + " in " +
                      format_files(number_of(preview_, "files")) + ".\n";
    if (budget < parse_size(request_.size).value_or(0))
      out += "A rule of the configuration gives it " + format_size(budget) +
             ", which is less and applies.\n";
    out += "A budget of " + format_size(budget) +
           (going() > 0 ? " deletes, for good:\n\n" + files() + "\n" : " deletes nothing now.\n");
    const std::string about = flag_of(preview_, "complete") ? "" : "at least ";
    const Json& now = member_of(preview_, "now");
    const Json& later = member_of(preview_, "later");
    if (number_of(now, "files") > 0)
      out += style_.paint(Color::Bold, about + sum_text(now)) + ": within seconds\n";
    if (number_of(later, "files") > 0)
      out += style_.paint(Color::Bold, about + sum_text(later)) +
             ": later, once they are not in use and were not written for a minute\n";
    for (const auto& [why, sum] : member_of(preview_, "kept").items())
      out += "not deleted: " + sum_text(sum) + " (" + kept_text(why) + ")\n";
    if (!flag_of(preview_, "complete"))
      out += "There was no time to look at all files: more may be deleted.\n";
    if (const auto over = number_of(preview_, "over"); over > 0)
      out += format_size(over) +
             " above the budget stay, because nothing else may be deleted; until that changes, new "
             "files there fail with 'No space left on device'\n";
    if (going() > 0)
      out += "If files are used, written or opened before that, others may be deleted instead.\n";
    return out;
  }

  std::string files() const {
    using Align = Table::Align;
    const bool has_later = number_of(member_of(preview_, "later"), "files") > 0;
    Table table(
        has_later
            ? std::vector<Table::Column>{{"SIZE", Align::Right}, {"LAST USED"}, {"WHEN"}, {"PATH"}}
            : std::vector<Table::Column>{{"SIZE", Align::Right}, {"LAST USED"}, {"PATH"}});
    const Json& first = member_of(preview_, "first");
    for (const Json& file : first) {
      const std::string name = text_of(file, "path");
      std::vector<Table::Cell> row{
          {format_size(number_of(file, "bytes"))},
          {format_time(static_cast<std::int64_t>(number_of(file, "last_use")))}};
      if (has_later) {
        const std::string waits = text_of(file, "waits");
        row.emplace_back(waits.empty() ? "now" : "later: " + kept_text(waits));
      }
      row.emplace_back(name.empty() ? "(in a directory that you may not be able to list)"
                                    : safe_name(style_, target_.path + "/" + name));
      table.add(std::move(row));
    }
    std::string out = table.text(style_);
    if (going() > first.size())
      out += style_.paint(Color::Dim, "... and " + format_count(going() - first.size()) + " more") +
             "\n";
    return out;
  }

  const Request& request_;
  const Style& style_;
  const Target target_;
  UniqueFd directory_;
  Json preview_;
};

int show_budget(const Target& target) {
  const auto value = read_attribute(target.path, kBudget);
  if (!value) return fail("budget", describe(value.error(), log::escaped(target.path)));
  const auto bytes = parse_size(*value);
  std::printf("%s\n", bytes ? format_size(*bytes).c_str() : value->c_str());
  return kDone;
}

int list_budgets(const Style& style, const std::string& given, bool as_json) {
  const auto mount = mount_for("budget", given);
  if (!mount) return kFailed;
  Json budgets = Json::array();
  ControlListener listener;
  listener.line = [&](const Json& line) {
    if (const Json& each = member_of(line, "budget"); each.is_object()) budgets.push_back(each);
    return true;
  };
  const auto answer = ask_daemon(*mount, {{"verb", "budgets"}}, listener);
  if (!answer) return fail("budget", answer.error().text());
  if (as_json) {
    const Json out = {{"budgets", std::move(budgets)}};
    std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return kDone;
  }
  using Align = Table::Align;
  Table table({{"BUDGET", Align::Right},
               {"USED", Align::Right},
               {"FILES", Align::Right},
               {"DELETED", Align::Right},
               {"DIRECTORY"}});
  for (const Json& each : budgets) {
    const bool is_over = number_of(each, "used") > number_of(each, "budget");
    const Json& known = member_of(each, "known");
    const bool is_known = known.is_boolean() && known.get<bool>();
    table.add({format_size(number_of(each, "budget")),
               {is_known ? format_size(number_of(each, "used")) : "...",
                is_over ? Color::Yellow : Color::None},
               format_count(number_of(each, "files")),
               format_size(number_of(each, "deleted_bytes")),
               safe_name(style, text_of(each, "path"))});
  }
  const std::string out = budgets.empty() ? "no directory has a budget\n" : table.text(style);
  std::fputs(out.c_str(), stdout);
  return kDone;
}

}  // namespace

int command_budget(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.flag("--dry-run", request.dry_run);
  arguments.flag("-y,--yes", request.yes);
  arguments.flag("--json", request.json);
  arguments.option("--color", request.color);
  arguments.option("DIR", request.directory);
  arguments.option("SIZE", request.size);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("budget", request.color);
  if (!style) return kUsage;
  const std::string& size = request.size;
  if (size.empty() && (request.dry_run || request.yes))
    return misuse("budget", "--dry-run and --yes need a DIR and a SIZE");
  if (request.dry_run && request.yes)
    return misuse("budget", "--dry-run and --yes cannot be used together");
  if (request.directory.empty()) return list_budgets(*style, "", request.json);
  if (!size.empty() && size != "none" && parse_size(size).value_or(0) == 0)
    return misuse("budget", "'" + log::escaped(size) + "' is not a size; write it like 200GiB");
  std::string problem;
  const auto target = find_target(mount_table(), request.directory, problem);
  if (!target) return fail("budget", problem);
  if (!size.empty()) return Setting(request, *style, *target).run();
  const bool is_root = real_path(request.directory) == target->mount;
  return is_root ? list_budgets(*style, request.directory, request.json) : show_budget(*target);
}

}  // namespace sluice::tools::cli
