// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/deletion/budget_forecast.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/file_at.hpp"
#include "tiering/move/tree_list.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// No more files than this are examined for plan and explain. The others are assumed to be deleted
// in their order, as most are.
constexpr std::size_t kMostForPlan = 10'000, kMostForExplain = 1'000;
// During this time the process that asks cannot be killed.
constexpr std::chrono::seconds kLongestPreview{30};

}  // namespace

// The files of a tree in the order in which they are deleted, each with the decision of
// DeletionRule. Files that are not where the tree says are left out.
class BudgetForecast::Turns {
 public:
  struct Turn {
    Victim victim;
    DeletionRule::Candidate candidate;
    std::optional<Kept> kept;
  };

  Turns(const Parts& parts, BudgetTrees::Tree& tree, BudgetTrees::Place place,
        BudgetTrees::Contents contents)
      : parts_(parts),
        tree_(tree),
        place_(std::move(place)),
        contents_(std::move(contents)),
        order_(contents_.files, static_cast<double>(parts.clock.seconds())) {}

  // The file whose turn is next, if it is not looked at.
  struct Unseen {
    InodeId id{};
    std::uint64_t bytes = 0;
  };
  std::optional<Unseen> skip() {
    const auto next = order_.next();
    if (!next) return std::nullopt;
    return Unseen{contents_.ids[*next], contents_.files[*next].bytes};
  }
  std::optional<Turn> look(InodeId file) {
    Victim victim = parts_.trees.victim(tree_, file);
    auto candidate = parts_.rule.examine(place_, victim);
    if (!candidate) return std::nullopt;
    const auto kept = parts_.rule.decide(*candidate, place_.budget);
    return Turn{std::move(victim), std::move(*candidate), kept};
  }
  const BudgetTrees::Place& place() const { return place_; }
  std::uint64_t used() const { return contents_.used; }
  std::size_t files() const { return contents_.files.size(); }

 private:
  const Parts& parts_;
  BudgetTrees::Tree& tree_;
  const BudgetTrees::Place place_;
  const BudgetTrees::Contents contents_;
  DeletionOrder order_;
};

std::vector<BudgetForecast::Next> BudgetForecast::next(InodeId directory, std::uint64_t bytes,
                                                       std::size_t most) {
  std::vector<Next> out;
  const BudgetTrees::TreePtr tree = parts_.trees.tree_of(directory);
  if (!tree) return out;
  BudgetTrees::Contents contents = parts_.trees.contents(*tree);
  if (!contents.is_known) return out;
  Turns turns(parts_, *tree, parts_.trees.place(*tree), std::move(contents));
  const std::uint64_t budget = turns.place().budget.bytes;
  const std::uint64_t needed = std::max(turns.used() + bytes, budget) - budget;
  std::uint64_t freed = 0;
  for (std::size_t looks = 0; looks < kMostForPlan && freed < needed && out.size() < most;
       ++looks) {
    const auto next = turns.skip();
    if (!next) break;
    const auto turn = turns.look(next->id);
    if (!turn || turn->kept) continue;
    // The keeper may remember that the file had to stay.
    parts_.trees.unspare(*tree, next->id);
    const Victim& victim = turn->victim;
    freed += victim.bytes;
    out.push_back({victim.names[0], victim.bytes, victim.uses, victim.last_use});
  }
  return out;
}

std::vector<BudgetForecast::Standing> BudgetForecast::standing(const InodePtr& file) {
  std::vector<Standing> out;
  for (const BudgetTrees::TreePtr& tree : parts_.trees.trees_with(file)) {
    BudgetTrees::Contents contents = parts_.trees.contents(*tree);
    if (!contents.is_known) continue;
    Turns turns(parts_, *tree, parts_.trees.place(*tree), std::move(contents));
    const auto own = turns.look(file->id());
    // A file that takes no room is never deleted.
    if (!own || own->victim.bytes == 0) continue;
    Standing standing{turns.place().path, turns.place().budget, turns.used(), 0, own->kept};
    if (!own->kept) parts_.trees.unspare(*tree, file->id());
    std::size_t looks = 0;
    for (auto next = turns.skip(); next && next->id != file->id(); next = turns.skip()) {
      if (looks++ < kMostForExplain) {
        const auto turn = turns.look(next->id);
        if (!turn || turn->kept) continue;
      }
      standing.before += next->bytes;
    }
    out.push_back(std::move(standing));
  }
  return out;
}

// One user must not keep many threads busy. Root has no limit.
class BudgetForecast::Asking {
 public:
  Asking(BudgetForecast& forecast, uid_t user) : forecast_(forecast), user_(user) {
    const MutexLock lock(forecast_.mutex_);
    is_first_ = user_ == 0 || forecast_.asking_.insert(user_).second;
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() {
    if (!is_first_) return;
    const MutexLock lock(forecast_.mutex_);
    forecast_.asking_.erase(user_);
  }
  bool is_first() const { return is_first_; }

 private:
  BudgetForecast& forecast_;
  const uid_t user_;
  bool is_first_;
};

Result<BudgetForecast::Preview> BudgetForecast::preview(const InodePtr& directory,
                                                        const Budget& asked) {
  const Asking asking(*this, asked.user);
  if (!asking.is_first()) return Error(EBUSY, "another preview for the user is running");
  return preview_now(directory, asked);
}

Result<BudgetForecast::Preview> BudgetForecast::preview_now(const InodePtr& directory,
                                                            const Budget& asked) {
  const auto deadline = steady_clock::now() + kLongestPreview;
  const auto go_on = [&] { return !stops_ && steady_clock::now() < deadline; };
  const std::string path = parts_.tree.path_of(directory);
  if (path.empty()) return Error(ESTALE, "the directory is gone");
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(directory));
  const auto rules = parts_.trees.rules();
  Preview out;
  out.budget = *budget_of(asked, *rules, path);
  const auto in_force = budget_of(own_budget(fd->get()), *rules, path);
  if (in_force && (in_force->user == 0 || in_force->user == out.budget.user))
    out.in_force = in_force->bytes;

