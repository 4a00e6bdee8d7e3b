// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/tree_worker.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <iterator>
#include <utility>

#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

using Kind = TreeChange::Kind;

constexpr std::size_t kMostEntries = 40;  // of a subtree; above it, a directory is removed
constexpr std::size_t kMostRemoved = 4;

// Few names, and the same in every directory, so that mix-ups cause collisions.
std::string any_name(std::mt19937_64& random) { return "n" + std::to_string(random() % 7); }

Kind any_rename(std::mt19937_64& random) {
  constexpr std::array kKinds{Kind::Rename, Kind::Rename, Kind::RenameNoreplace, Kind::Exchange,
                              Kind::Exchange};
  return kKinds[random() % kKinds.size()];
}

// Every thread that locks two subtrees locks them in this order, so that none waits for another.
std::pair<Subtree*, Subtree*> in_lock_order(Subtree& a, Subtree& b) {
  if (std::less<>()(&b, &a)) return {&b, &a};
  return {&a, &b};
}

bool has_links(const TreeNode& node) {
  if (node.kind != NodeKind::Directory) return node.links > 1;
  return std::ranges::any_of(node.children,
                             [](const auto& child) { return has_links(*child.second); });
}

}  // namespace

std::vector<TreeWorker::Entry> TreeWorker::entries_of(const Subtree& subtree) {
  std::vector<Entry> out;
  const auto add = [&](const TreeNodePtr& directory, const std::string& path,
                       auto&& again) -> void {
    for (const auto& [name, child] : directory->children) {
      out.push_back({{&subtree.fd, directory, path + name, name}, child});
      if (child->kind == NodeKind::Directory) again(child, path + name + "/", again);
    }
  };
  add(subtree.root, "", add);
  return out;
}

TreePlace TreeWorker::place_in(const Subtree& subtree, const Entry* directory,
                               const std::string& name) {
  if (!directory) return {&subtree.fd, subtree.root, name, name};
  return {&subtree.fd, directory->node, directory->place.path + "/" + name, name};
}

std::optional<TreeWorker::Entry> TreeWorker::any_entry(const Subtree& subtree,
                                                       std::optional<NodeKind> kind) {
  std::vector<Entry> entries = entries_of(subtree);
  if (kind) std::erase_if(entries, [&](const Entry& entry) { return entry.node->kind != *kind; });
  if (entries.empty()) return std::nullopt;
  return entries[below(entries.size())];
}

TreePlace TreeWorker::any_place(const Subtree& subtree) {
  const auto directory = below(4) == 0 ? std::nullopt : any_entry(subtree, NodeKind::Directory);
  return place_in(subtree, directory ? &*directory : nullptr, any_name(random_));
}

// Most files are small; some are larger than the limit below which files are not passed through.
std::size_t TreeWorker::any_size() {
  constexpr std::array<std::size_t, 4> kSizes{200, 200, 20'000, 300'000};
  return below(kSizes[below(kSizes.size())]);
}

bool TreeWorker::make(const TreeChange& change, Subtree& other) {
  const int expected = change.expected();
  const std::string text = name_ + ": " + change.text();
  const std::set<std::uint64_t> ids = change.ids();
  under_way_ = change;
  const int got = change.perform();
  ++storm_.operations_;
  storm_.record(text + " = " + errno_name(got), ids);
  if (storm_.is_death(got)) {
    own_.is_unsure = other.is_unsure = true;
    throw Ended();
  }
  under_way_.reset();
  if (got != expected) {
    storm_.report(text + " = " + errno_name(got) + ", expected " + errno_name(expected),
                  change.ids_with_parents());
    throw Ended();
  }
  if (got != 0) return false;
  if (&other == &own_) {
    const MutexLock lock(own_.names);
    change.apply();
  } else {
    const auto [first, second] = in_lock_order(own_, other);
    const MutexLock lock(first->names), other_lock(second->names);
    change.apply();
  }
  return true;
}

bool TreeWorker::make_node(const TreePlace& place, Kind kind, NodeKind node, mode_t mode) {
  auto made = std::make_shared<TreeNode>();
  made->kind = node;
  made->id = storm_.next_id_++;
  made->mode = mode;
  return make({.kind = kind, .from = place, .made = made});
}

TreeNodePtr TreeWorker::make_directory(const TreePlace& place) {
  make_node(place, Kind::Mkdir, NodeKind::Directory, 0755);
  return place.node();
}

void TreeWorker::create() {
  const TreePlace place = any_place(own_);
  if (make_node(place, Kind::Create, NodeKind::File, 0600 + below(64))) {
    make({.kind = Kind::Write, .from = place, .size = any_size()});
  }
}

