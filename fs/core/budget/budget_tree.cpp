// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/budget/budget_tree.hpp"

#include <sys/stat.h>

#include <algorithm>

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kStatBlock = 512;                 // unit of st_blocks
constexpr std::chrono::seconds kWantsRoom{2};           // after the file was made, or began to wait
constexpr std::chrono::seconds kStillGrows{1};          // after a file was seen to grow
constexpr std::size_t kMostTouched = 65'536;            // and as many as the tree has files
constexpr std::size_t kMostNotedBytes = 1024UL * 1024;  // of the names of renamed directories

}  // namespace

BudgetSize size_of(Descriptors& descriptors, const InodePtr& file) {
  struct stat st {};
  const auto fd = descriptors.any(file);
  if (!fd || ::fstatat((*fd)->get(), "", &st, AT_EMPTY_PATH) < 0) return {0, false};
  return {static_cast<std::uint64_t>(st.st_blocks) * kStatBlock, st.st_nlink > 0, st.st_nlink > 1};
}

bool has_writers(Inode& file) {
  Inode::Locked state(file);
  return state->open && state->open->writers > 0;
}

// A new file is expected to become as large as the largest recent one. One that was far larger than
// others must not empty the tree, so that is limited.
std::uint64_t BudgetTrees::Tree::expected_size() const {
  const std::size_t count = files.all().size();
  const std::uint64_t mean = count == 0 ? 0 : files.used() / count;
  return std::min(largest, std::max(budget.bytes / 64, mean));
}

// A file that is open but does not grow, like a lock file, is not expected to become larger.
std::uint64_t BudgetTrees::Tree::expected_growth() const {
  const std::uint64_t size = expected_size();
  std::uint64_t sum = admitted * size;
  const auto long_ago = steady_clock::now() - kStillGrows;
  for (const auto& [id, grew] : growing) {
    const BudgetFiles::File* const file = files.find(id);
    if (file != nullptr && grew > long_ago && file->bytes < size) sum += size - file->bytes;
  }
  return sum;
}

bool BudgetTrees::Tree::has_room() const {
  return !is_known || files.used() + expected_growth() < budget.bytes;
}

// A file that is never written to, like a lock file, does not want room for long.
std::size_t BudgetTrees::Tree::wanting() const {
  const auto long_ago = steady_clock::now() - kWantsRoom;
  return static_cast<std::size_t>(std::count_if(
      owing.begin(), owing.end(), [&](const auto& each) { return each.second > long_ago; }));
}

void BudgetTrees::Tree::put_growing(InodeId id) { growing[id] = steady_clock::now(); }

void BudgetTrees::Tree::erase(InodeId id) {
  files.erase(id);
  growing.erase(id);
  owing.erase(id);
}

void BudgetTrees::Tree::erase_gone() {
  std::erase_if(growing,
                [&](const auto& each) REQUIRES(mutex) { return !files.contains(each.first); });
  std::erase_if(owing,
                [&](const auto& each) REQUIRES(mutex) { return !files.contains(each.first); });
}

void BudgetTrees::Tree::begin_notes() {
  touched = {};
  directory_changes = {};
  noted_bytes = 0;
  is_listed_in_vain = false;
}

void BudgetTrees::Tree::note(InodeId id) {
  if (!is_listing || touched.contains(id)) return;
  if (touched.size() >= files.all().size() + kMostTouched) {
    is_listed_in_vain = true;
  } else {
    touched.insert(id);
  }
}

void BudgetTrees::Tree::note(DirectoryChange change) {
  if (!is_listing) return;
  std::size_t bytes = sizeof change;
  for (const auto* names : {&change.from, &change.to}) {
    for (const std::string& name : *names) bytes += sizeof name + name.size();
  }
  if (noted_bytes + bytes > kMostNotedBytes) {
    is_listed_in_vain = true;
    return;
  }
  noted_bytes += bytes;
  directory_changes.push_back(std::move(change));
}

}  // namespace sluice
