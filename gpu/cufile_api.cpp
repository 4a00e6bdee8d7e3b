// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/cufile_api.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cerrno>
#include <climits>
#include <cstdlib>

#include "base/log.hpp"
#include "gpu/device.hpp"
#include "gpu/symbols.hpp"

namespace sluice {
namespace {

constexpr const char* kLibrary = "libcufile.so.0";
// Where CUDA's installer puts it, without telling the loader on every system.
constexpr const char* kInstalled = "/usr/local/cuda/lib64/libcufile.so.0";

constexpr long kLustreMagic = 0x0BD00BD0;
constexpr long kGpfsMagic = 0x47504653;
constexpr long kBeegfsMagic = 0x19830326;

struct Name {
  CUfileOpError code;
  const char* text;
  int errno_value;
};
#define NAME(code, errno_value) \
  { code, #code, errno_value }
constexpr Name kNames[] = {
    NAME(CU_FILE_DRIVER_NOT_INITIALIZED, ENODEV),
    NAME(CU_FILE_DRIVER_INVALID_PROPS, EINVAL),
    NAME(CU_FILE_DRIVER_UNSUPPORTED_LIMIT, EINVAL),
    NAME(CU_FILE_DRIVER_VERSION_MISMATCH, ENODEV),
    NAME(CU_FILE_DRIVER_VERSION_READ_ERROR, ENODEV),
    NAME(CU_FILE_DRIVER_CLOSING, ENODEV),
    NAME(CU_FILE_PLATFORM_NOT_SUPPORTED, ENODEV),
    NAME(CU_FILE_IO_NOT_SUPPORTED, EOPNOTSUPP),
    NAME(CU_FILE_DEVICE_NOT_SUPPORTED, EOPNOTSUPP),
    NAME(CU_FILE_NVFS_DRIVER_ERROR, EIO),
    NAME(CU_FILE_CUDA_DRIVER_ERROR, EIO),
    NAME(CU_FILE_CUDA_POINTER_INVALID, EINVAL),
    NAME(CU_FILE_CUDA_MEMORY_TYPE_INVALID, EOPNOTSUPP),
    NAME(CU_FILE_CUDA_POINTER_RANGE_ERROR, EINVAL),
    NAME(CU_FILE_CUDA_CONTEXT_MISMATCH, EINVAL),
    NAME(CU_FILE_INVALID_MAPPING_SIZE, EINVAL),
    NAME(CU_FILE_INVALID_MAPPING_RANGE, EINVAL),
    NAME(CU_FILE_INVALID_FILE_TYPE, EOPNOTSUPP),
    NAME(CU_FILE_INVALID_FILE_OPEN_FLAG, EOPNOTSUPP),
    NAME(CU_FILE_DIO_NOT_SET, EOPNOTSUPP),
    NAME(CU_FILE_INVALID_VALUE, EINVAL),
    NAME(CU_FILE_MEMORY_ALREADY_REGISTERED, EEXIST),
    NAME(CU_FILE_MEMORY_NOT_REGISTERED, EINVAL),
    NAME(CU_FILE_PERMISSION_DENIED, EACCES),
    NAME(CU_FILE_DRIVER_ALREADY_OPEN, EEXIST),
    // The error for a file on tmpfs, or on a disk that udev does not know.
    NAME(CU_FILE_HANDLE_NOT_REGISTERED, EOPNOTSUPP),
    NAME(CU_FILE_HANDLE_ALREADY_REGISTERED, EEXIST),
    NAME(CU_FILE_DEVICE_NOT_FOUND, ENODEV),
    NAME(CU_FILE_INTERNAL_ERROR, EIO),
    NAME(CU_FILE_GETNEWFD_FAILED, EIO),
    NAME(CU_FILE_NVFS_SETUP_ERROR, ENODEV),
    NAME(CU_FILE_IO_DISABLED, EOPNOTSUPP),
    NAME(CU_FILE_BATCH_SUBMIT_FAILED, EIO),
    NAME(CU_FILE_GPU_MEMORY_PINNING_FAILED, ENOMEM),
    NAME(CU_FILE_BATCH_FULL, EAGAIN),
    NAME(CU_FILE_ASYNC_NOT_SUPPORTED, EOPNOTSUPP),
};
#undef NAME

const Name* name_of(CUfileOpError code) {
  for (const Name& name : kNames) {
    if (name.code == code) return &name;
  }
  return nullptr;
}

void find_all(Symbols& symbols, CuFileApi& api) {
  symbols.need(api.cuFileDriverOpen, "cuFileDriverOpen");
  // The first version ignores that others may have the driver open too.
  if (!symbols.find(api.cuFileDriverClose, "cuFileDriverClose_v2")) {
    symbols.need(api.cuFileDriverClose, "cuFileDriverClose");
  }
  symbols.need(api.cuFileDriverGetProperties, "cuFileDriverGetProperties");
  symbols.need(api.cuFileHandleRegister, "cuFileHandleRegister");
  symbols.need(api.cuFileHandleDeregister, "cuFileHandleDeregister");
  symbols.need(api.cuFileBufRegister, "cuFileBufRegister");
  symbols.need(api.cuFileBufDeregister, "cuFileBufDeregister");
  symbols.need(api.cuFileRead, "cuFileRead");
  symbols.need(api.cuFileWrite, "cuFileWrite");
  symbols.find(api.cuFileBatchIOSetUp, "cuFileBatchIOSetUp");
  symbols.find(api.cuFileBatchIOSubmit, "cuFileBatchIOSubmit");
  symbols.find(api.cuFileBatchIOGetStatus, "cuFileBatchIOGetStatus");
  symbols.find(api.cuFileBatchIOCancel, "cuFileBatchIOCancel");
  symbols.find(api.cuFileBatchIODestroy, "cuFileBatchIODestroy");
  symbols.find(api.cuFileReadAsync, "cuFileReadAsync");
  symbols.find(api.cuFileWriteAsync, "cuFileWriteAsync");
  symbols.find(api.cuFileStreamRegister, "cuFileStreamRegister");
  symbols.find(api.cuFileStreamDeregister, "cuFileStreamDeregister");
  symbols.find(api.cuFileGetVersion, "cuFileGetVersion");
  symbols.find(api.cuFileGetParameterSizeT, "cuFileGetParameterSizeT");
  symbols.find(api.cuFileSetParameterSizeT, "cuFileSetParameterSizeT");
  symbols.find(api.cuFileGetParameterBool, "cuFileGetParameterBool");
  symbols.find(api.cuFileSetParameterBool, "cuFileSetParameterBool");
  symbols.find(api.cuFileGetParameterString, "cuFileGetParameterString");
  symbols.find(api.cuFileSetParameterString, "cuFileSetParameterString");
}

// Whether a block device, by its folder in sysfs, is NVMe, or made of nothing but NVMe (md, dm).
bool is_nvme(const std::string& folder, int depth) {
  char real[PATH_MAX];
  if (depth > 8 || ::realpath(folder.c_str(), real) == nullptr) return false;
  const std::string path = real;
  if (path.find("/nvme") != std::string::npos) return true;
  DIR* slaves = ::opendir((path + "/slaves").c_str());
  if (slaves == nullptr) return false;
  int count = 0;
  bool all = true;
  while (const dirent* entry = ::readdir(slaves)) {
    if (entry->d_name[0] == '.') continue;
    ++count;
    all = all && is_nvme(path + "/slaves/" + entry->d_name, depth + 1);
  }
  ::closedir(slaves);
  return count > 0 && all;
}

}  // namespace

std::string text_of(CUfileError_t error) {
  const Name* name = name_of(error.err);
  std::string text = name != nullptr ? name->text : "cuFile error";
  text += " (" + std::to_string(static_cast<int>(error.err)) + ")";
  if (error.cu_err != CUDA_SUCCESS) {
    text += ", CUDA error " + std::to_string(static_cast<int>(error.cu_err));
  }
  return text;
}

int errno_of(CUfileError_t error) {
  if (error.err == CU_FILE_CUDA_DRIVER_ERROR && error.cu_err != CUDA_SUCCESS) {
    return errno_of(error.cu_err);
  }
  const Name* name = name_of(error.err);
  return name != nullptr ? name->errno_value : EIO;
}

void keep_cufile_log_away() { ::setenv("CUFILE_LOGFILE_PATH", "/dev/null", 0); }

CuFile::CuFile(const CuFileApi& api, bool opened) : api_(api), opened_(opened) {
  if (api_.cuFileDriverGetProperties(&properties_).err != CU_FILE_SUCCESS) properties_ = {};
  forced_compat_ = parameter(CUFILE_PARAM_FORCE_COMPAT_MODE);
}

CuFile::~CuFile() {
  if (opened_) api_.cuFileDriverClose();
}

Result<std::unique_ptr<CuFile>> CuFile::open() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::string reason = load_error(kLibrary);
    library = ::dlopen(kInstalled, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return Error{ENODEV, "load cuFile", std::move(reason)};
  }
  // In a program that uses our drop-in, this name would load the drop-in, which would call us in
  // turn.
  if (void* real = ::dlsym(library, kDropInFunction)) {
    library = reinterpret_cast<void* (*)()>(real)();
    if (library == nullptr) {
      return Error{ENODEV, "load cuFile", "NVIDIA's libcufile was not found, only Sluice's own"};
    }
  }
  CuFileApi api{};
  Symbols symbols(library);
  find_all(symbols, api);
  if (symbols.missing() != nullptr) {
    return Error{ENODEV, "load cuFile",
                 std::string(kLibrary) + " lacks " + symbols.missing() + ": it is too old"};
  }
  const CUfileError_t error = api.cuFileDriverOpen();
  if (error.err != CU_FILE_SUCCESS && error.err != CU_FILE_DRIVER_ALREADY_OPEN) {
    return Error{errno_of(error), "load cuFile",
                 "cuFile's driver can't be opened: " + text_of(error)};
  }
  return std::unique_ptr<CuFile>(new CuFile(api, error.err == CU_FILE_SUCCESS));
}

bool CuFile::parameter(CUFileBoolConfigParameter_t which) const {
  bool value = false;
  return api_.cuFileGetParameterBool != nullptr &&
         api_.cuFileGetParameterBool(which, &value).err == CU_FILE_SUCCESS && value;
}

std::string CuFile::version() const {
  int version = 0;
  if (api_.cuFileGetVersion == nullptr || api_.cuFileGetVersion(&version).err != CU_FILE_SUCCESS) {
    return {};
  }
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool CuFile::is_direct(int fd, std::string& reason) const {
  if (forced_compat_) {
    reason = "cuFile is configured to use its compatibility mode (force_compat_mode)";
    return false;
  }
  const unsigned flags = properties_.nvfs.dstatusflags;
  const bool nvfs = properties_.nvfs.major_version != 0 || properties_.nvfs.minor_version != 0;
  const bool p2p = (flags >> CU_FILE_NVME_P2P_SUPPORTED & 1) != 0;
  if (!nvfs && !p2p) {
    reason = "nvidia-fs is not loaded, and cuFile reports no PCIe P2PDMA to NVMe";
    return false;
  }
  struct statfs volume;
  struct stat status;
  if (::fstatfs(fd, &volume) < 0 || ::fstat(fd, &status) < 0) {
    reason = "the file can't be looked at";
    return false;
  }
  // One bit each for the network file systems, which only nvidia-fs serves.
  struct Network {
    long magic;
    int bit;
    const char* name;
  };
  static constexpr Network kNetworks[] = {{NFS_SUPER_MAGIC, CU_FILE_NFS_SUPPORTED, "NFS"},
                                          {kLustreMagic, CU_FILE_LUSTRE_SUPPORTED, "Lustre"},
                                          {kGpfsMagic, CU_FILE_GPFS_SUPPORTED, "GPFS"},
                                          {kBeegfsMagic, CU_FILE_BEEGFS_SUPPORTED, "BeeGFS"}};
  for (const Network& network : kNetworks) {
    if (static_cast<long>(volume.f_type) != network.magic) continue;
    const bool direct = nvfs && (flags >> network.bit & 1) != 0;
    reason =
        std::string("cuFile reports ") + (direct ? "a" : "no") + " direct path to " + network.name;
    return direct;
  }
  if (volume.f_type != EXT4_SUPER_MAGIC && volume.f_type != XFS_SUPER_MAGIC) {
    reason = "cuFile has a direct path to files on ext4 and XFS only";
    return false;
  }
  const std::string disk = "/sys/dev/block/" + std::to_string(major(status.st_dev)) + ":" +
                           std::to_string(minor(status.st_dev));
  if (!is_nvme(disk, 0)) {
    reason = "the disk is not NVMe";
    return false;
  }
  const bool nvme = nvfs && (flags >> CU_FILE_NVME_SUPPORTED & 1) != 0;
  if (!nvme && !p2p) {
    reason = "nvidia-fs is loaded, but cuFile reports no support for NVMe";
    return false;
  }
  reason = p2p ? "PCIe P2PDMA from NVMe" : "nvidia-fs from NVMe";
  return true;
}

Error CuFile::failed(CUfileError_t error, Operation what) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = logged_.insert(error.err).second;
  }
  if (first)
    log::get().warn("cuFile failed: during=\"{}\" cause=\"{}\"", what.text, text_of(error));
  return {errno_of(error), what};
}

