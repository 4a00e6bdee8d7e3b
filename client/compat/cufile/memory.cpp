// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/memory.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <system_error>
#include <thread>

#include "client/compat/cufile/errors.hpp"
#include "client/compat/cufile/real.hpp"

namespace sluice::dropin {
namespace {

// The most allocations that are kept registered. Programs have between one and some dozens;
// PyTorch's allocator makes few large ones.
constexpr std::size_t kMaxAllocations = 64;
// The daemon keeps imported memory. After the program has freed it, the memory should become free
// soon, even if no further request is made.
constexpr std::chrono::seconds kSweepEvery{1};

RealFunction<CUfileError_t(const void*, std::size_t, int)> g_real_register("cuFileBufRegister");
RealFunction<CUfileError_t(const void*)> g_real_deregister("cuFileBufDeregister");

using PointerGetAttribute = CUresult(void*, CUpointer_attribute, CUdeviceptr);

// Null while the program has not loaded CUDA; then all memory is host memory.
PointerGetAttribute* pointer_get_attribute() {
  static std::atomic<PointerGetAttribute*> s_function{nullptr};
  if (auto* function = s_function.load(std::memory_order_acquire)) return function;
  void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto* function =
      reinterpret_cast<PointerGetAttribute*>(::dlsym(library, "cuPointerGetAttribute"));
  s_function.store(function, std::memory_order_release);
  return function;
}

// Zero if CUDA does not know the address. The calling thread needs no context.
template <typename T>
T attribute_of(CUpointer_attribute which, CUdeviceptr address) {
  T value{};
  auto* ask = pointer_get_attribute();
  return ask != nullptr && ask(&value, which, address) == CUDA_SUCCESS ? value : T{};
}

std::uint64_t id_of(CUdeviceptr address) {
  return attribute_of<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
}

struct Allocation {
  CUdeviceptr base = 0;
  std::size_t length = 0;
  std::uint64_t id = 0;
};

// The allocation that contains the whole range, if it is one of cudaMalloc. Only such allocations
// get a new id when they are freed and allocated again at the same address. Memory of the virtual
// memory API can be replaced at its address without notice, so it is registered for each request,
// unless the program has called cuFileBufRegister().
std::optional<Allocation> allocation_of(CUdeviceptr address, std::size_t length) {
  if (attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CU_MEMORYTYPE_DEVICE ||
      attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) == 0) {
    return {};
  }
  Allocation found;
  found.base = attribute_of<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address);
  found.length = attribute_of<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
  found.id = id_of(found.base);
  const bool has_all = found.base <= address && address + length <= found.base + found.length;
  if (found.id == 0 || !has_all) return {};
  return found;
}

}  // namespace

std::shared_ptr<Registration> Registration::create(CUdeviceptr address, std::size_t length,
                                                   std::uint64_t id) {
  const Libsluice* api = Libsluice::get();
  sluice_buffer* buffer = nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): libsluice takes addresses of both kinds of memory as
  // pointers.
  if (api == nullptr || api->buffer_register(reinterpret_cast<void*>(address), length, &buffer) < 0)
    return nullptr;
  api->buffer_unordered(buffer);  // cuFile waits for no stream, and its callers do not expect it
  return std::shared_ptr<Registration>(new Registration(buffer, length, id));
}

Registration::~Registration() { Libsluice::get()->buffer_unregister(buffer_); }

std::map<CUdeviceptr, MemoryTable::Registered>::iterator MemoryTable::find(CUdeviceptr address,
                                                                           std::size_t length) {
  auto after = registered_.upper_bound(address);
  if (after == registered_.begin()) return registered_.end();
  const auto found = std::prev(after);
  const std::size_t offset = address - found->first;
  const bool has_all = offset <= found->second.length && length <= found->second.length - offset;
  return has_all ? found : registered_.end();
}

