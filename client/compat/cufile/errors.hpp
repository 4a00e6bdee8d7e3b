// SPDX-License-Identifier: BSD-2-Clause
// Converts errors to cuFile's form. Internally a failure is a negative errno, as in libsluice, or a
// negative CUfileOpError; these begin at 5001, above every errno.
#pragma once

#include <sys/types.h>

#include <cerrno>

#include "gpu/cufile_api.hpp"

namespace sluice::dropin {

inline CUfileError_t result(CUfileOpError code) { return {code, CUDA_SUCCESS}; }

inline bool is_cufile(ssize_t failure) { return failure < -5000; }

// For functions that return a CUfileError_t.
inline CUfileError_t result_of(ssize_t failure) {
  if (failure >= 0) return result(CU_FILE_SUCCESS);
  if (is_cufile(failure)) return result(static_cast<CUfileOpError>(-failure));
  switch (-failure) {
    case EBADF:
      return result(CU_FILE_INVALID_FILE_OPEN_FLAG);
    case EISDIR:
      return result(CU_FILE_INVALID_FILE_TYPE);
    case EINVAL:
    case ERANGE:
      return result(CU_FILE_INVALID_VALUE);
    case EACCES:
    case EPERM:
      return result(CU_FILE_PERMISSION_DENIED);
    case EOPNOTSUPP:  // a stream that is being captured
      return result(CU_FILE_ASYNC_NOT_SUPPORTED);
    case ENODEV:
      return {CU_FILE_CUDA_DRIVER_ERROR, CUDA_ERROR_NO_DEVICE};
    default:
      return result(CU_FILE_INTERNAL_ERROR);
  }
}

// For cuFileRead() and cuFileWrite(): -1 and errno, or a negative CUfileOpError.
inline ssize_t answer(ssize_t done) {
  if (done >= 0 || is_cufile(done)) return done;
  if (done == -ENODEV) return -CU_FILE_CUDA_DRIVER_ERROR;
  errno = static_cast<int>(-done);
  return -1;
}

}  // namespace sluice::dropin
