/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the examples need of the CUDA runtime, for machines without its headers: the same calls,
 * made of the driver's, which is loaded when the first one comes. Real or fake, as is found. */
#ifndef SLUICE_TEST_CUDA_RUNTIME_API_H
#define SLUICE_TEST_CUDA_RUNTIME_API_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

typedef enum { cudaSuccess = 0, cudaErrorNoDevice = 100 } cudaError_t;
typedef struct {
  char reserved[64];
} cudaIpcMemHandle_t;
typedef struct {
  char bytes[16];
} cudaUUID_t;
struct cudaDeviceProp {
  cudaUUID_t uuid;
};

/* The function of that name, with the first GPU's context in place. */
static inline void* test_cuda_function(const char* name) {
  static void *library, *context;
  int (*init)(unsigned);
  int (*retain)(void**, int);
  int (*set)(void*);
  if (library == NULL) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return NULL;
    *(void**)&init = dlsym(library, "cuInit");
    *(void**)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    if (init(0) != 0 || retain(&context, 0) != 0) return NULL;
  }
  *(void**)&set = dlsym(library, "cuCtxSetCurrent"); /* of each thread */
  return set(context) == 0 ? dlsym(library, name) : NULL;
}

static inline cudaError_t cudaMalloc(void** memory, size_t size) {
  int (*call)(unsigned long long*, size_t);
  unsigned long long address = 0;
  *(void**)&call = test_cuda_function("cuMemAlloc_v2");
  if (call == NULL) return cudaErrorNoDevice;
  const int code = call(&address, size);
  *memory = (void*)(size_t)address;
  return (cudaError_t)code;
}

static inline cudaError_t cudaFree(void* memory) {
  int (*call)(unsigned long long);
  *(void**)&call = test_cuda_function("cuMemFree_v2");
  return call == NULL ? cudaErrorNoDevice : (cudaError_t)call((size_t)memory);
}

enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2 };
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t size,
                                     enum cudaMemcpyKind kind) {
  int (*call)(void*, unsigned long long, size_t);
  *(void**)&call = test_cuda_function("cuMemcpyDtoH_v2");
  (void)kind;
  return call == NULL ? cudaErrorNoDevice : (cudaError_t)call(to, (size_t)from, size);
}

static inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  int (*call)(cudaIpcMemHandle_t*, unsigned long long);
  *(void**)&call = test_cuda_function("cuIpcGetMemHandle");
  return call == NULL ? cudaErrorNoDevice : (cudaError_t)call(handle, (size_t)memory);
}

static inline cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {
  int (*call)(cudaUUID_t*, int);
  *(void**)&call = test_cuda_function("cuDeviceGetUuid_v2");
  if (call == NULL) *(void**)&call = test_cuda_function("cuDeviceGetUuid");
  return call == NULL ? cudaErrorNoDevice : (cudaError_t)call(&properties->uuid, device);
}

#endif
