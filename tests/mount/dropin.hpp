// SPDX-License-Identifier: BSD-2-Clause
// Our libcufile, loaded into the test process. Threads: immutable.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>

#include "base/unique_fd.hpp"
#include "gpu/cufile_api.hpp"

namespace sluice::test {

// The functions of the library.
struct Dropin {
  Dropin() {
    void* library = ::dlopen(SLUICE_DROPIN, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << ::dlerror();
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
      EXPECT_NE(function, nullptr) << name;
    };
    find(api.cuFileHandleRegister, "cuFileHandleRegister");
    find(api.cuFileHandleDeregister, "cuFileHandleDeregister");
    find(api.cuFileBufRegister, "cuFileBufRegister");
    find(api.cuFileBufDeregister, "cuFileBufDeregister");
    find(api.cuFileRead, "cuFileRead");
    find(api.cuFileWrite, "cuFileWrite");
    find(api.cuFileReadAsync, "cuFileReadAsync");
  }
  // Opens as torch.cuda.gds does: with O_DIRECT.
  CUfileHandle_t register_file(const std::string& path, UniqueFd& fd, int flags = O_RDONLY) const {
    fd.reset(::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC));
    EXPECT_TRUE(fd);
    CUfileDescr_t description{};
    description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = fd.get();
    CUfileHandle_t handle = nullptr;
    EXPECT_EQ(api.cuFileHandleRegister(&handle, &description).err, CU_FILE_SUCCESS);
    return handle;
  }

  CuFileApi api{};
};

}  // namespace sluice::test
