// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "metadata/store.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/interrupt.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr HelpText kHelp{.usage =
                             "sluice move --to TIER [--wait] PATH...\n"
                             "       sluice move --cancel PATH...",
                         .options = R"(      --to TIER  the tier to move to
      --wait     wait until each file has moved or its move is blocked
      --cancel   end the moves of these files that run or wait
  -h, --help     short help (-h) or full help (--help)
)",
                         .details = R"(
Moves files to a tier now; for a directory, every regular file below it. The daemon
makes the moves in the background; --wait waits for them. Moves that are not made yet
are made after the next mount, or after a crash. Automatic migration may move a file again
after min_stay; use 'sluice pin' to keep it on the tier.

--cancel ends a move that is still copying, and the file stays where it is. A move to the
tier that a file is on does the same. Whoever may move a file may cancel its move, even
one of automatic migration, which may plan it again.

Examples:
  sluice move --to nvme /mnt/pool/datasets/today
  sluice move --to hdd --wait /mnt/pool/old.tar
  sluice move --cancel /mnt/pool/old.tar

Exit status: 0 all moves were requested, or with --wait made, or cancelled; 1 failed for
at least one path, or no move of it runs or waits; 2 wrong usage.
)"};

constexpr const char* kTier = "user.sluice.tier";
constexpr const char* kPin = "user.sluice.pin";
// While waiting, ask about files for kLookFor, then leave the daemon alone for kRestFor.
constexpr milliseconds kLookFor{100};
constexpr milliseconds kRestFor{100};
constexpr seconds kStallTimeout{30};  // give up if no file moves for this long

constexpr seconds kSwitchTimeout{10};  // for a move that is about to end

// Something that happened to a number of files, such as one that is named.
struct Some {
  std::uint64_t files = 0;
  std::string path;  // the first
  std::string tier;
  void add(const std::string& at, const std::string& on) {
    if (files++ > 0) return;
    path = log::escaped(at);
    tier = on;
  }
};

// Tells each file once, however many names it has.
class Names {
 public:
  bool is_new(const FoundFile& file) {
    return file.links <= 1 || seen_.emplace(file.device, file.inode).second;
  }

