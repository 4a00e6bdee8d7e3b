/* SPDX-License-Identifier: BSD-2-Clause
 *
 * gpu_read FILE: reads a file into GPU memory and prints the route that the bytes took.
 *
 *   cc gpu_read.c -o gpu_read $(pkg-config --cflags --libs sluice) -I/usr/local/cuda/include
 *      -L/usr/local/cuda/lib64 -lcudart
 */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what, const char* why) {
  fprintf(stderr, "gpu_read: %s: %s\n", what, why);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return fail("usage", "gpu_read FILE");
  sluice_file* file;
  if (sluice_open(argv[1], O_RDONLY, 0, &file) < 0) return fail("open", sluice_error());
  int64_t size = sluice_size(file);
  if (size <= 0) return fail(argv[1], "the file is empty");

  /* Any memory works: sluice_buffer_register() detects its kind. */
  void* memory;
  int has_gpu = cudaMalloc(&memory, (size_t)size) == cudaSuccess;
  if (!has_gpu) memory = malloc((size_t)size);
  sluice_buffer* buffer;
  if (sluice_buffer_register(memory, (size_t)size, &buffer) < 0) {
    return fail("register", sluice_error());
  }

  struct sluice_result result;
  ssize_t done = sluice_read(file, buffer, 0, (size_t)size, 0, &result);
  if (done < 0) return fail("read", sluice_error());
  if (done != size) return fail("read", "the file became shorter");
  printf("%zd bytes to %s memory by %s (%s), in the %s\n", done, has_gpu ? "GPU" : "host",
         sluice_route_name(result.route), sluice_why_text(result.why),
         result.in_process ? "process" : "daemon");

  sluice_buffer_unregister(buffer);
  sluice_close(file);
  if (has_gpu) {
    cudaFree(memory);
  } else {
    free(memory);
  }
  return 0;
}