void TreeWorker::save() {
  const TreePlace place = any_place(own_);
  TreePlace fresh = place;
  fresh.name += ".new";
  fresh.path += ".new";
  if (!make_node(fresh, Kind::Create, NodeKind::File, 0644)) return;
  make({.kind = Kind::Write, .from = fresh, .size = any_size()});
  if (!make({.kind = Kind::Rename, .from = fresh, .to = place})) {
    make({.kind = Kind::Unlink, .from = fresh});
  }
}

void TreeWorker::rewrite() {
  const auto file = any_entry(own_, NodeKind::File);
  if (file) make({.kind = Kind::Write, .from = file->place, .size = any_size()});
}

void TreeWorker::mkdir() {
  make_node(any_place(own_), Kind::Mkdir, NodeKind::Directory, 0700 + below(64));
}

void TreeWorker::symlink() { make_node(any_place(own_), Kind::Symlink, NodeKind::Symlink, 0777); }

void TreeWorker::link() {
  const auto file = any_entry(own_, NodeKind::File);
  if (file) make({.kind = Kind::Link, .from = file->place, .to = any_place(own_)});
}

void TreeWorker::unlink() { make({.kind = Kind::Unlink, .from = any_place(own_)}); }

void TreeWorker::rmdir() {
  const auto directory = any_entry(own_, NodeKind::Directory);
  make({.kind = Kind::Rmdir, .from = directory ? directory->place : any_place(own_)});
}

void TreeWorker::rename() {
  const auto entry = any_entry(own_);
  if (!entry) return;
  const auto other = below(2) ? any_entry(own_) : std::nullopt;
  make({.kind = any_rename(random_),
        .from = entry->place,
        .to = other ? other->place : any_place(own_)});
}

void TreeWorker::exchange_directories() {
  const auto one = any_entry(own_, NodeKind::Directory);
  const auto other = any_entry(own_, NodeKind::Directory);
  if (one) make({.kind = Kind::Exchange, .from = one->place, .to = other->place});
}

// Only an empty directory can be replaced, and few are empty, so one is created first.
void TreeWorker::replace_directory() {
  const auto directory = any_entry(own_, NodeKind::Directory);
  const TreePlace place = any_place(own_);
  if (!directory || !make_node(place, Kind::Mkdir, NodeKind::Directory, 0755)) return;
  make({.kind = Kind::Rename, .from = directory->place, .to = place});
}

void TreeWorker::chmod() {
  const auto entry = any_entry(own_);
  if (!entry || entry->node->kind == NodeKind::Symlink) return;
  const mode_t mode = (entry->node->kind == NodeKind::Directory ? 0700 : 0600) + below(64);
  make({.kind = Kind::Chmod, .from = entry->place, .mode = mode});
}

void TreeWorker::note() {
  const auto entry = any_entry(own_);
  if (!entry || entry->node->kind == NodeKind::Symlink) return;
  make({.kind = Kind::Note, .from = entry->place, .note = std::to_string(below(1000))});
}

void TreeWorker::look() {
  const auto entry = any_entry(own_);
  if (!entry) return;
  const TreeDifference difference = compare_node(entry->place.address(), *entry->node);
  if (difference.empty()) return;
  if (!storm_.dying_) storm_.report(name_ + " sees: " + difference.text(), difference.ids);
  throw Ended();
}

