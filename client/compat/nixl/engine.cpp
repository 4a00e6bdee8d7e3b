// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/nixl/engine.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <sstream>

#include "backend/backend_plugin.h"

namespace sluice::plugin {
namespace {

class Metadata final : public nixlBackendMD {
 public:
  Metadata(std::shared_ptr<Region> of, std::uint64_t id)
      : nixlBackendMD(true), region(std::move(of)), device_id(id) {}

  const std::shared_ptr<Region> region;
  const std::uint64_t device_id;
};

class Handle final : public nixlBackendReqH {
 public:
  Transfer transfer;
};

nixl_status_t status_of(int error) {
  switch (-error) {
    case 0:
      return NIXL_SUCCESS;
    case EBADF:  // the file is not open for this
    case EACCES:
    case EPERM:
    case EROFS:
      return NIXL_ERR_NOT_ALLOWED;
    case EINVAL:
    case EISDIR:
    case ERANGE:
      return NIXL_ERR_INVALID_PARAM;
    case ENOENT:
      return NIXL_ERR_NOT_FOUND;
    case EOPNOTSUPP:
      return NIXL_ERR_NOT_SUPPORTED;
    case EBUSY:
      return NIXL_ERR_REPOST_ACTIVE;
    case ECANCELED:
      return NIXL_ERR_CANCELED;
    default:
      // Not NIXL_ERR_REMOTE_DISCONNECT for ENOTCONN: NIXL then forgets all registrations.
      return NIXL_ERR_BACKEND;
  }
}

nixl_status_t refuse(int error, const std::string& what, const std::string& why) {
  complain(what + ": " + why);
  return status_of(error);
}

struct Path {
  std::string name;
  int flags;
};

// Reads "ro:PATH" or "rw,create:PATH". Nothing: it has another form, and devId is a descriptor.
std::optional<Path> path_in(const std::string& metadata) {
  const auto colon = metadata.find(':');
  if (colon == std::string::npos || colon + 1 == metadata.size()) return std::nullopt;
  std::istringstream words(metadata.substr(0, colon));
  std::string word;
  std::getline(words, word, ',');
  if (word != "ro" && word != "rw") return std::nullopt;
  Path path{metadata.substr(colon + 1), O_CLOEXEC | (word == "rw" ? O_RDWR : O_RDONLY)};
  while (std::getline(words, word, ',')) {
    if (word == "direct") continue;  // libsluice chooses what bypasses the page cache
    if (word != "sync" && word != "noatime" && word != "create") return std::nullopt;
    path.flags |= word == "sync" ? O_SYNC : word == "noatime" ? O_NOATIME : O_CREAT;
  }
  return path;
}

bool is_same_file(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino &&
         (::fcntl(one, F_GETFL) & O_ACCMODE) == (::fcntl(other, F_GETFL) & O_ACCMODE);
}

}  // namespace

nixl_status_t Engine::register_file(const nixlBlobDesc& what, std::shared_ptr<Region>& out) {
  auto region = std::make_shared<Region>();
  std::string name = "register ";
  if (const auto path = path_in(what.metaInfo)) {
    name += path->name;
    region->fd.reset(::open(path->name.c_str(), path->flags, 0644));
  } else {
    name += "descriptor " + std::to_string(what.devId);
    if (!what.metaInfo.empty()) name += " ('" + what.metaInfo + "' is not ro:PATH or rw:PATH)";
    const int fd = what.devId <= INT_MAX ? static_cast<int>(what.devId) : -1;
    region->fd.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  if (!region->fd) return refuse(-errno, name, std::strerror(errno));
  const int flags = ::fcntl(region->fd.get(), F_GETFL);
  // The daemon of a mount writes without O_SYNC, so a program must not rely on it.
  if ((flags & O_DSYNC) != 0 && (flags & O_ACCMODE) != O_RDONLY) {
    return refuse(-EOPNOTSUPP, name, "O_SYNC is not supported; use fsync() after transfers");
  }
  const MutexLock lock(mutex_);
  Named& named = files_[what.devId];
  if (named.region != nullptr && !is_same_file(named.region->fd.get(), region->fd.get())) {
    return refuse(-EINVAL, name,
                  "devId " + std::to_string(what.devId) +
                      " stands for another file, which must be deregistered first");
  }
  if (named.region == nullptr) {
    int error = sluice_open_fd(region->fd.get(), &region->file);
    if (error == 0) error = queue_.add(*region);
    if (error < 0) {
      files_.erase(what.devId);
      return refuse(error, name, sluice_error());
    }
    named.region = std::move(region);
  }
  ++named.registrations;
  out = named.region;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::register_memory(const nixlBlobDesc& what, nixl_mem_t kind,
                                      std::shared_ptr<Region>& out) {
  out = std::make_shared<Region>();
  out->address = what.addr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): NIXL has addresses as numbers.
  auto* const memory = reinterpret_cast<void*>(what.addr);
  int error = sluice_buffer_register(memory, what.len, &out->buffer);
  // As with NIXL's other backends, the program takes care of the order with GPU work. Otherwise
  // postXfer() would wait for the kernels in the default stream.
  if (error == 0 && kind == VRAM_SEG) sluice_buffer_unordered(out->buffer);
  if (error == 0) error = queue_.add(*out);
  return error < 0 ? refuse(error, "register memory", sluice_error()) : NIXL_SUCCESS;
}

nixl_status_t Engine::registerMem(const nixlBlobDesc& what, const nixl_mem_t& kind,
                                  nixlBackendMD*& out) {
  if (kind != FILE_SEG && kind != DRAM_SEG && kind != VRAM_SEG) return NIXL_ERR_NOT_SUPPORTED;
  std::shared_ptr<Region> region;
  const auto status =
      kind == FILE_SEG ? register_file(what, region) : register_memory(what, kind, region);
  out = status == NIXL_SUCCESS ? new Metadata(std::move(region), what.devId) : nullptr;
  return status;
}

nixl_status_t Engine::deregisterMem(nixlBackendMD* metadata) {
  const std::unique_ptr<Metadata> owned(static_cast<Metadata*>(metadata));
  if (owned == nullptr) return NIXL_ERR_INVALID_PARAM;
  if (owned->region->file != nullptr) {
    const MutexLock lock(mutex_);
    const auto named = files_.find(owned->device_id);
    if (--named->second.registrations > 0) return NIXL_SUCCESS;
    files_.erase(named);
  }
  queue_.close(*owned->region);
  return NIXL_SUCCESS;
}

nixl_status_t Engine::loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) {
  output = input;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& memory,
                               const nixl_meta_dlist_t& files, const std::string& agent,
                               nixlBackendReqH*& handle,
                               const nixl_opt_b_args_t* /*options*/) const {
  if (agent != localAgent) return refuse(-EINVAL, "prepare a transfer", "files of another agent");
  const bool is_memory = memory.getType() == DRAM_SEG || memory.getType() == VRAM_SEG;
  if (!is_memory || files.getType() != FILE_SEG) {
    return refuse(-EINVAL, "prepare a transfer", "it is not between memory and files");
  }
  if (memory.descCount() != files.descCount()) {
    return refuse(-EINVAL, "prepare a transfer", "the lists have different lengths");
  }
  auto made = std::make_unique<Handle>();
  made->transfer.is_read = operation == NIXL_READ;
  made->transfer.blocks.reserve(static_cast<std::size_t>(files.descCount()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(files.descCount()); ++i) {
    const nixlMetaDesc &to = memory[i], &from = files[i];
    if (to.len != from.len)
      return refuse(-EINVAL, "prepare a transfer", "blocks have different lengths");
    if (to.len == 0) continue;
    const auto& region = static_cast<const Metadata*>(to.metadataP)->region;
    made->transfer.blocks.push_back({&made->transfer,
                                     static_cast<const Metadata*>(from.metadataP)->region, region,
                                     to.addr - region->address, from.addr, to.len});
  }
  handle = made.release();
  return NIXL_SUCCESS;
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t& /*operation*/,
                               const nixl_meta_dlist_t& /*memory*/,
                               const nixl_meta_dlist_t& /*files*/, const std::string& /*agent*/,
                               nixlBackendReqH*& handle,
                               const nixl_opt_b_args_t* /*options*/) const {
  if (handle == nullptr) return NIXL_ERR_INVALID_PARAM;
  const int error = queue_.post(static_cast<Handle*>(handle)->transfer);
  if (error < 0) return refuse(error, "post a transfer", reason_of(error));
  return NIXL_IN_PROG;
}

nixl_status_t Engine::checkXfer(nixlBackendReqH* handle) const {
  if (handle == nullptr) return NIXL_ERR_INVALID_PARAM;
  const auto result = queue_.poll(static_cast<Handle*>(handle)->transfer);
  return result ? status_of(*result) : NIXL_IN_PROG;
}

nixl_status_t Engine::releaseReqH(nixlBackendReqH* handle) const {
  const std::unique_ptr<Handle> owned(static_cast<Handle*>(handle));
  if (owned != nullptr) queue_.cancel(owned->transfer);
  return NIXL_SUCCESS;
}

nixl_status_t Engine::queryMem(const nixl_reg_dlist_t& files,
                               std::vector<nixl_query_resp_t>& answers) const {
  answers.clear();
  for (const auto& each : files) {
    const auto path = path_in(each.metaInfo);
    struct stat status {};
    if (::stat((path ? path->name : each.metaInfo).c_str(), &status) < 0) {
      answers.emplace_back();
      continue;
    }
    answers.emplace_back(nixl_b_params_t{{"size", std::to_string(status.st_size)},
                                         {"mode", std::to_string(status.st_mode)},
                                         {"mtime", std::to_string(status.st_mtime)}});
  }
  return NIXL_SUCCESS;
}

}  // namespace sluice::plugin

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() {
  return nixlBackendPluginCreator<sluice::plugin::Engine>::create(
      NIXL_PLUGIN_API_VERSION, "SLUICE", SLUICE_VERSION, {}, {FILE_SEG, DRAM_SEG, VRAM_SEG});
}

extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
