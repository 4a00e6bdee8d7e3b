// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/access_sampler.hpp"

#include <fcntl.h>
#include <sys/fanotify.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace sluice {
namespace {

constexpr std::uint64_t kUse = FAN_ACCESS | FAN_MODIFY;

std::string key_of(const fsid_t& filesystem, int type, const void* handle, std::size_t size) {
  std::string key(reinterpret_cast<const char*>(&filesystem), sizeof filesystem);
  key.push_back(static_cast<char>(type));
  return key.append(static_cast<const char*>(handle), size);
}

Result<std::string> key_of(int fd) {
  struct statfs fs {};
  if (::fstatfs(fd, &fs) < 0) return Error::last("statfs");
  int mount_id = 0;
  const FileHandle handle = SLUICE_TRY(handle_at(fd, "", &mount_id));
  return key_of(fs.f_fsid, handle.bytes[0], handle.bytes.data() + 1, handle.bytes.size() - 1);
}

}  // namespace

Result<std::unique_ptr<AccessSampler>> AccessSampler::create() {
  UniqueFd queue(::fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_NONBLOCK | FAN_CLOEXEC,
                                 O_RDONLY | O_CLOEXEC));
  if (!queue) return Error::last("fanotify");
  return std::unique_ptr<AccessSampler>(new AccessSampler(std::move(queue)));
}

void AccessSampler::watch(const std::vector<std::pair<InodeId, SharedFd>>& files) {
  ::fanotify_mark(queue_.get(), FAN_MARK_FLUSH, 0, AT_FDCWD, nullptr);
  watched_.clear();
  for (const auto& [id, fd] : files) {
    auto key = key_of(fd->get());
    if (key && ::fanotify_mark(queue_.get(), FAN_MARK_ADD, kUse, fd->get(), nullptr) == 0)
      watched_.emplace(*std::move(key), std::pair(id, fd));
  }
}

std::vector<InodeId> AccessSampler::used() {
  std::vector<InodeId> ids;
  std::array<char, 16384> buffer{};
  while (!watched_.empty()) {
    const ssize_t got = ::read(queue_.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    // The length of an event depends on its handle, so later events may be unaligned.
    const char* const end = buffer.data() + got;
    fanotify_event_metadata event{};
    for (const char* at = buffer.data(); end - at >= static_cast<ssize_t>(sizeof event);
         at += event.event_len) {
      std::memcpy(&event, at, sizeof event);
      if (event.event_len < sizeof event) break;
      fanotify_event_info_fid info{};
      struct {
        unsigned bytes;
        int type;
      } handle{};
      if (event.event_len < event.metadata_len + sizeof info + sizeof handle) continue;
      const char* const record = at + event.metadata_len;
      std::memcpy(&info, record, sizeof info);
      std::memcpy(&handle, record + sizeof info, sizeof handle);
      if (event.event_len < event.metadata_len + sizeof info + sizeof handle + handle.bytes)
        continue;
      fsid_t filesystem{};
      std::memcpy(&filesystem, &info.fsid, sizeof filesystem);
      const auto found = watched_.find(
          key_of(filesystem, handle.type, record + sizeof info + sizeof handle, handle.bytes));
      if (found == watched_.end()) continue;
      ids.push_back(found->second.first);
      if (const SharedFd fd = found->second.second.lock())
        ::fanotify_mark(queue_.get(), FAN_MARK_REMOVE, kUse, fd->get(), nullptr);
      watched_.erase(found);
    }
  }
  return ids;
}

}  // namespace sluice