  parts_.flush();
  BudgetTrees::TreePtr tree = parts_.trees.tree_of(directory->id());
  BudgetTrees::Contents contents;
  if (tree) contents = parts_.trees.contents(*tree);
  if (!contents.is_known) {
    const auto list = list_tree(parts_.pool, path, go_on);
    if (failed_with(list, ECANCELED))
      return stops_ ? Error(EAGAIN, "the daemon is ending")
                    : Error(ETIMEDOUT, "there are too many files to list");
    if (!list) return list.error();
    tree = parts_.trees.draft(directory, *list);
    contents = parts_.trees.contents(*tree);
  }
  BudgetTrees::Place place = parts_.trees.place(*tree);
  place.budget = out.budget;
  Turns turns(parts_, *tree, std::move(place), std::move(contents));
  out.used = turns.used();
  out.files = turns.files();
  foresee(turns, asked.user, go_on, out);
  return out;
}

// Goes through the files in their order, as the keeper does, until enough would be deleted.
void BudgetForecast::foresee(Turns& turns, uid_t asks, const std::function<bool()>& go_on,
                             Preview& out) {
  const std::uint64_t excess = std::max(out.used, out.budget.bytes) - out.budget.bytes;
  const auto add = [](Sum& sum, const Going& file) {
    ++sum.files;
    sum.bytes += file.bytes;
  };
  // `due` also counts files that wait. Once enough is due, a file is reported as kept only if a
  // later one is deleted in its place.
  std::uint64_t freed = 0, due = 0;
  std::vector<Going> waiting;
  std::size_t needed = 0;  // of those that wait, so many are said to stay if they do
  std::map<Kept, Sum> kept;
  const auto add_kept = [&] {
    for (const auto& [why, sum] : std::exchange(kept, {})) {
      out.kept[why].files += sum.files;
      out.kept[why].bytes += sum.bytes;
    }
    needed = waiting.size();
  };
  while (freed < excess && (out.is_complete = go_on())) {
    const auto next = turns.skip();
    if (!next) break;
    const auto turn = turns.look(next->id);
    if (!turn) continue;
    Going file{"", turn->victim.bytes, turn->victim.last_use, turn->kept};
    const bool may_be_named = (turn->kept ? waiting.size() : out.first.size()) < kMostNamed;
    if (may_be_named) file.path = path_for(turn->candidate, turn->victim, turns.place(), asks);
    const bool is_due = due < excess;
    if (!turn->kept) {
      freed += file.bytes;
      due += file.bytes;
      add(out.now, file);
      if (out.first.size() < kMostNamed) out.first.push_back(std::move(file));
      add_kept();
      continue;
    }
    if (is_for_now(*turn->kept)) {
      due += file.bytes;
      waiting.push_back(std::move(file));
    } else {
      add(kept[*turn->kept], file);
    }
    if (is_due) add_kept();
  }
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    Going& file = waiting[i];
    if (freed >= excess || !out.is_complete) {
      if (i < needed) add(out.kept[*file.why], file);
      continue;
    }
    freed += file.bytes;
    add(out.later, file);
    if (out.first.size() < kMostNamed) out.first.push_back(std::move(file));
  }
  out.over = std::max(freed, excess) - freed;
}

// The name of the file that the user who asks could find; "" if that user could find none. Root
// finds all.
std::string BudgetForecast::path_for(const DeletionRule::Candidate& file, const Victim& victim,
                                     const BudgetTrees::Place& place, uid_t asks) {
  const std::vector<Names::Place>& names = file.names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (asks == 0 || may_list(names[i].parent, place.directory, asks))
      return victim.names[i].substr(1);
  }
  return "";
}

// Whether the user can surely list `parent` and all above it, up to `top`, which is the user's.
// Groups are not known here, and with an ACL the mode does not say enough.
bool BudgetForecast::may_list(const InodePtr& parent, const InodePtr& top, uid_t user) {
  constexpr mode_t kReadable = S_IRUSR | S_IXUSR, kReadableByAll = 0055;
  InodePtr at = parent;
  for (; at && at->id() != top->id(); at = parts_.tree.parent_of(at)) {
    struct stat st {};
    const auto fd = parts_.descriptors.any(at);
    if (!fd || ::fstatat((*fd)->get(), "", &st, AT_EMPTY_PATH) < 0) return false;
    if (st.st_uid == user) {
      if ((st.st_mode & kReadable) != kReadable) return false;
      continue;
    }
    const bool has_acl = getxattr_at((*fd)->get(), "", "system.posix_acl_access", nullptr, 0) > 0;
    if (has_acl || (st.st_mode & kReadableByAll) != kReadableByAll) return false;
  }
  return at != nullptr;
}

}  // namespace sluice
