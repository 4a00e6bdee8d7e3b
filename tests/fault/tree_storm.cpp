// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/tree_storm.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <system_error>

#include "tests/fault/move_stage.hpp"
#include "tests/fault/tree_worker.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

constexpr int kWorkers = 3;
constexpr int kMovers = 2;
constexpr int kSlots = 6;  // possible places of subtrees: half of them in a, half in b
constexpr std::size_t kMostHistory = 100'000;
constexpr std::size_t kMostShown = 40;

std::string slot_name(int slot) {
  return (slot % 2 ? "a" : "b") + std::string("/s") + std::to_string(slot);
}

void pause_at_random(std::mt19937_64& random, int most_microseconds) {
  std::this_thread::sleep_for(
      std::chrono::microseconds(random() % static_cast<unsigned>(most_microseconds)));
}

}  // namespace

TreeStorm::TreeStorm(std::string root, std::vector<std::string> tiers, std::uint64_t seed)
    : root_(std::move(root)), tiers_(std::move(tiers)), walker_random_(seed * 100 + 99) {
  top_.root = std::make_shared<TreeNode>();
  top_.root->kind = NodeKind::Directory;
  top_.fd.reset(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top_.fd) fail("open " + root_);
  shuffler_ = std::make_unique<TreeWorker>(*this, top_, "shuffler", seed * 100 + 98);
  for (const char* name : {"a", "b"}) {
    shuffler_->make_directory({&top_.fd, top_.root, name, name});
  }
  for (int i = 0; i < kWorkers; ++i) {
    const std::string path = slot_name(i);
    subtrees_.push_back(std::make_unique<Subtree>());
    subtrees_.back()->root = shuffler_->make_directory(
        {&top_.fd, top_.root->children.at(path.substr(0, 1)), path, path.substr(2)});
    workers_.push_back(std::make_unique<TreeWorker>(*this, *subtrees_.back(),
                                                    "worker " + std::to_string(i),
                                                    seed * 100 + static_cast<unsigned>(i)));
  }
  first_id_ = next_id_;
  for (unsigned i = 0; i < kMovers; ++i) mover_randoms_.emplace_back(seed * 100 + 50 + i);
}

TreeStorm::~TreeStorm() { stop(); }

void TreeStorm::open_subtrees() {
  if (!top_.fd) top_.fd.reset(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top_.fd) fail("open " + root_);
  for (const auto& subtree : subtrees_) {
    if (subtree->fd) continue;
    const std::string path = root_ + "/" + slot_of(*subtree);
    subtree->fd.reset(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!subtree->fd) fail("open " + path);
  }
}

std::string TreeStorm::slot_of(const Subtree& subtree) {
  const MutexLock lock(top_.names);
  for (const auto& [parent, directory] : top_.root->children) {
    for (const auto& [name, node] : directory->children) {
      if (node == subtree.root) return parent + "/" + name;
    }
  }
  return "";
}

template <typename Work>
void TreeStorm::run_thread(std::vector<std::jthread>& threads, Work work) {
  threads.emplace_back([this, work](const std::stop_token& stopped) mutable {
    try {
      while (!stop_ && !stopped.stop_requested()) work();
    } catch (const TreeWorker::Ended&) {
    } catch (const std::exception& error) {
      report(error.what(), {});
    }
  });
}

void TreeStorm::start() {
  open_subtrees();
  for (const auto& worker : workers_) {
    run_thread(threads_, [random = Random(operations_), &worker]() mutable {
      worker->step();
      // Files must be unused at times, or none could move.
      pause_at_random(random, 200);
    });
  }
  run_thread(threads_, [this, random = Random(operations_)]() mutable { shuffle(random); });
  run_thread(threads_, [this] { walk(walker_random_); });
  if (!movers_.empty() || tiers_.empty()) return;
  for (Random& random : mover_randoms_) {
    run_thread(movers_, [this, &random] { send_files(random); });
  }
}

void TreeStorm::pause() { threads_.clear(); }

void TreeStorm::stop() {
  threads_.clear();
  movers_.clear();
  for (const auto& worker : workers_) worker->close_files();
  for (const auto& subtree : subtrees_) subtree->fd.reset();
  top_.fd.reset();
}

void TreeStorm::expect_death() { dying_ = true; }

