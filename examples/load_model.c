/* SPDX-License-Identifier: BSD-2-Clause
 *
 * load_model MODEL: loads a safetensors file, an index, or the folder of either into GPU memory,
 * and lists the tensors.
 *
 *   cc load_model.c -o load_model $(pkg-config --cflags --libs sluice) -I/usr/local/cuda/include
 *      -L/usr/local/cuda/lib64 -lcudart
 */
#include <cuda_runtime_api.h>
#include <sluice/loader.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what, const char* why) {
  fprintf(stderr, "load_model: %s: %s\n", what, why);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return fail("usage", "load_model MODEL");
  sluice_model* model;
  if (sluice_model_open(argv[1], &model) < 0) return fail("open", sluice_error());
  size_t size = (size_t)sluice_model_arena(model);
  if (size == 0) return fail(argv[1], "the model is empty");

  void* arena;
  int has_gpu = cudaMalloc(&arena, size) == cudaSuccess;
  if (!has_gpu) arena = malloc(size);
  sluice_buffer* buffer;
  if (sluice_buffer_register(arena, size, &buffer) < 0) return fail("register", sluice_error());

  struct sluice_result result;
  ssize_t done = sluice_model_load(model, buffer, 0, NULL, NULL, &result);
  if (done < 0) return fail("load", sluice_error());
  printf("%zd bytes to %s memory by %s\n", done, has_gpu ? "GPU" : "host",
         sluice_route_name(result.route));
  for (size_t i = 0; i < sluice_model_count(model); ++i) {
    const struct sluice_tensor* tensor = sluice_model_tensor(model, i);
    printf("%p %-7s %s\n", (void*)((char*)arena + tensor->arena_offset), tensor->dtype,
           tensor->name);
  }

  sluice_buffer_unregister(buffer);
  sluice_model_close(model);
  if (has_gpu) {
    cudaFree(arena);
  } else {
    free(arena);
  }
  return 0;
}
