// SPDX-License-Identifier: BSD-2-Clause
// The functions of our libcufile that tests call, declared as in cufile.h.
#pragma once

#include "client/compat/cufile/requests.hpp"
#include "gpu/cufile_api.hpp"

namespace sluice::dropin {

extern "C" {
void* sluice_cufile_real();
CUfileError_t cuFileDriverOpen();
CUfileError_t cuFileDriverClose_v2();
long cuFileUseCount();
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties);
CUfileError_t cuFileDriverSetMaxCacheSize(std::size_t size);
CUfileError_t cuFileGetVersion(int* version);
CUfileError_t cuFileGetParameterBool(int which, bool* value);
CUfileError_t cuFileHandleRegister(CUfileHandle_t* handle, CUfileDescr_t* description);
void cuFileHandleDeregister(CUfileHandle_t handle);
CUfileError_t cuFileBufRegister(const void* base, std::size_t length, int flags);
CUfileError_t cuFileBufDeregister(const void* base);
ssize_t cuFileRead(CUfileHandle_t handle, void* base, std::size_t size, off_t file_offset,
                   off_t base_offset);
ssize_t cuFileWrite(CUfileHandle_t handle, const void* base, std::size_t size, off_t file_offset,
                    off_t base_offset);
ssize_t cuFileReadv(CUfileHandle_t handle, const IoVector* vectors, std::size_t count,
                    off_t file_offset, unsigned flags);
ssize_t cuFileWritev(CUfileHandle_t handle, const IoVector* vectors, std::size_t count,
                     off_t file_offset, unsigned flags);
CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned limit);
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned count,
                                  CUfileIOParams_t* requests, unsigned flags);
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned at_least, unsigned* count,
                                     CUfileIOEvents_t* events, timespec* timeout);
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch);
void cuFileBatchIODestroy(CUfileBatchHandle_t batch);
CUfileError_t cuFileReadAsync(CUfileHandle_t handle, void* base, std::size_t* size,
                              off_t* file_offset, off_t* base_offset, ssize_t* done,
                              CUstream stream);
CUfileError_t cuFileWriteAsync(CUfileHandle_t handle, void* base, std::size_t* size,
                               off_t* file_offset, off_t* base_offset, ssize_t* done,
                               CUstream stream);
CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags);
CUfileError_t cuFileStreamDeregister(CUstream stream);
}

}  // namespace sluice::dropin