 private:
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;
};

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

  // Says what was requested, and what was not.
  void say_asked() const;
  // Waits until each file has moved or its move is blocked.
  void wait();

  std::uint64_t asked() const { return asked_; }
  int code() const { return code_; }

 private:
  enum class State { There, Stuck, Moving, Queued };

  void ask_one(const Target& target, const FoundFile& file) {
    if (interrupt_.came()) end_early();
    if (!names_.is_new(file) || stays(file)) return;
    if (const auto all = size_of(target.mount); all > 0 && file.bytes > all) {
      return report(log::escaped(file.path) + ": its " + format_size(file.bytes) +
                    " are more than all of " + tier_ + ", which has " + format_size(all));
    }
    const auto set = set_attribute(file.path, kTier, tier_);
    if (!set) {
      if (interrupt_.came()) end_early();
      const Target one{file.path, target.mount, false};
      return report(describe_attribute_error(set.error(), one, tier_, file.bytes));
    }
    ++asked_;
    asked_bytes_ += file.bytes;
    mount_ = target.mount;
    note_pin(pinned_, file);
    if (keeps_) waiting_.push_back(file);
    if (line_.is_due()) line_.show("requested moves of " + format_files(asked_));
  }

  // Whether the file is on the tier, and a move away was withdrawn.
  bool stays(const FoundFile& file) {
    const auto is_there = [&] {
      const auto tier = read_attribute(file.path, kTier);
      return tier && *tier == tier_;
    };
    if (!is_there()) return false;
    const auto withdrawn = remove_attribute(file.path, kTier);
    if (withdrawn) {
      withdrawn_.add(file.path, tier_);
      note_pin(leaving_, file);
      return true;
    }
    // It may have moved away in between. If it is too late, it has to come back.
    if (!failed_with(withdrawn, ENODATA) || !is_there()) return false;
    there_.add(file.path, tier_);
    note_pin(leaving_, file);
    return true;
  }

  void note_pin(Some& some, const FoundFile& file) const {
    if (const auto pin = read_attribute(file.path, kPin); pin && *pin != tier_)
      some.add(file.path, *pin);
  }

  // Of the tier, in bytes; 0: unknown.
  std::uint64_t size_of(const std::string& mount) {
    const auto known = sizes_.find(mount);
    if (known != sizes_.end()) return known->second;
    return sizes_[mount] = total_of(mount, tier_).value_or(0);
  }

  [[noreturn]] void end_early() {
    line_.clear();
    interrupt_.end("move", asked_ == 0
                               ? "nothing was requested"
                               : "the moves of " + format_files(asked_) + " go on; " +
                                     how_to_see() + ", 'sluice move --cancel PATH' ends one");
  }

  // The list of all moves is for root.
  static bool has_list() { return ::geteuid() == 0; }
  static std::string how_to_see() {
    return has_list() ? "'sluice moves' shows them" : "'sluice explain PATH' shows that of a file";
  }
  static std::string where_to_see() { return has_list() ? "'sluice moves'" : "'sluice explain'"; }

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
             (why.empty() ? "" : ": " + log::escaped(why)) + "; it will be retried, see " +
             where_to_see());
      return State::Stuck;
    }
    if (was_cancelled(*explanation)) {
      report(log::escaped(file.path) + ": the move was cancelled");
      return State::Stuck;
    }
    return State::Queued;
  }

  // Whether somebody cancelled the file's last move, after it had begun.
  bool was_cancelled(const Json& explanation) const {
    const Json& moves = member_of(explanation, "moves");
    if (!moves.is_array() || moves.empty()) return false;
    return real_of(moves[0], "code") == kWithdrawn && text_of(moves[0], "to") == tier_ &&
           static_cast<std::int64_t>(number_of(moves[0], "time")) >= began_;
  }

  const std::string tier_;
  const bool keeps_;
  const Interrupt interrupt_;
  const std::int64_t began_ = real_clock().seconds();
  Names names_;
  std::deque<FoundFile> waiting_;
  std::uint64_t asked_ = 0, asked_bytes_ = 0;
  std::string mount_;                           // of the last one
  std::map<std::string, std::uint64_t> sizes_;  // of the tier, by mount
  Some there_, withdrawn_, pinned_, leaving_;
  int code_ = kDone;
  ProgressLine line_;
};

// Says that the next pass `does` something with files ("moves"), because of their pins.
void print_pinned(const Some& pinned, const char* does, const char* where) {
  if (pinned.files == 1) {
    std::fprintf(stderr,
                 "%s is pinned to %s, and the next pass %s it %s; 'sluice unpin' removes the pin\n",
                 pinned.path.c_str(), pinned.tier.c_str(), does, where);
  } else if (pinned.files > 1) {
    std::fprintf(stderr,
                 "%s are pinned to other tiers, such as %s to %s, and the next pass %s them %s; "
                 "'sluice unpin' removes pins\n",
                 format_files(pinned.files).c_str(), pinned.path.c_str(), pinned.tier.c_str(), does,
                 where);
  }
}

void Mover::say_asked() const {
  if (there_.files > 0) {
    std::fprintf(stderr, "%s already on %s\n",
                 there_.files == 1 ? (there_.path + " is").c_str()
                                   : (format_files(there_.files) + " are").c_str(),
                 tier_.c_str());
  }
  if (withdrawn_.files > 0) {
    std::fprintf(stderr, "cancelled the %s, which stay%s on %s\n",
                 withdrawn_.files == 1 ? ("move of " + withdrawn_.path).c_str()
                                       : ("moves of " + format_files(withdrawn_.files)).c_str(),
                 withdrawn_.files == 1 ? "s" : "", tier_.c_str());
  }
  if (asked_ > 0 && !keeps_) {
    std::fprintf(stderr, "requested moves of %s; %s\n", format_files(asked_).c_str(),
                 how_to_see().c_str());
  }
  const auto free = asked_ > 0 ? free_on(mount_, tier_) : std::nullopt;
  if (free && *free < asked_bytes_) {
    std::fprintf(stderr, "%s has %s free, less than these %s: what does not fit waits for room\n",
                 tier_.c_str(), format_size(*free).c_str(), format_size(asked_bytes_).c_str());
  }
  print_pinned(pinned_, "brings", "back there");
  print_pinned(leaving_, "moves", "there");
}

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
    if (interrupt_.came()) end_early();
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
             ", such as " + log::escaped(waiting_.front().path) + "; see " + where_to_see() +
             " for the reason");
      break;
    }
    std::this_thread::sleep_for(kRestFor);
  }
  line_.clear();
  std::printf("moved %s, %s\n", format_files(files).c_str(), format_size(bytes).c_str());
}

