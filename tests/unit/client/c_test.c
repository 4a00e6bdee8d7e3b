/* SPDX-License-Identifier: BSD-2-Clause
 *
 * libsluice from C, in a program that knows nothing of CUDA: bytes make the round trip, and CUDA is
 * not loaded for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice/ioctl.h"
#include "sluice/loader.h"
#include "sluice/sluice.h"

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "line %d: " #condition " is false: %s\n", __LINE__, sluice_error()); \
      return 1;                                                                            \
    }                                                                                      \
  } while (0)

int main(int argc, char** argv) {
  static char out[] = "what was written", in[sizeof out];
  sluice_file* file;
  sluice_buffer *from, *to;
  struct sluice_result result;
  CHECK(argc == 2);
  CHECK(sluice_open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600, &file) == 0);
  CHECK(sluice_buffer_register(out, sizeof out, &from) == 0);
  CHECK(sluice_buffer_register(in, sizeof in, &to) == 0);
  CHECK(sluice_write(file, from, 0, sizeof out, 0, NULL) == (ssize_t)sizeof out);
  CHECK(sluice_read(file, to, 0, sizeof in, 0, &result) == (ssize_t)sizeof in);
  CHECK(memcmp(in, out, sizeof in) == 0);
  CHECK(result.bytes == sizeof in && result.route == SLUICE_ROUTE_HOST && result.in_process == 1);
  sluice_buffer_unregister(from);
  sluice_buffer_unregister(to);
  CHECK(sluice_size(file) == (int64_t)sizeof out);
  sluice_close(file);
  CHECK(remove(argv[1]) == 0);
  CHECK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == NULL);
  return 0;
}
