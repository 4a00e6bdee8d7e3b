// SPDX-License-Identifier: BSD-2-Clause
// The other process of these tests. Commands:
//
// gpus: prints the number of GPUs, or why there are none
//
// ipc GPU SIZE, fd GPU SIZE: allocates memory, fills it with 'a', prints how to import it, and
// waits for a line; then prints the byte that fills the memory, or "mixed"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/device.hpp"

namespace {

using namespace sluice;

CUdeviceptr allocate_for_ipc(const CudaApi& api, std::size_t size) {
  CUdeviceptr address = 0;
  CUipcMemHandle handle{};
  if (api.cuMemAlloc(&address, size) != CUDA_SUCCESS) return 0;
  if (api.cuIpcGetMemHandle(&handle, address) != CUDA_SUCCESS) return 0;
  for (const char c : handle.reserved) std::printf("%02x", static_cast<unsigned char>(c));
  std::printf("\n");
  return address;
}

CUdeviceptr allocate_for_fd(const Device& device, std::size_t size) {
  const CudaApi& api = device.api();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal()};
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  int fd = -1;
  if (api.cuMemCreate(&handle, size, &properties, 0) != CUDA_SUCCESS ||
      api.cuMemAddressReserve(&address, size, 0, 0, 0) != CUDA_SUCCESS ||
      api.cuMemMap(address, size, 0, handle, 0) != CUDA_SUCCESS ||
      api.cuMemSetAccess(address, size, &access, 1) != CUDA_SUCCESS ||
      api.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
          CUDA_SUCCESS) {
    return 0;
  }
  std::printf("%d\n", fd);
  return address;
}

int lend(const std::string& how, std::size_t gpu, std::size_t size) {
  Devices devices;
  if (gpu >= devices.all().size()) return 1;
  Device& device = *devices.all()[gpu];
  if (!device.enter()) return 1;
  const CUdeviceptr address =
      how == "ipc" ? allocate_for_ipc(device.api(), size) : allocate_for_fd(device, size);
  std::vector<char> bytes(size, 'a');
  if (address == 0 || device.api().cuMemcpyHtoD(address, bytes.data(), size) != CUDA_SUCCESS ||
      device.api().cuStreamSynchronize(nullptr) != CUDA_SUCCESS) {
    return 1;
  }
  std::fflush(stdout);
  std::getchar();
  if (device.api().cuMemcpyDtoH(bytes.data(), address, size) != CUDA_SUCCESS) return 1;
  const bool same = bytes == std::vector<char>(size, bytes[0]);
  std::printf("%s\n", same ? std::string(1, bytes[0]).c_str() : "mixed");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "gpus") {
    Devices devices;
    std::printf("%zu %s\n", devices.all().size(), devices.why_none().c_str());
    return 0;
  }
  if (argc != 4 || (command != "ipc" && command != "fd")) return 2;
  return lend(command, std::strtoul(argv[2], nullptr, 10), std::strtoul(argv[3], nullptr, 10));
}