// Cancels moves.
class Canceller {
 public:
  void cancel(const Target& target) {
    bool found = false;
    each_file(
        target.path,
        [&](const FoundFile& file) {
          found = !names_.is_new(file) || cancel_one(target, file) || found;
        },
        [&](const std::string& problem) { report(problem); });
    if (found) return;
    report(log::escaped(target.path) + ": no move of " +
           (target.is_directory ? "a file below it" : "it") + " runs or waits");
  }

  void say_cancelled() const {
    if (cancelled_.files == 1) {
      std::fprintf(stderr, "cancelled the move of %s, which stays on %s\n", cancelled_.path.c_str(),
                   cancelled_.tier.c_str());
    } else if (cancelled_.files > 1) {
      std::fprintf(stderr, "cancelled the moves of %s\n", format_files(cancelled_.files).c_str());
    }
    print_pinned(pinned_, "moves", "there");
  }
  int code() const { return code_; }

 private:
  void report(const std::string& problem) { code_ = fail("move", problem); }

  // Whether the file had a move, or something else was reported.
  bool cancel_one(const Target& target, const FoundFile& file) {
    const auto removed = remove_attribute(file.path, kTier);
    if (failed_with(removed, ENODATA)) return false;
    if (failed_with(removed, EALREADY)) {
      wait_for_switch(file);
    } else if (!removed) {
      const Target one{file.path, target.mount, false};
      report(describe_attribute_error(removed.error(), one, "", file.bytes));
    } else {
      const auto tier = read_attribute(file.path, kTier);
      cancelled_.add(file.path, tier ? *tier : "its tier");
      const auto pin = read_attribute(file.path, kPin);
      if (pin && tier && *pin != *tier) pinned_.add(file.path, *pin);
    }
    return true;
  }

  // It was too late: the move is in its last step. Rarely that fails, and the file stays.
  void wait_for_switch(const FoundFile& file) {
    const auto until = steady_clock::now() + kSwitchTimeout;
    std::string to;
    for (;;) {
      const auto explanation = read_explanation(file.path);
      if (!explanation)
        return report(log::escaped(file.path) + ": " + std::strerror(explanation.error().code));
      const Json& moving = member_of(*explanation, "moving");
      const std::string tier = text_of(*explanation, "tier");
      if (moving.is_object()) to = text_of(moving, "to");
      if (!moving.is_object() && !to.empty() && tier != to) return cancelled_.add(file.path, tier);
      if (!moving.is_object() || tier == to)
        return report(log::escaped(file.path) + ": too late, it has already moved to " + tier);
      if (steady_clock::now() > until) {
        return report(log::escaped(file.path) + ": too late, its move to " + to +
                      " is in its last step");
      }
      std::this_thread::sleep_for(kRestFor);
    }
  }

  Names names_;
  Some cancelled_, pinned_;
  int code_ = kDone;
};

}  // namespace

int command_move(int argc, char** argv) {
  Arguments arguments;
  std::string tier;
  bool waits = false, cancels = false;
  std::vector<std::string> paths;
  arguments.option("--to", tier);
  arguments.flag("--wait", waits);
  arguments.flag("--cancel", cancels);
  arguments.option("PATH", paths, Arguments::Need::Required);
  arguments.never_together("--to", "--cancel");
  arguments.never_together("--wait", "--cancel");
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (tier.empty() && !cancels) return misuse("move", "--to TIER is missing");

  const auto mounts = mount_table();
  int code = kDone;
  if (cancels) {
    Canceller canceller;
    for (const auto& path : paths) {
      std::string problem;
      const auto target = find_target(mounts, path, problem);
      if (target) {
        canceller.cancel(*target);
      } else {
        code = fail("move", problem);
      }
    }
    canceller.say_cancelled();
    return code == kDone ? canceller.code() : code;
  }
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
  mover.say_asked();
  if (waits && mover.asked() > 0) mover.wait();
  return code == kDone ? mover.code() : code;
}

}  // namespace sluice::tools::cli