Lease MemoryTable::lease(const void* pointer, std::size_t length) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  if (address + length < address) return {};
  Garbage garbage;
  const MutexLock lock(mutex_);
  if (const auto found = find(address, length); found != registered_.end()) {
    auto& [base, known] = *found;
    const std::uint64_t id = id_of(base);
    // If the program has freed the memory without deregistering it, the old registration must not
    // be used: the address may belong to another allocation.
    if (known.ours == nullptr || known.ours->id() != id) {
      garbage.push_back(std::move(known.ours));
      known.ours = Registration::create(base, known.length, id);
    }
    return {known.ours, address - base};
  }
  const auto allocation = allocation_of(address, length);
  if (!allocation) return {Registration::create(address, length, 0), 0};
  auto& kept = allocations_[allocation->base];
  if (kept == nullptr || kept->id() != allocation->id || kept->length() != allocation->length) {
    garbage.push_back(std::move(kept));
    allocations_.erase(allocation->base);
    sweep(garbage);
    auto made = Registration::create(allocation->base, allocation->length, allocation->id);
    if (made == nullptr) return {};
    start_sweeping();
    return {allocations_[allocation->base] = made, address - allocation->base};
  }
  return {kept, address - allocation->base};
}

CUfileError_t MemoryTable::add(const void* base, std::size_t length, int flags) {
  const auto address = reinterpret_cast<CUdeviceptr>(base);
  if (base == nullptr || length == 0 || address + length < address) {
    return result(CU_FILE_INVALID_VALUE);
  }
  const MutexLock lock(mutex_);
  if (registered_.contains(address)) return result(CU_FILE_MEMORY_ALREADY_REGISTERED);
  registered_[address] = {length, flags, false, false, nullptr};
  ++unannounced_;
  return result(CU_FILE_SUCCESS);
}

CUfileError_t MemoryTable::remove(const void* base) {
  const auto address = reinterpret_cast<CUdeviceptr>(base);
  bool is_in_real = false;
  Garbage garbage;
  {
    const MutexLock lock(mutex_);
    const auto found = registered_.find(address);
    if (found == registered_.end()) return result(CU_FILE_MEMORY_NOT_REGISTERED);
    is_in_real = found->second.is_in_real;
    if (!found->second.is_announced) --unannounced_;
    garbage.push_back(std::move(found->second.ours));
    registered_.erase(found);
  }
  return is_in_real ? g_real_deregister(base) : result(CU_FILE_SUCCESS);
}

void MemoryTable::announce_registration(const void* pointer) {
  const void* base = nullptr;
  std::size_t length = 0;
  int flags = 0;
  {
    const MutexLock lock(mutex_);
    // Looks for one byte: the memory may begin exactly where another registration ends.
    const auto found = find(reinterpret_cast<CUdeviceptr>(pointer), 1);
    if (found == registered_.end() || found->second.is_announced) return;
    found->second.is_announced = true;
    --unannounced_;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    base = reinterpret_cast<const void*>(found->first);
    length = found->second.length;
    flags = found->second.flags;
  }
  // If NVIDIA's library refuses the memory, it copies through its own memory.
  if (!g_real_register || g_real_register(base, length, flags).err != CU_FILE_SUCCESS) return;
  {
    const MutexLock lock(mutex_);
    const auto found = registered_.find(reinterpret_cast<CUdeviceptr>(base));
    if (found != registered_.end() && found->second.is_announced) {
      found->second.is_in_real = true;
      return;
    }
  }
  g_real_deregister(base);  // the program has removed it meanwhile, and may have added it again
}

void MemoryTable::sweep(Garbage& garbage) {
  for (auto each = allocations_.begin(); each != allocations_.end();) {
    if (each->second == nullptr || id_of(each->first) != each->second->id()) {
      garbage.push_back(std::move(each->second));
      each = allocations_.erase(each);
    } else {
      ++each;
    }
  }
  // Requests in progress keep their registrations.
  if (allocations_.size() < kMaxAllocations) return;
  for (auto& [base, registration] : allocations_) garbage.push_back(std::move(registration));
  allocations_.clear();
}

void MemoryTable::start_sweeping() {
  if (is_sweeping_) return;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { keep_sweeping(); }).detach();
    is_sweeping_ = true;
  } catch (const std::system_error&) {
    // Then freed memory is noticed when the next allocation is registered.
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void MemoryTable::keep_sweeping() noexcept {
  ::pthread_setname_np(::pthread_self(), "sluice-sweep");
  for (;;) {
    std::this_thread::sleep_for(kSweepEvery);
    Garbage garbage;
    const MutexLock lock(mutex_);
    sweep(garbage);
    if (allocations_.empty()) {
      is_sweeping_ = false;
      return;
    }
  }
}

}  // namespace sluice::dropin