void TreeWorker::remove_open_file() {
  const auto file = any_entry(own_, NodeKind::File);
  if (!file) return;
  UniqueFd fd(::openat(own_.fd.get(), file->place.path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    if (storm_.is_death(errno)) throw Ended();
    storm_.report(name_ + ": open " + file->place.path + " = " + errno_name(errno),
                  {file->node->id});
    throw Ended();
  }
  make({.kind = Kind::Unlink, .from = file->place});
  compare_open_file({UniqueFd(::dup(fd.get())), *file->node}, "just removed");
  if (file->node->links == 0 && removed_.size() < kMostRemoved) {
    removed_.push_back({std::move(fd), *file->node});
  }
}

void TreeWorker::read_removed_file() {
  if (removed_.empty()) return;
  const auto at = removed_.begin() + static_cast<std::ptrdiff_t>(below(removed_.size()));
  compare_open_file(*at, "removed a while ago");
  if (below(2) == 0) removed_.erase(at);
}

void TreeWorker::compare_open_file(const OpenFile& file, const std::string& what) {
  const std::string expected = file.node.content();
  std::string found(expected.size() + 1, '\0');
  const ssize_t got = ::pread(file.fd.get(), found.data(), found.size(), 0);
  struct stat st {};
  const int code = got < 0 || ::fstat(file.fd.get(), &st) < 0 ? errno : 0;
  if (storm_.is_death(code)) throw Ended();
  found.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  if (code == 0 && found == expected && st.st_nlink == file.node.links) return;
  storm_.report(name_ + ": " + file.node.label() + ", open and " + what + ": " + errno_name(code) +
                    ", " + std::to_string(st.st_nlink) + " links, " + std::to_string(found.size()) +
                    " bytes of " + std::to_string(expected.size()),
                {file.node.id});
  throw Ended();
}

void TreeWorker::remove_below(const Entry& entry) {
  if (entry.node->kind != NodeKind::Directory) {
    make({.kind = Kind::Unlink, .from = entry.place});
    return;
  }
  const auto children = entry.node->children;
  for (const auto& [name, child] : children) {
    remove_below({place_in(own_, &entry, name), child});
  }
  make({.kind = Kind::Rmdir, .from = entry.place});
}

void TreeWorker::remove_directory() {
  const auto directory = any_entry(own_, NodeKind::Directory);
  if (directory) remove_below(*directory);
}

// Renames or exchanges something with a place in another subtree, mostly directories. Files with
// several names stay, because their names must not be in two subtrees.
void TreeWorker::move_across(Subtree& other) {
  const auto kind = below(4) ? std::optional(NodeKind::Directory) : std::nullopt;
  const auto here = any_entry(own_, kind);
  const auto there = below(2) ? any_entry(other, kind) : std::nullopt;
  const TreePlace to = there ? there->place : any_place(other);
  if (!here || has_links(*here->node) || (to.node() && has_links(*to.node()))) return;
  make({.kind = any_rename(random_), .from = here->place, .to = to}, other);
}

void TreeWorker::shuffle(const std::vector<TreePlace>& places) {
  const TreePlace* from = nullptr;
  do {
    from = &places[below(places.size())];
  } while (!from->node());
  const TreePlace& to = places[below(places.size())];
  make({.kind = to.node() ? Kind::Exchange : Kind::RenameNoreplace, .from = *from, .to = to});
}

void TreeWorker::step() {
  constexpr Action kActions[] = {&TreeWorker::create,
                                 &TreeWorker::create,
                                 &TreeWorker::create,
                                 &TreeWorker::create,
                                 &TreeWorker::create,
                                 &TreeWorker::save,
                                 &TreeWorker::save,
                                 &TreeWorker::save,
                                 &TreeWorker::rewrite,
                                 &TreeWorker::rewrite,
                                 &TreeWorker::mkdir,
                                 &TreeWorker::mkdir,
                                 &TreeWorker::mkdir,
                                 &TreeWorker::symlink,
                                 &TreeWorker::link,
                                 &TreeWorker::unlink,
                                 &TreeWorker::unlink,
                                 &TreeWorker::rmdir,
                                 &TreeWorker::rename,
                                 &TreeWorker::rename,
                                 &TreeWorker::rename,
                                 &TreeWorker::rename,
                                 &TreeWorker::chmod,
                                 &TreeWorker::note,
                                 &TreeWorker::look,
                                 &TreeWorker::look,
                                 &TreeWorker::look,
                                 &TreeWorker::remove_open_file,
                                 &TreeWorker::read_removed_file,
                                 &TreeWorker::exchange_directories,
                                 &TreeWorker::exchange_directories,
                                 &TreeWorker::exchange_directories,
                                 &TreeWorker::exchange_directories,
                                 &TreeWorker::replace_directory,
                                 &TreeWorker::replace_directory};
  Subtree& other = *storm_.subtrees_[below(storm_.subtrees_.size())];
  if (&other != &own_ && below(4) == 0) {
    const auto [first, second] = in_lock_order(own_, other);
    const MutexLock lock(first->busy), other_lock(second->busy);
    if (own_.is_unsure || other.is_unsure) throw Ended();
    move_across(other);
    return;
  }
  const MutexLock lock(own_.busy);
  if (own_.is_unsure) throw Ended();
  if (entries_of(own_).size() > kMostEntries) {
    remove_directory();
    unlink();
  } else {
    (this->*kActions[below(std::size(kActions))])();
  }
}

void TreeWorker::recover() {
  if (!under_way_) return;
  const TreeChange change = *under_way_;
  under_way_.reset();
  ++storm_.unfinished_;
  const std::string text = name_ + ": " + change.text();
  const TreeChange::Outcome outcome = change.resolve();
  if (outcome == TreeChange::Outcome::Happened) change.apply();
  const char* said = outcome == TreeChange::Outcome::Happened      ? " had happened"
                     : outcome == TreeChange::Outcome::NotHappened ? " had not happened"
                                                                   : " left an unexpected state";
  storm_.record(text + said, change.ids());
  if (outcome == TreeChange::Outcome::Wrong) storm_.report(text + said, change.ids_with_parents());
}

}  // namespace sluice::test
