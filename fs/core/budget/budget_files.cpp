// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/budget/budget_files.hpp"

#include <algorithm>

namespace sluice {

std::uint32_t BudgetFiles::child(std::uint32_t parent, const std::string& name) const {
  const auto found = by_name_.find({parent, name});
  return found == by_name_.end() ? kNone : found->second;
}

std::uint32_t BudgetFiles::find_directory(Below path) const {
  std::uint32_t at = 0;
  for (auto name = path.rbegin(); name != path.rend() && at != kNone; ++name) at = child(at, *name);
  return at;
}

std::uint32_t BudgetFiles::number_of(Below path) {
  std::uint32_t at = 0;
  for (auto name = path.rbegin(); name != path.rend(); ++name) {
    const auto [entry, is_new] = by_name_.try_emplace({at, *name}, kNone);
    if (is_new) {
      ++directories_[at].holds;
      if (unused_.empty()) {
        entry->second = static_cast<std::uint32_t>(directories_.size());
        directories_.emplace_back();
      } else {
        entry->second = unused_.back();
        unused_.pop_back();
      }
      directories_[entry->second].key = &entry->first;
    }
    at = entry->second;
  }
  return at;
}

// Forgets one thing that the directory holds, and the directory if that was the last.
void BudgetFiles::release(std::uint32_t directory) {
  while (--directories_[directory].holds == 0 && directory != 0) {
    const std::uint32_t parent = directories_[directory].key->first;
    by_name_.erase(*directories_[directory].key);
    directories_[directory].key = nullptr;
    unused_.push_back(directory);
    directory = parent;
  }
  if (by_name_.empty()) {
    directories_.resize(1);
    directories_.shrink_to_fit();
    unused_ = {};
  }
}

BudgetFiles::File* BudgetFiles::find(InodeId id) {
  const auto file = files_.find(id);
  return file == files_.end() ? nullptr : &file->second;
}

BudgetFiles::File& BudgetFiles::add_name(InodeId id, Below directory, const std::string& name,
                                         std::int64_t now) {
  const Name as{number_of(directory), name};
  ++directories_[as.directory].holds;
  const auto [at, is_new] = files_.try_emplace(id);
  File& file = at->second;
  if (is_new) {
    file.name = as;
    file.last_use = static_cast<double>(now);
    file.written = now;
    return file;
  }
  const auto is_same = [&](const Name& other) {
    return other.directory == as.directory && other.text == as.text;
  };
  const auto more = more_names_.find(id);
  const bool is_known =
      is_same(file.name) ||
      (more != more_names_.end() && std::any_of(more->second.begin(), more->second.end(), is_same));
  if (is_known) {
    release(as.directory);
  } else {
    more_names_[id].push_back(as);
  }
  return file;
}

void BudgetFiles::remove_name(InodeId id, Below directory, const std::string& name) {
  File* const file = find(id);
  const std::uint32_t number = find_directory(directory);
  if (file == nullptr || number == kNone) return;
  const auto is_it = [&](const Name& each) {
    return each.directory == number && each.text == name;
  };
  const auto more = more_names_.find(id);
  if (more == more_names_.end()) {
    if (is_it(file->name)) erase(id);
    return;
  }
  auto& names = more->second;
  if (is_it(file->name)) {
    file->name = names.back();
    names.pop_back();
  } else if (std::erase_if(names, is_it) == 0) {
    return;
  }
  if (names.empty()) more_names_.erase(more);
  release(number);
}

void BudgetFiles::erase(InodeId id) {
  const auto file = files_.find(id);
  if (file == files_.end()) return;
  used_ -= file->second.bytes;
  const std::uint32_t directory = file->second.name.directory;
  files_.erase(file);
  release(directory);
  const auto more = more_names_.find(id);
  if (more == more_names_.end()) return;
  const auto names = std::move(more->second);
  more_names_.erase(more);
  for (const Name& name : names) release(name.directory);
}

void BudgetFiles::set_bytes(File& file, std::uint64_t bytes) {
  used_ += bytes - file.bytes;
  file.bytes = bytes;
}

void BudgetFiles::end_spares() {
  for (auto& [id, file] : files_) file.end_spare();
}

std::vector<bool> BudgetFiles::those_below(std::uint32_t top) const {
  std::vector<bool> out(directories_.size());
  std::vector<std::uint32_t> rest{top};
  while (!rest.empty()) {
    const std::uint32_t at = rest.back();
    rest.pop_back();
    out[at] = true;
    for (auto each = by_name_.lower_bound({at, ""});
         each != by_name_.end() && each->first.first == at; ++each)
      rest.push_back(each->second);
  }
  return out;
}

void BudgetFiles::directory_renamed(Below from, Below to) {
  const std::uint32_t moved = find_directory(from);
  if (moved == kNone || from.empty() || to.empty()) return;  // there is no file below it
  // An empty directory that is replaced has no files, unless they were removed directly on the
  // tier.
  directory_left(to);
  if (find_directory(from) != moved) return;
  // No directory can be moved into itself, but what is known here may be out of date.
  for (std::size_t i = 0; i <= to.size(); ++i) {
    if (find_directory(to.subspan(i)) == moved) return directory_left(from);
  }
  const std::uint32_t old_parent = directories_[moved].key->first;
  const std::uint32_t new_parent = number_of(to.subspan(1));
  ++directories_[new_parent].holds;
  by_name_.erase(*directories_[moved].key);
  directories_[moved].key = &by_name_.try_emplace({new_parent, to[0]}, moved).first->first;
  release(old_parent);
}

void BudgetFiles::directory_left(Below path) {
  const std::uint32_t top = find_directory(path);
  if (top == kNone) return;
  const auto left = those_below(top);
  const auto has_left = [&](const Name& name) { return left[name.directory]; };
  std::vector<std::pair<InodeId, Name>> gone;
  for (const auto& [id, file] : files_) {
    if (has_left(file.name)) gone.emplace_back(id, file.name);
  }
  for (const auto& [id, names] : more_names_) {
    for (const Name& name : names) {
      if (has_left(name)) gone.emplace_back(id, name);
    }
  }
  for (const auto& [id, name] : gone) remove_name(id, path_of(name.directory), name.text);
}

std::vector<std::string> BudgetFiles::path_of(std::uint32_t directory) const {
  std::vector<std::string> out;
  for (; directory != 0; directory = directories_[directory].key->first)
    out.push_back(directories_[directory].key->second);
  return out;
}

std::vector<BudgetFiles::Place> BudgetFiles::names(InodeId id) const {
  std::vector<Place> out;
  const auto put = [&](const Name& name) { out.push_back({path_of(name.directory), name.text}); };
  if (const File* const file = find(id)) put(file->name);
  if (const auto more = more_names_.find(id); more != more_names_.end())
    std::for_each(more->second.begin(), more->second.end(), put);
  return out;
}

std::vector<std::string> BudgetFiles::paths(InodeId id) const {
  std::vector<std::string> out;
  for (const auto& [directory, text] : names(id)) {
    std::string path;
    for (auto each = directory.rbegin(); each != directory.rend(); ++each) path += "/" + *each;
    out.push_back(path + "/" + text);
  }
  return out;
}

}  // namespace sluice