void TreeStorm::recover() {
  dying_ = false;
  try {
    // The shuffler finds out first where the subtrees are.
    top_.fd.reset(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    shuffler_->recover();
    open_subtrees();
    for (const auto& worker : workers_) worker->recover();
    for (const auto& subtree : subtrees_) {
      const MutexLock lock(subtree->busy);
      subtree->is_unsure = false;
    }
  } catch (const std::exception& error) {
    report(error.what(), {});
  }
}

void TreeStorm::shuffle(Random& random) {
  {
    const MutexLock lock(top_.busy);
    std::vector<TreePlace> places;
    for (int i = 0; i < kSlots; ++i) {
      const std::string path = slot_name(i);
      places.push_back({&top_.fd, top_.root->children.at(path.substr(0, 1)), path, path.substr(2)});
    }
    shuffler_->shuffle(places);
  }
  pause_at_random(random, 2000);
}

TreeStorm::Target TreeStorm::any_target(Subtree& subtree, Random& random) {
  const MutexLock lock(subtree.names);
  std::vector<Target> targets;
  const auto add = [&](const TreeNode& directory, const std::string& path, auto&& again) -> void {
    for (const auto& [name, child] : directory.children) {
      if (child->kind == NodeKind::File) targets.push_back({path + name, child->id});
      if (child->kind == NodeKind::Directory) again(*child, path + name + "/", again);
    }
  };
  add(*subtree.root, "", add);
  return targets.empty() ? Target{"", 0} : targets[random() % targets.size()];
}

void TreeStorm::send_files(Random& random) {
  Subtree& subtree = *subtrees_[random() % subtrees_.size()];
  const Target target = any_target(subtree, random);
  if (!target.path.empty()) {
    const std::string path =
        "/proc/self/fd/" + std::to_string(subtree.fd.get()) + "/" + target.path;
    const std::string& to = tiers_[random() % tiers_.size()];
    const std::string tier = tier_of(path);
    note_tier(target.id, tier);
    const int code = send_to(path, to);
    if (is_death(code)) throw TreeWorker::Ended();
    if (code == 0) record("mover: " + target.path + " to " + to, {target.id});
    // The file may have been renamed, removed or replaced since.
    constexpr std::array kFine{0, ENOENT, ENOTDIR, EISDIR, EBUSY};
    if (std::ranges::find(kFine, code) == kFine.end()) {
      report("mover: " + target.path + " to " + to + " = " + errno_name(code), {target.id});
    }
  }
  pause_at_random(random, 1000);
}

void TreeStorm::note_tier(std::uint64_t id, const std::string& tier) {
  if (tier.empty()) return;
  const MutexLock lock(history_mutex_);
  std::string& last = last_tiers_[id];
  moves_ += !last.empty() && last != tier;
  last = tier;
}

void TreeStorm::walk(Random& random) {
  Subtree& subtree = *subtrees_[random() % subtrees_.size()];
  const Target target = any_target(subtree, random);
  const std::string path = root_ + "/" + slot_of(subtree) + "/" + target.path;
  const auto is_fine = [&](int code) {
    if (is_death(code)) throw TreeWorker::Ended();
    return code == 0 || code == ENOENT || code == ENOTDIR || code == ELOOP || code == EISDIR;
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  const int opened = fd ? 0 : errno;
  if (!is_fine(opened)) report("walker: open " + path + " = " + errno_name(opened), {target.id});
  if (fd) {
    std::string content(400'000, '\0');
    const ssize_t got = ::read(fd.get(), content.data(), content.size());
    const int code = got < 0 ? errno : 0;
    if (!is_fine(code)) report("walker: read " + path + " = " + errno_name(code), {target.id});
    content.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    const std::set<std::uint64_t> ids = ids_in(content);
    if (ids.size() > 1) report("walker: " + path + " mixes the bytes of several files", ids);
  }
  try {
    names_in(path.substr(0, path.rfind('/')));
  } catch (const std::system_error& error) {
    if (!is_fine(error.code().value())) report(std::string("walker: ") + error.what(), {});
  }
  pause_at_random(random, 500);
}

bool TreeStorm::is_death(int code) const {
  // A request that is in progress in the ring between kernel and daemon ends with one of the last
  // three.
  constexpr std::array kCodes{ENOTCONN, ECONNABORTED, ECANCELED, EINTR, EIO};
  return dying_ && std::ranges::find(kCodes, code) != kCodes.end();
}

void TreeStorm::record(const std::string& text, const std::set<std::uint64_t>& ids) {
  const MutexLock lock(history_mutex_);
  history_.push_back({ids, text});
  if (history_.size() > kMostHistory) history_.pop_front();
}

void TreeStorm::report(const std::string& text, const std::set<std::uint64_t>& ids) {
  const std::string what = text + "\n" + history(ids);
  const MutexLock lock(history_mutex_);
  if (problems_.size() < 3) problems_.push_back(what);
  stop_ = true;
}

std::string TreeStorm::history(std::set<std::uint64_t> ids) const {
  if (ids.empty()) return "";
  const MutexLock lock(history_mutex_);
  // Every line mentions subtrees, so they are used only if nothing else is given.
  if (*ids.rbegin() >= first_id_) ids.erase(ids.begin(), ids.lower_bound(first_id_));
  std::vector<std::string> found;
  for (auto line = history_.rbegin(); line != history_.rend() && found.size() < kMostShown;
       ++line) {
    const auto is_concerned = [&](std::uint64_t id) { return line->ids.contains(id); };
    if (std::ranges::any_of(ids, is_concerned)) found.push_back(line->text);
  }
  std::ranges::reverse(found);
  std::string out;
  for (const std::string& line : found) out += "    " + line + "\n";
  return out;
}

std::string TreeStorm::problems() const {
  const MutexLock lock(history_mutex_);
  std::string out;
  for (const std::string& each : problems_) out += each + "\n";
  return out;
}

std::string TreeStorm::with_history(const TreeDifference& difference) const {
  return difference.empty() ? "" : difference.text() + history(difference.ids);
}

std::string TreeStorm::compare_mount() { return with_history(compare_tree(root_, *top_.root)); }

std::string TreeStorm::compare_with_tiers(const std::vector<std::string>& directories) {
  return with_history(compare_tiers(directories, *top_.root));
}

std::string TreeStorm::remove_everything() {
  std::string out;
  for (const std::string& name : names_in(root_)) {
    std::error_code error;
    std::filesystem::remove_all(root_ + "/" + name, error);
    if (error) out += "rm -rf " + name + ": " + error.message() + "\n";
  }
  for (const std::string& name : names_in(root_)) out += name + " still exists\n";
  top_.root->children.clear();
  return out;
}

}  // namespace sluice::test
