// SPDX-License-Identifier: BSD-2-Clause
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/units.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/progress.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr HelpText kHelp{.usage = "sluice move --to TIER [--wait] PATH...",
                         .options = R"(      --to TIER  the tier to move to
      --wait     wait until each file has moved or its move is blocked
  -h, --help     short help (-h) or full help (--help)
)",
                         .details = R"(
Moves files to a tier now; for a directory, every regular file below it. The daemon
makes the moves in the background; --wait waits for them. Moves that are not made yet
go on at the next mount, or after a crash. A move to the tier that a file is on withdraws
an earlier request. Automatic migration may move a file again after min_stay; use
'sluice pin' to keep it on the tier.

Examples:
  sluice move --to nvme /mnt/pool/datasets/today
  sluice move --to hdd --wait /mnt/pool/old.tar

Exit status: 0 all moves were requested, or with --wait made; 1 failed for at least
one path; 2 wrong usage.
)"};

constexpr const char* kTier = "user.sluice.tier";
// While waiting, ask about files for kLookFor, then leave the daemon alone for kRestFor.
constexpr milliseconds kLookFor{100};
constexpr milliseconds kRestFor{100};
constexpr seconds kStallTimeout{30};  // give up if no file moves for this long

// Requests moves and remembers them, to wait for them.
class Mover {
 public:
  Mover(std::string tier, bool keeps) : tier_(std::move(tier)), keeps_(keeps) {}

  void ask(const Target& target) {
    each_file(
        target.path, [&](const FoundFile& file) { ask_one(target, file); },
        [&](const std::string& problem) { report(problem); });
    line_.clear();
  }

  // Waits until each file has moved or its move is blocked.
  void wait();

  std::uint64_t asked() const { return asked_; }
  int code() const { return code_; }

 private:
  enum class State { There, Stuck, Moving, Queued };

  void ask_one(const Target& target, const FoundFile& file) {
    const auto set = set_attribute(file.path, kTier, tier_);
    if (!set) {
      const Target one{file.path, target.mount, false};
      return report(describe_attribute_error(set.error(), one, tier_, file.bytes));
    }
    ++asked_;
    if (keeps_) waiting_.push_back(file);
    if (line_.is_due()) line_.show("requested moves of " + format_files(asked_));
  }

  void report(const std::string& problem) {
    line_.clear();
    code_ = fail("move", problem);
  }

  // `copied` is set to what is copied of a file that is moving.
  State look_at(const FoundFile& file, std::uint64_t& copied) {
    const auto explanation = read_explanation(file.path);
    if (!explanation) {
      report(log::escaped(file.path) + ": " + std::strerror(explanation.error().code));
      return State::Stuck;
    }
    if (text_of(*explanation, "tier") == tier_) return State::There;
    if (const Json& moving = member_of(*explanation, "moving"); moving.is_object()) {
      copied = std::min(number_of(moving, "bytes"), file.bytes);
      return State::Moving;
    }
    if (member_of(*explanation, "queued").is_object()) return State::Moving;
    if (const Json& pending = member_of(*explanation, "pending"); pending.is_object()) {
      const std::string why = text_of(pending, "why");
      report(log::escaped(file.path) + ": cannot move now" +
             (why.empty() ? "" : ": " + log::escaped(why)) +
             "; it will be retried, see 'sluice moves'");
      return State::Stuck;
    }
    return State::Queued;
  }

  const std::string tier_;
  const bool keeps_;
  std::deque<FoundFile> waiting_;
  std::uint64_t asked_ = 0;
  int code_ = kDone;
  ProgressLine line_;
};

void Mover::wait() {
  std::uint64_t total_bytes = 0;
  for (const auto& file : waiting_) total_bytes += file.bytes;
  const std::uint64_t total_files = waiting_.size();
  std::uint64_t bytes = 0;
  std::uint64_t files = 0;
  RateMeter meter;
  meter.add(steady_clock::now(), 0);
  auto last_sign = steady_clock::now();
  std::size_t quiet = 0;                           // files in a row that showed no sign of moving
  std::map<std::string, std::uint64_t> under_way;  // by path: the bytes that are copied

  while (!waiting_.empty()) {
    const auto until = steady_clock::now() + kLookFor;
    for (std::size_t left = waiting_.size(); left > 0 && steady_clock::now() < until; --left) {
      const FoundFile file = std::move(waiting_.front());
      waiting_.pop_front();
      std::uint64_t copied = 0;
      const State state = look_at(file, copied);
      under_way.erase(file.path);
      if (copied > 0) under_way[file.path] = copied;
      if (state == State::There) {
        bytes += file.bytes;
        ++files;
      }
      if (state == State::Queued) {
        ++quiet;
      } else {
        quiet = 0;
        last_sign = steady_clock::now();
      }
      if (state == State::Moving || state == State::Queued) waiting_.push_back(file);
    }
    std::uint64_t so_far = bytes;
    for (const auto& [path, copied] : under_way) so_far += copied;
    meter.add(steady_clock::now(), so_far);
    if (line_.is_due()) {
      line_.show(
          transfer_text(so_far, total_bytes, files, total_files, meter, line_.is_terminal()));
    }
    if (waiting_.empty()) break;
    // Every file has been asked about since a file last moved.
    if (quiet >= waiting_.size() && steady_clock::now() - last_sign > kStallTimeout) {
      report(format_files(waiting_.size()) + " did not move for " + format_duration(kStallTimeout) +
             ", such as " + log::escaped(waiting_.front().path) +
             "; see 'sluice moves' for the reason");
      break;
    }
    std::this_thread::sleep_for(kRestFor);
  }
  line_.clear();
  std::printf("moved %s, %s\n", format_files(files).c_str(), format_size(bytes).c_str());
}

}  // namespace

int command_move(int argc, char** argv) {
  Arguments arguments;
  std::string tier;
  bool waits = false;
  std::vector<std::string> paths;
  arguments.option("--to", tier, Arguments::Need::Required);
  arguments.flag("--wait", waits);
  arguments.option("PATH", paths, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;

  const auto mounts = mount_table();
  int code = kDone;
  Mover mover(tier, waits);
  std::set<std::string> known;  // mounts that have the tier
  for (const auto& path : paths) {
    std::string problem;
    const auto target = find_target(mounts, path, problem);
    // Checked once, before walking a directory that may have a million files.
    if (target && !known.contains(target->mount)) {
      problem = unknown_tier(target->mount, tier);
      if (problem.empty()) known.insert(target->mount);
    }
    if (!problem.empty()) {
      code = fail("move", problem);
      continue;
    }
    mover.ask(*target);
  }
  if (waits) {
    if (mover.asked() > 0) mover.wait();
  } else if (mover.asked() > 0) {
    std::fprintf(stderr, "requested moves of %s; 'sluice moves' shows their progress\n",
                 format_files(mover.asked()).c_str());
  }
  return code == kDone ? mover.code() : code;
}

}  // namespace sluice
