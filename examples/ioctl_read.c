/* SPDX-License-Identifier: BSD-2-Clause
 *
 * ioctl_read FILE: reads a file of a Sluice mount into GPU memory with ioctls, without libsluice,
 * and compares the result with the file.
 *
 *   cc ioctl_read.c -o ioctl_read -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <sluice/ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const char* what) {
  perror(what);
  return 1;
}

int main(int argc, char** argv) {
  int fd = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
  struct stat status;
  if (fd < 0 || fstat(fd, &status) < 0) return fail("ioctl_read FILE");

  /* The GPU is identified by its UUID, because its number may be different in the daemon. */
  struct sluice_buffer_register buffer = {.kind = SLUICE_BUFFER_CUDA_IPC};
  struct cudaDeviceProp gpu;
  void* memory;
  cudaIpcMemHandle_t handle;
  if (cudaGetDeviceProperties(&gpu, 0) != cudaSuccess ||
      cudaMalloc(&memory, (size_t)status.st_size) != cudaSuccess ||
      cudaIpcGetMemHandle(&handle, memory) != cudaSuccess) {
    fprintf(stderr, "ioctl_read: no GPU memory to read into\n");
    return 1;
  }
  memcpy(buffer.gpu_uuid, &gpu.uuid, sizeof buffer.gpu_uuid);
  memcpy(buffer.ipc_handle, &handle, sizeof buffer.ipc_handle);
  buffer.length = (__u64)status.st_size;
  if (ioctl(fd, SLUICE_IOC_BUFFER_REGISTER, &buffer) < 0) return fail("register the memory");

  /* As with read(2), one request may read less than requested. */
  __u64 done = 0;
  while (done < buffer.length) {
    struct sluice_transfer transfer = {.buffer = buffer.buffer,
                                       .buffer_offset = done,
                                       .file_offset = done,
                                       .length = buffer.length - done};
    if (ioctl(fd, SLUICE_IOC_READ, &transfer) < 0) {
      /* ESTALE: another daemon serves the mount now, and does not know the buffer. */
      if (errno != ESTALE || ioctl(fd, SLUICE_IOC_BUFFER_REGISTER, &buffer) < 0)
        return fail("read");
      continue;
    }
    if (transfer.done == 0) break;
    printf("%llu bytes by route %u, for reason %u\n", transfer.done, transfer.route, transfer.why);
    done += transfer.done;
  }
  if (done < buffer.length) fprintf(stderr, "the file became shorter\n");

  void* came = malloc(done);
  void* file = mmap(NULL, done, PROT_READ, MAP_SHARED, fd, 0);
  if (came == NULL || file == MAP_FAILED ||
      cudaMemcpy(came, memory, done, cudaMemcpyDeviceToHost) != cudaSuccess ||
      memcmp(came, file, done) != 0) {
    fprintf(stderr, "ioctl_read: the bytes differ from the file\n");
    return 1;
  }
  printf("all bytes equal the file\n");

  /* Must be done before the memory is freed, because the daemon has mapped it. */
  struct sluice_buffer_unregister unregister = {.buffer = buffer.buffer};
  if (ioctl(fd, SLUICE_IOC_BUFFER_UNREGISTER, &unregister) < 0 && errno != ESTALE) {
    return fail("unregister");
  }
  cudaFree(memory);
  close(fd);
  return 0;
}
