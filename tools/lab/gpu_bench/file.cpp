// SPDX-License-Identifier: BSD-2-Clause
// The test file of `sluice-lab gpu-bench`, and the memory that it is read into.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/path.hpp"
#include "base/units.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/progress.hpp"
#include "tools/lab/gpu_bench/bench.hpp"

namespace sluice::tools::lab::gpu_bench {
namespace {

constexpr const char* kFileName = "/sluice-gpu-bench.dat";
constexpr std::uint64_t kPiece = 4 * kMiB;
constexpr unsigned char kCleared = 0xa5;

// Counts the words of [data, +words) that differ from the pattern from word `first` on.
// pattern_word() is the same in C++.
constexpr const char* kCheckKernel = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry check(.param .u64 data, .param .u64 words, .param .u64 first, .param .u64 wrong)
{
  .reg .pred %p<3>;
  .reg .b32 %r<5>;
  .reg .b64 %d<16>;

  ld.param.u64 %d1, [data];
  ld.param.u64 %d2, [words];
  ld.param.u64 %d3, [first];
  ld.param.u64 %d4, [wrong];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d4, %d4;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %d5, %r1, %r2;
  cvt.u64.u32 %d6, %r3;
  add.u64 %d5, %d5, %d6;
  mul.wide.u32 %d7, %r4, %r2;
  mov.u64 %d8, 0;
next:
  setp.ge.u64 %p1, %d5, %d2;
  @%p1 bra all;
  add.u64 %d9, %d3, %d5;
  add.u64 %d9, %d9, 1;
  mul.lo.u64 %d9, %d9, 0x9E3779B97F4A7C15;
  shr.u64 %d10, %d9, 30;
  xor.b64 %d9, %d9, %d10;
  mul.lo.u64 %d9, %d9, 0xBF58476D1CE4E5B9;
  shr.u64 %d10, %d9, 27;
  xor.b64 %d9, %d9, %d10;
  mul.lo.u64 %d9, %d9, 0x94D049BB133111EB;
  shr.u64 %d10, %d9, 31;
  xor.b64 %d9, %d9, %d10;
  shl.b64 %d11, %d5, 3;
  add.u64 %d11, %d1, %d11;
  ld.global.u64 %d12, [%d11];
  setp.ne.u64 %p2, %d12, %d9;
  @%p2 add.u64 %d8, %d8, 1;
  add.u64 %d5, %d5, %d7;
  bra next;
all:
  setp.eq.u64 %p1, %d8, 0;
  @%p1 bra end;
  red.global.add.u64 [%d4], %d8;
end:
  ret;
}
)";

void fill_pattern(std::vector<std::uint64_t>& words, std::uint64_t offset) {
  std::uint64_t index = offset / 8;
  for (auto& word : words) word = pattern_word(index++);
}

Result<void> write_pattern(const UniqueFd& fd, std::uint64_t size) {
  ProgressLine line;
  std::vector<std::uint64_t> words(kPiece / 8);
  for (std::uint64_t at = 0; at < size;) {
    fill_pattern(words, at);
    const std::uint64_t wanted = std::min(kPiece, size - at);
    const ssize_t wrote = ::pwrite(fd.get(), words.data(), wanted, static_cast<off_t>(at));
    if (wrote < 0) return Error::last("write the test file");
    // Pieces begin at multiples of 8, so a short write is repeated from there.
    at += static_cast<std::uint64_t>(wrote) & ~std::uint64_t{7};
    if (line.is_due()) {
      line.show("making the test file: " + format_size(at) + " of " + format_size(size));
    }
  }
  if (::fsync(fd.get()) < 0) return Error::last("sync the test file");
  return {};
}

// True if the file begins and ends like a test file of this size.
bool is_ours(const UniqueFd& fd, std::uint64_t size) {
  struct stat status {};
  if (::fstat(fd.get(), &status) < 0 || static_cast<std::uint64_t>(status.st_size) != size) {
    return false;
  }
  std::array<std::uint64_t, 512> words{};
  const std::uint64_t last = size - sizeof words;
  return ::pread(fd.get(), words.data(), sizeof words, 0) == sizeof words &&
         count_wrong(words.data(), words.size(), 0) == 0 &&
         ::pread(fd.get(), words.data(), sizeof words, static_cast<off_t>(last)) == sizeof words &&
         count_wrong(words.data(), words.size(), last / 8) == 0;
}

double cached_part(const std::string& path, std::uint64_t size) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  void* at = fd ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0) : MAP_FAILED;
  if (at == MAP_FAILED) return 0;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((size + page - 1) / page);
  const bool known = ::mincore(at, size, pages.data()) == 0;
  ::munmap(at, size);
  const auto cached = std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1; });
  return known ? static_cast<double>(cached) / static_cast<double>(pages.size()) : 0;
}

}  // namespace

