// SPDX-License-Identifier: BSD-2-Clause
// sluice budget.
#include <cstdio>
#include <cstring>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/units.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/output.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBudget = "user.sluice.budget";

constexpr HelpText kHelp{
    .usage = "sluice budget [--json] [DIR [SIZE|none]]",
    .options = R"(      --json        one JSON object with all budgets; its members are stable
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
With SIZE, makes a directory expendable: when the files below it take more than that,
those of least value are DELETED, for good. 'none' removes the budget. Only the owner
of the directory and root may set it, and not for the whole mount. Never deleted are
files that are open, that were written in the last minute, or that have a pin inside
the directory. If nothing may be deleted, new files there fail with ENOSPC.

With DIR alone, shows its budget. If DIR is the root of a mount, or without DIR, lists
all budgets of the mount (root only), how much of each is used, and how much was deleted
since the mount. 'sluice plan' shows what would be deleted next, 'sluice moves' what was.

The budget is stored with the directory as the attribute user.sluice.budget.

Examples:
  sluice budget /mnt/pool/kv-cache 200GiB
  sluice budget /mnt/pool/kv-cache
  sluice budget /mnt/pool/kv-cache none

Exit status: 0 done, 1 failed, 2 wrong usage.
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
    case EOPNOTSUPP:
      return where + ": the daemon does not support budgets; is it an older version?";
    default:
      return where + ": " + std::strerror(error.code);
  }
}

int set_budget(const Target& target, const std::string& size) {
  const std::string where = log::escaped(target.path);
  const auto done = size == "none" ? remove_attribute(target.path, kBudget)
                                   : set_attribute(target.path, kBudget, size);
  return done ? kDone : fail("budget", describe(done.error(), where));
}

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
  std::string directory, size;
  std::string color = "auto";
  bool as_json = false;
  arguments.flag("--json", as_json);
  arguments.option("--color", color);
  arguments.option("DIR", directory);
  arguments.option("SIZE", size);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("budget", color);
  if (!style) return kUsage;
  if (directory.empty()) return list_budgets(*style, "", as_json);
  if (!size.empty() && size != "none" && parse_size(size).value_or(0) == 0)
    return misuse("budget", "'" + log::escaped(size) + "' is not a size; write it like 200GiB");
  std::string problem;
  const auto target = find_target(mount_table(), directory, problem);
  if (!target) return fail("budget", problem);
  if (!size.empty()) return set_budget(*target, size);
  const bool is_root = real_path(directory) == target->mount;
  return is_root ? list_budgets(*style, directory, as_json) : show_budget(*target);
}

}  // namespace sluice