Result<std::unique_ptr<CuFileHandle>> CuFileHandle::create(CuFile& cufile, int fd) {
  CUfileDescr_t description{};
  description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  description.handle.fd = fd;
  CUfileHandle_t handle = nullptr;
  const CUfileError_t error = cufile.api().cuFileHandleRegister(&handle, &description);
  if (error.err != CU_FILE_SUCCESS) return cufile.failed(error, "register a file with cuFile");
  return std::unique_ptr<CuFileHandle>(new CuFileHandle(cufile, handle));
}

CuFileHandle::~CuFileHandle() { cufile_.api().cuFileHandleDeregister(handle_); }

Result<std::size_t> CuFileHandle::read(CUdeviceptr base, std::uint64_t base_offset,
                                       std::size_t size, std::uint64_t file_offset) {
  errno = 0;
  return done(
      cufile_.api().cuFileRead(handle_, reinterpret_cast<void*>(base), size,
                               static_cast<off_t>(file_offset), static_cast<off_t>(base_offset)),
      "read by cuFile");
}

Result<std::size_t> CuFileHandle::write(CUdeviceptr base, std::uint64_t base_offset,
                                        std::size_t size, std::uint64_t file_offset) {
  errno = 0;
  return done(
      cufile_.api().cuFileWrite(handle_, reinterpret_cast<void*>(base), size,
                                static_cast<off_t>(file_offset), static_cast<off_t>(base_offset)),
      "write by cuFile");
}

Result<std::size_t> CuFileHandle::done(ssize_t result, Operation what) {
  if (result >= 0) return static_cast<std::size_t>(result);
  if (result == -1) return Error(errno != 0 ? errno : EIO, what);
  return cufile_.failed({static_cast<CUfileOpError>(-result), CUDA_SUCCESS}, what);
}

}  // namespace sluice