std::uint64_t pattern_word(std::uint64_t index) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::uint64_t count_wrong(const std::uint64_t* words, std::uint64_t count, std::uint64_t first) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) wrong += words[i] != pattern_word(first + i);
  return wrong;
}

Result<TestFile> prepare_file(const std::string& given, std::uint64_t size) {
  struct stat status {};
  const bool exists = ::stat(given.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) return Error::last("stat the path");
  TestFile file;
  file.path = real_path(given) + (exists && S_ISDIR(status.st_mode) ? kFileName : "");
  file.size = size;
  UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno != ENOENT) return Error::last("open the test file");
  if (!fd || !is_ours(fd, size)) {
    // A file with our name may have another size. Any other file belongs to the user.
    if (fd && !file.path.ends_with(kFileName)) return Error(EEXIST, "create the test file");
    fd.reset(::open(file.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) return Error::last("create the test file");
    SLUICE_TRY(write_pattern(fd, size));
  }
  const auto location = read_attribute(file.path, "user.sluice.location");
  file.on_tier = location && ::access(location->c_str(), R_OK) == 0 ? *location : file.path;
  if (const auto point = sluice_mount_of(mount_table(), file.path)) {
    file.mount = *point;
    const auto mounted = mount_status(*point);
    if (mounted) file.daemon = static_cast<pid_t>(number_of(*mounted, "pid"));
  }
  return file;
}

double drop_from_cache(const TestFile& file) {
  for (const auto& path : {file.path, file.on_tier}) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) continue;
    ::fsync(fd.get());
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  const UniqueFd all(::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC));
  if (all && ::write(all.get(), "1\n", 2) != 2) return 1;
  return cached_part(file.on_tier, file.size);
}

