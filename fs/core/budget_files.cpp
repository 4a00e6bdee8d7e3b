// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/budget_files.hpp"

#include <algorithm>

namespace sluice {
namespace {

bool is_below(const std::string& path, const std::string& directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

}  // namespace

std::uint32_t BudgetFiles::number_of(const std::string& directory) {
  const auto next = static_cast<std::uint32_t>(directories_.size());
  const auto [number, is_new] = numbers_.emplace(directory, next);
  if (is_new) directories_.push_back(directory);
  return number->second;
}

BudgetFiles::File* BudgetFiles::find(InodeId id) {
  const auto file = files_.find(id);
  return file == files_.end() ? nullptr : &file->second;
}

BudgetFiles::File& BudgetFiles::add_name(InodeId id, const std::string& directory,
                                         const std::string& name, std::int64_t now) {
  const Name as{number_of(directory), name};
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
  if (is_same(file.name)) return file;
  auto& more = more_names_[id];
  if (std::none_of(more.begin(), more.end(), is_same)) more.push_back(as);
  return file;
}

void BudgetFiles::remove_name(InodeId id, const std::string& directory, const std::string& name) {
  File* const file = find(id);
  const auto number = numbers_.find(directory);
  if (file == nullptr || number == numbers_.end()) return;
  const auto is_it = [&](const Name& each) {
    return each.directory == number->second && each.text == name;
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
  } else {
    std::erase_if(names, is_it);
  }
  if (names.empty()) more_names_.erase(more);
}

void BudgetFiles::erase(InodeId id) {
  const auto file = files_.find(id);
  if (file == files_.end()) return;
  used_ -= file->second.bytes;
  files_.erase(file);
  more_names_.erase(id);
}

void BudgetFiles::set_bytes(File& file, std::uint64_t bytes) {
  used_ += bytes - file.bytes;
  file.bytes = bytes;
}

std::vector<bool> BudgetFiles::those_below(const std::string& path) const {
  std::vector<bool> out(directories_.size());
  for (std::size_t i = 0; i < directories_.size(); ++i) out[i] = is_below(directories_[i], path);
  return out;
}

void BudgetFiles::directory_renamed(const std::string& from, const std::string& to) {
  // An empty directory that is replaced has no files here, so its number is free.
  const auto moved = those_below(from);
  for (std::uint32_t i = 0; i < moved.size(); ++i) {
    if (!moved[i]) continue;
    if (const auto old = numbers_.find(directories_[i]); old != numbers_.end() && old->second == i)
      numbers_.erase(old);
  }
  for (std::uint32_t i = 0; i < moved.size(); ++i) {
    if (!moved[i]) continue;
    directories_[i].replace(0, from.size(), to);
    numbers_[directories_[i]] = i;
  }
}

void BudgetFiles::directory_left(const std::string& path) {
  const auto left = those_below(path);
  const auto has_left = [&](const Name& name) { return left[name.directory]; };
  std::vector<InodeId> gone;
  for (auto& [id, file] : files_) {
    const auto more = more_names_.find(id);
    if (more != more_names_.end()) {
      auto& names = more->second;
      std::erase_if(names, has_left);
      if (has_left(file.name) && !names.empty()) {
        file.name = std::move(names.back());
        names.pop_back();
      }
      if (names.empty()) more_names_.erase(more);
    }
    if (has_left(file.name)) gone.push_back(id);
  }
  for (const InodeId id : gone) erase(id);
}

std::vector<std::pair<std::string, std::string>> BudgetFiles::names(InodeId id) const {
  std::vector<std::pair<std::string, std::string>> out;
  const auto put = [&](const Name& name) {
    out.emplace_back(directories_[name.directory], name.text);
  };
  if (const File* const file = find(id)) put(file->name);
  if (const auto more = more_names_.find(id); more != more_names_.end())
    std::for_each(more->second.begin(), more->second.end(), put);
  return out;
}

std::vector<std::string> BudgetFiles::paths(InodeId id) const {
  std::vector<std::string> out;
  for (const auto& [directory, text] : names(id)) out.push_back(directory + "/" + text);
  return out;
}

}  // namespace sluice
