// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/files/hbm_pins.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "fs/core/inodes/guards.hpp"
#include "gpu/hbm.hpp"

namespace sluice {
namespace {

constexpr auto kLook = std::chrono::seconds(1);       // between two looks at the pinned files
constexpr auto kPatience = std::chrono::seconds(10);  // for a file that must rest first
constexpr std::size_t kMostWanted = 256, kMostOfUser = 64;

}  // namespace

void HbmPins::stop() {
  std::jthread thread;
  {
    const MutexLock lock(mutex_);
    started_ = false;
    thread = std::move(thread_);
    thread.request_stop();
    changed_.notify_all();
  }
}

bool HbmPins::is_on() const {
  Engine* const engine = parts_.engine.engine();
  return engine != nullptr && engine->is_enabled() && engine->hbm().is_on();
}

void HbmPins::start() {
  const MutexLock lock(mutex_);
  started_ = true;
  if (parts_.list.empty()) return;
  std::ifstream in(parts_.list, std::ios::binary);
  std::string id, path;
  while (std::getline(in, id, '\0') && std::getline(in, path, '\0')) {
    char* rest = nullptr;
    const InodeId file{std::strtoull(id.c_str(), &rest, 10)};
    pins_[file] = {path, static_cast<uid_t>(std::strtoul(rest, nullptr, 10))};
  }
  if (!pins_.empty()) begin();
}

void HbmPins::begin() {
  is_new_ = true;
  changed_.notify_all();
  if (!started_ || thread_.joinable()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void HbmPins::save() {
  if (parts_.list.empty()) return;
  const std::string draft = parts_.list + ".new";
  {
    std::ofstream out(draft, std::ios::binary | std::ios::trunc);
    for (const auto& [id, pin] : pins_) {
      out << static_cast<std::uint64_t>(id) << ' ' << pin.user << '\0' << pin.path << '\0';
    }
    if (out.flush(); !out) {
      log::get().warn("cannot write the list of files pinned to GPU memory: file={}", draft);
      return;
    }
  }
  if (std::rename(draft.c_str(), parts_.list.c_str()) < 0)
    log::get().warn("cannot write the list of files pinned to GPU memory: file={}", parts_.list);
}

// Makes room for another pin: drops those of files that can't be found, which may have been
// deleted.
Result<void> HbmPins::make_room(uid_t user) {
  const auto is_theirs = [&](const auto& each) { return each.second.user == user; };
  const auto has_most = [&]() REQUIRES(mutex_) {
    return std::count_if(pins_.begin(), pins_.end(), is_theirs) >=
           static_cast<std::ptrdiff_t>(kMostPinsOfUser);
  };
  const auto is_lost = [](const auto& each) { return !each.second.is_found; };
  if (user != 0 && has_most()) {
    std::erase_if(pins_, [&](const auto& each) { return is_lost(each) && is_theirs(each); });
    if (has_most()) return Error(EDQUOT, "pin more than 64 files of a user to GPU memory");
  }
  if (pins_.size() >= kMostPins) std::erase_if(pins_, is_lost);
  if (pins_.size() >= kMostPins) return Error(ENOSPC, "pin more than 256 files to GPU memory");
  return {};
}

Result<void> HbmPins::add(InodeId id, const std::string& path, uid_t user) {
  if (const auto pin = pins_.find(id); pin != pins_.end()) {
    user = pin->second.user;
  } else {
    SLUICE_TRY(make_room(user));
  }
  pins_[id] = {path, user, true, ++additions_};
  save();
  return {};
}

HbmPins::Count HbmPins::count() {
  const MutexLock lock(mutex_);
  std::map<uid_t, std::size_t> of_user;
  for (const auto& [id, pin] : pins_) ++of_user[pin.user];
  of_user.erase(0);
  Count out{.all = pins_.size()};
  for (const auto& [user, pins] : of_user) out.most_of_user = std::max(out.most_of_user, pins);
  return out;
}

std::vector<std::string> HbmPins::paths() {
  const MutexLock lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [id, pin] : pins_) {
    if (pin.is_found) out.push_back(pin.path);
  }
  return out;
}

Result<void> HbmPins::pin(const InodePtr& file, uid_t user, const KernelRequest& request) {
  if (!S_ISREG(file->type)) return Error(EISDIR, "only files can be pinned to GPU memory");
  const std::string path = parts_.tree.path_of(file);
  {
    const MutexLock lock(mutex_);
    SLUICE_TRY(add(file->id(), path, user));
  }
  // If it fails, or we are killed before, the file is taken from the list when it is looked at.
  const auto set = parts_.attributes.set_xattr(file, kHbmXattr, "1", 0, Caller{}, request);
  const auto listed = [&]() -> Result<void> {
    const MutexLock lock(mutex_);
    begin();
    SLUICE_TRY(set);
    // It may have been looked at, and taken from the list, before it had the xattr.
    return add(file->id(), path, user);
  }();
  if (set && !listed) {
    [[maybe_unused]] const auto removed = parts_.attributes.remove_xattr(file, kHbmXattr, request);
  }
  return listed;
}

Result<void> HbmPins::unpin(const InodePtr& file, const KernelRequest& request) {
  SLUICE_TRY(parts_.attributes.remove_xattr(file, kHbmXattr, request));
  const bool is_gone = is_unpinned(file);  // it may have been pinned again
  {
    const MutexLock lock(mutex_);
    if (is_gone) pins_.erase(file->id());
    save();
  }
  struct stat stat {};
  const auto fd = parts_.descriptors.reader(file);
  if (fd && parts_.engine.is_in_use() && ::fstat((*fd)->get(), &stat) == 0) {
    parts_.engine.engine()->hbm().unkeep(FileVersion::of(stat).id);
  }
  return {};
}

bool HbmPins::is_pinned(const InodePtr& file) {
  return parts_.attributes.xattr(file, kHbmXattr).has_value();
}

// Only what the disk says counts: it may fail, or be away.
bool HbmPins::is_unpinned(const InodePtr& file) {
  return failed_with(parts_.attributes.xattr(file, kHbmXattr), ENODATA);
}

Result<void> HbmPins::prefetch(InodeId file, const GpuUuid& gpu, uid_t user) {
  if (!is_on()) return Error(EOPNOTSUPP, "keep files in GPU memory: set hbm");
  SLUICE_TRY(parts_.engine.use().devices().by_uuid(gpu));
  const MutexLock lock(mutex_);
  const auto of_user = std::count_if(wanted_.begin(), wanted_.end(),
                                     [&](const Wanted& each) { return each.user == user; });
  if (wanted_.size() >= kMostWanted || of_user >= static_cast<std::ptrdiff_t>(kMostOfUser))
    return Error(EAGAIN, "too many prefetches into GPU memory are waiting");
  wanted_.push_back({file, gpu, user, Clock::now() + kPatience});
  begin();
  return {};
}

Result<void> HbmPins::copy(const InodePtr& file, const GpuUuid& gpu, Keep keep,
                           const std::stop_token& stop) {
  Engine& engine = parts_.engine.use();
  Device* const device = SLUICE_TRY(engine.devices().by_uuid(gpu));
  const UseGuard guard(file);
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  return engine.fill_hbm({.fd = fd->get()}, *device, keep == Keep::Yes, stop);
}

void HbmPins::serve(const Wanted& wanted, const std::stop_token& stop) {
  const auto file = parts_.tree.inode(wanted.file);
  if (!file || !is_on()) return;
  const auto copied = copy(*file, wanted.gpu, Keep::No, stop);
  if (!failed_with(copied, EAGAIN) || Clock::now() >= wanted.until) return;
  const MutexLock lock(mutex_);
  wanted_.push_back(wanted);
}

// The file, if it still has this id. Its path may be an old one.
Result<InodePtr> HbmPins::find(InodeId id, const std::string& path) {
  if (InodePtr known = parts_.table.find(id)) return known;
  std::vector<InodeId> references;
  auto found = parts_.tree.walk(path, references);
  for (const InodeId each : references) parts_.table.forget(each, 1);
  // ESTALE: a name on the path is gone.
  if (failed_with(found, ESTALE) || (found && (*found)->id() != id))
    return Error(ENOENT, "find a pinned file");
  return found;
}

void HbmPins::look_after(InodeId id, const std::string& path, const std::stop_token& stop) {
  std::uint64_t addition = 0;
  {
    const MutexLock lock(mutex_);
    const auto pin = pins_.find(id);
    if (pin == pins_.end()) return;
    addition = pin->second.addition;
  }
  const auto file = find(id, path);
  if (!file && file.error().code != ENOENT) return;  // its tier may come back
  struct stat stat {};
  if (file) {
    // A move would leave us the original, without a name.
    const UseGuard guard(*file);
    const auto fd = parts_.descriptors.reader(*file);
    if (!fd || ::fstat((*fd)->get(), &stat) != 0) return;
  }
  {
    const std::string now = file ? parts_.tree.path_of(*file) : "";
    const bool is_unpinned = file && this->is_unpinned(*file);
    const MutexLock lock(mutex_);
    const auto pin = pins_.find(id);
    // If it was pinned again meanwhile, the next look is right.
    if (pin == pins_.end() || pin->second.addition != addition) return;
    pin->second.is_found = file.has_value();
    if (!file) return;
    if (stat.st_nlink == 0 || is_unpinned) {
      if (parts_.engine.engine() != nullptr)
        parts_.engine.engine()->hbm().unkeep(FileVersion::of(stat).id);
      pins_.erase(pin);
      return save();
    }
    if (!now.empty() && now != pin->second.path) {
      pin->second.path = now;
      save();
    }
  }
  if (!is_on()) return;
  const auto held = parts_.engine.engine()->hbm().held(FileVersion::of(stat));
  const auto size = static_cast<std::uint64_t>(stat.st_size);
  if (std::any_of(held.begin(), held.end(),
                  [&](const auto& each) { return each.kept && each.bytes == size; })) {
    return;
  }
  const auto copied = copy(*file, GpuUuid{}, Keep::Yes, stop);
  bool is_listed = false;
  {
    const MutexLock lock(mutex_);
    is_listed = pins_.contains(id);
  }
  // It was unpinned or deleted meanwhile.
  if (!is_listed) parts_.engine.engine()->hbm().unkeep(FileVersion::of(stat).id);
  if (!copied) {
    log::get().debug("a pinned file is not in GPU memory: path={} why={}", log::escaped(path),
                     copied.error().operation);
  }
}

void HbmPins::run(const std::stop_token& stop) {
  begin_thread("sluice-pins");
  for (;;) {
    std::deque<Wanted> wanted;
    std::map<InodeId, Pin> pins;
    {
      const MutexLock lock(mutex_);
      if (!changed_.wait(mutex_, stop,
                         [&]() REQUIRES(mutex_) { return !pins_.empty() || !wanted_.empty(); })) {
        return;
      }
      is_new_ = false;
      wanted.swap(wanted_);
      pins = pins_;
    }
    for (const Wanted& each : wanted) {
      if (stop.stop_requested()) return;
      serve(each, stop);
    }
    for (const auto& [id, pin] : pins) {
      if (stop.stop_requested()) return;
      look_after(id, pin.path, stop);
    }
    const MutexLock lock(mutex_);
    if (stop.stop_requested()) return;
    if (!is_new_) changed_.wait_for(mutex_, kLook);
  }
}

}  // namespace sluice