Result<std::unique_ptr<Target>> Target::create(Device* device, std::uint64_t bytes) {
  std::unique_ptr<Target> target(new Target(device, bytes));
  if (device == nullptr) {
    target->memfd_.reset(::memfd_create("sluice-gpu-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!target->memfd_ || ::ftruncate(target->memfd_.get(), static_cast<off_t>(bytes)) < 0 ||
        ::fcntl(target->memfd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
      return Error::last("allocate host memory");
    }
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, target->memfd_.get(), 0);
    if (at == MAP_FAILED) return Error::last("map host memory");
    target->host_ = static_cast<std::byte*>(at);
    return target;
  }
  SLUICE_TRY(device->enter());
  if (const auto code = device->api().cuMemAlloc(&target->address_, bytes); code != CUDA_SUCCESS) {
    return device->failed(code, "allocate GPU memory");
  }
  target->load_kernel();
  return target;
}

Target::~Target() {
  if (host_ != nullptr) ::munmap(host_, size_);
  if (device_ == nullptr || !device_->enter()) return;
  if (module_ != nullptr) device_->api().cuModuleUnload(module_);
  if (count_ != 0) device_->api().cuMemFree(count_);
  if (address_ != 0) device_->api().cuMemFree(address_);
}

void Target::load_kernel() {
  const CudaApi& api = device_->api();
  CUfunction function = nullptr;
  if (api.cuModuleLoadData(&module_, kCheckKernel) != CUDA_SUCCESS ||
      api.cuModuleGetFunction(&function, module_, "check") != CUDA_SUCCESS ||
      api.cuMemAlloc(&count_, sizeof(std::uint64_t)) != CUDA_SUCCESS) {
    return;
  }
  kernel_ = function;
}

Result<void> Target::clear(std::uint64_t offset, std::uint64_t length) {
  if (device_ == nullptr) {
    std::memset(host_ + offset, kCleared, length);
    return {};
  }
  SLUICE_TRY(device_->enter());
  const CudaApi& api = device_->api();
  auto code = api.cuMemsetD8Async(address_ + offset, kCleared, length, nullptr);
  if (code == CUDA_SUCCESS) code = api.cuCtxSynchronize();
  if (code != CUDA_SUCCESS) return device_->failed(code, "clear GPU memory");
  return {};
}

Result<std::uint64_t> Target::wrong_words(std::uint64_t offset, std::uint64_t length,
                                          std::uint64_t file_offset) {
  std::uint64_t words = length / 8, first = file_offset / 8;
  if (device_ == nullptr) {
    return count_wrong(reinterpret_cast<const std::uint64_t*>(host_ + offset), words, first);
  }
  SLUICE_TRY(device_->enter());
  const CudaApi& api = device_->api();
  std::uint64_t wrong = 0;
  if (kernel_ == nullptr) {
    std::vector<std::uint64_t> copy(std::min(words, kPiece / 8));
    for (std::uint64_t at = 0; at < words; at += copy.size()) {
      const std::uint64_t count = std::min<std::uint64_t>(copy.size(), words - at);
      const auto code = api.cuMemcpyDtoH(copy.data(), address_ + offset + at * 8, count * 8);
      if (code != CUDA_SUCCESS) return device_->failed(code, "copy back from the GPU");
      wrong += count_wrong(copy.data(), count, first + at);
    }
    return wrong;
  }
  CUdeviceptr data = address_ + offset;
  std::array<void*, 4> parameters{&data, &words, &first, &count_};
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(words / 256, 1, 2048));
  auto code = api.cuMemcpyHtoD(count_, &wrong, sizeof wrong);
  if (code == CUDA_SUCCESS) {
    code = api.cuLaunchKernel(kernel_, blocks, 1, 1, 256, 1, 1, 0, nullptr, parameters.data(),
                              nullptr);
  }
  if (code == CUDA_SUCCESS) code = api.cuMemcpyDtoH(&wrong, count_, sizeof wrong);
  if (code != CUDA_SUCCESS) return device_->failed(code, "check GPU memory");
  return wrong;
}

Result<void> Target::copy_in(std::uint64_t offset, const std::byte* from, std::uint64_t length) {
  if (device_ == nullptr) {
    std::memcpy(host_ + offset, from, length);
    return {};
  }
  SLUICE_TRY(device_->enter());
  const auto code = device_->api().cuMemcpyHtoD(address_ + offset, from, length);
  if (code != CUDA_SUCCESS) return device_->failed(code, "copy to the GPU");
  return {};
}

Result<sluice_buffer_register> Target::exported() const {
  sluice_buffer_register request{};
  request.length = size_;
  request.fd = memfd_ ? memfd_.get() : -1;
  request.kind = device_ == nullptr ? SLUICE_BUFFER_MEMFD : SLUICE_BUFFER_CUDA_IPC;
  if (device_ == nullptr) return request;
  SLUICE_TRY(device_->enter());
  CUipcMemHandle handle{};
  const auto code = device_->api().cuIpcGetMemHandle(&handle, address_);
  if (code != CUDA_SUCCESS) return device_->failed(code, "export GPU memory");
  std::memcpy(request.ipc_handle, handle.reserved, sizeof handle.reserved);
  std::memcpy(request.gpu_uuid, device_->uuid().data(), device_->uuid().size());
  return request;
}

std::unique_ptr<Memory> Target::memory() const {
  return device_ == nullptr ? borrow_host(host_, size_) : borrow_device(*device_, address_, size_);
}

}  // namespace sluice::tools::lab::gpu_bench
