// SPDX-License-Identifier: BSD-2-Clause
#include "fs/inode.hpp"

namespace sluice {
namespace {

// Beyond this, an abandoned listing may miss names: memory is not kept for it for ever.
constexpr std::size_t kMostMovedNames = 10'000;

}  // namespace

MovingName::MovingName(InodePtr directory, std::string name, TierIndex from, What what)
    : directory_(std::move(directory)) {
  MutexLock lock(directory_->mutex);
  if (!directory_->moved_names) directory_->moved_names = std::make_unique<std::list<MovedName>>();
  auto& names = *directory_->moved_names;
  if (names.size() >= kMostMovedNames && names.front().is_over) names.pop_front();
  static std::atomic<std::uint64_t> last{0};  // of all directories: it need only grow
  at_ = names.insert(names.end(), {std::move(name), from, what == What::Directory, ++last});
}

void MovingName::go() {
  MutexLock lock(directory_->mutex);
  at_->is_going = true;
}

MovingName::~MovingName() {
  {
    MutexLock lock(directory_->mutex);
    at_->is_over = true;
    if (!at_->is_going) directory_->moved_names->erase(at_);
  }
  drop_moved_names(*directory_);
}

void drop_moved_names(Inode& directory) {
  MutexLock lock(directory.mutex);
  if (!directory.moved_names || directory.listings.load() > 0) return;
  directory.moved_names->remove_if([](const MovedName& each) { return each.is_over; });
  if (directory.moved_names->empty()) directory.moved_names = nullptr;
}

}  // namespace sluice
