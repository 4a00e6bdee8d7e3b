// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/hot_list.hpp"

#include <algorithm>

#include "metadata/decay.hpp"
#include "tiering/heat/census.hpp"

namespace sluice {
namespace {

// Files of equal heat are sorted by id, so that repeated queries give the same order.
bool is_hotter(const HotList::File& a, const HotList::File& b) {
  return a.score != b.score ? a.score > b.score : a.id < b.id;
}

}  // namespace

void HotList::take(const Census& census, std::int64_t time) {
  const std::vector<FileFacts>& all = census.files();
  std::vector<std::size_t> hottest;
  // A heap of the hottest files with the coldest of them on top: most files cost one comparison.
  const auto is_colder_first = [&](std::size_t a, std::size_t b) {
    return all[a].score > all[b].score;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!(all[i].score > 0)) continue;
    if (hottest.size() == kMost) {
      if (all[i].score <= all[hottest.front()].score) continue;
      std::pop_heap(hottest.begin(), hottest.end(), is_colder_first);
      hottest.pop_back();
    }
    hottest.push_back(i);
    std::push_heap(hottest.begin(), hottest.end(), is_colder_first);
  }
  std::vector<File> files;
  for (const std::size_t i : hottest)
    files.push_back({all[i].id, census.path(i), all[i].score, time});
  const MutexLock lock(mutex_);
  files_ = std::move(files);
}

void HotList::offer(std::vector<File> files) {
  if (files.empty()) return;
  const MutexLock lock(mutex_);
  std::int64_t now = 0;
  for (File& file : files) {
    now = std::max(now, file.time);
    const auto known = std::find_if(files_.begin(), files_.end(),
                                    [&](const File& each) { return each.id == file.id; });
    if (known == files_.end()) {
      files_.push_back(std::move(file));
    } else {
      *known = std::move(file);
    }
  }
  keep_hottest(now);
}

void HotList::keep_hottest(std::int64_t now) {
  if (files_.size() <= kMost) return;
  for (File& file : files_) {
    file.score = decayed(file.score, file.time, now, half_life_);
    file.time = std::max(file.time, now);
  }
  std::nth_element(files_.begin(), files_.begin() + kMost, files_.end(), is_hotter);
  files_.resize(kMost);
}

void HotList::forget(InodeId id) {
  const MutexLock lock(mutex_);
  std::erase_if(files_, [&](const File& file) { return file.id == id; });
}

std::vector<HotList::File> HotList::hottest(std::size_t most, std::int64_t now) const {
  std::vector<File> files;
  {
    const MutexLock lock(mutex_);
    files = files_;
  }
  for (File& file : files) {
    file.score = decayed(file.score, file.time, now, half_life_);
    file.time = now;
  }
  std::sort(files.begin(), files.end(), is_hotter);
  if (files.size() > most) files.resize(most);
  return files;
}

}  // namespace sluice
