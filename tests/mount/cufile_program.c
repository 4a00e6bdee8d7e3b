/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cufile_program FILE...: a program that does not mention Sluice. It reads each file with cuFile
 * into host memory and prints its name, the result of registering it, the result of cuFileRead(),
 * and whether the bytes equal those of pread().
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* As in cufile.h, which may not be installed. */
typedef struct {
  int err, cu_err;
} CUfileError_t;
typedef struct {
  int type;
  union {
    int fd;
    void* handle;
  } handle;
  const void* fs_ops;
} CUfileDescr_t;
CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileHandleRegister(void** handle, CUfileDescr_t* description);
void cuFileHandleDeregister(void* handle);
ssize_t cuFileRead(void* handle, void* base, size_t size, off_t file_offset, off_t base_offset);

enum { SIZE = 70001 };

static int read_file(const char* path) {
  static char by_cufile[SIZE], by_pread[SIZE];
  int plain = open(path, O_RDONLY);
  if (plain < 0 || pread(plain, by_pread, SIZE, 13) < 0) return 1;
  close(plain);
  int fd = open(path, O_RDONLY | O_DIRECT);
  if (fd < 0) return 1;
  CUfileDescr_t description = {.type = 1, .handle.fd = fd};
  void* handle = NULL;
  int code = cuFileHandleRegister(&handle, &description).err;
  ssize_t done = 0;
  memset(by_cufile, 0, SIZE);
  if (code == 0) {
    done = cuFileRead(handle, by_cufile, SIZE, 13, 0);
    cuFileHandleDeregister(handle);
  }
  close(fd);
  printf("%s %d %zd %s\n", basename(path), code, done,
         memcmp(by_cufile, by_pread, SIZE) == 0 ? "right" : "wrong");
  return 0;
}

int main(int argc, char** argv) {
  if (cuFileDriverOpen().err != 0) return 1;
  for (int i = 1; i < argc; i++) {
    if (read_file(argv[i]) != 0) {
      perror(argv[i]);
      return 1;
    }
  }
  return 0;
}
