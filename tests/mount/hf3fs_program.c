/* SPDX-License-Identifier: BSD-2-Clause
 *
 * hf3fs_program MOUNT FILE: a program for 3FS's USRBIO. It reads the file through a ring, block by
 * block and in several batches, and compares it with read(2). Then it writes a copy through a
 * second ring. It includes no header of Sluice by name.
 */
#include <errno.h>
#include <fcntl.h>
#include <hf3fs_usrbio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 65536
#define DEPTH 16

static void need(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "hf3fs_program: %s (errno %d)\n", what, errno);
  exit(1);
}

/* Transfers all blocks between the file and the iov. */
static void transfer(const struct hf3fs_ior* ior, const struct hf3fs_iov* iov, bool read, int fd,
                     size_t size) {
  size_t begun = 0, done = 0;
  while (done < size) {
    while (begun < size) {
      const size_t length = size - begun < BLOCK ? size - begun : BLOCK;
      const int index =
          hf3fs_prep_io(ior, iov, read, iov->base + begun, fd, begun, length, iov->base + begun);
      if (index == -EAGAIN) break;
      need(index >= 0, "prep_io");
      begun += length;
    }
    need(hf3fs_submit_ios(ior) == 0, "submit_ios");
    struct hf3fs_cqe cqes[DEPTH];
    const int got = hf3fs_wait_for_ios(ior, cqes, DEPTH, 1, NULL);
    need(got > 0, "wait_for_ios");
    for (int i = 0; i < got; ++i) {
      need(cqes[i].result > 0, "a result");
      need(cqes[i].index >= 0 && cqes[i].index < DEPTH, "an index");
      const size_t at = (size_t)((const uint8_t*)cqes[i].userdata - iov->base);
      need(at % BLOCK == 0 && at < size, "userdata");
      done += (size_t)cqes[i].result;
    }
  }
  need(done == size, "all bytes");
}

int main(int argc, char** argv) {
  need(argc == 3, "usage: hf3fs_program MOUNT FILE");
  const char* const mount = argv[1];
  char point[256];
  need(hf3fs_extract_mount_point(point, sizeof point, argv[2]) == (int)strlen(mount) + 1, "length");
  need(strcmp(point, mount) == 0, "the mount point");
  need(hf3fs_extract_mount_point(point, sizeof point, "/proc/self") == -1, "no mount point");

  const int fd = open(argv[2], O_RDONLY);
  need(fd >= 0 && hf3fs_is_hf3fs(fd), "is_hf3fs");
  struct stat status;
  need(fstat(fd, &status) == 0, "fstat");
  const size_t size = (size_t)status.st_size;

  struct hf3fs_ior ior;
  need(hf3fs_iorcreate4(&ior, mount, DEPTH, true, 0, 0, -1, 0) == 0, "iorcreate4");
  need(hf3fs_io_entries(&ior) == DEPTH, "io_entries");
  need(hf3fs_ior_size(DEPTH) > 0, "ior_size");
  struct hf3fs_iov iov;
  need(hf3fs_iovcreate(&iov, mount, size, 0, -1) == 0, "iovcreate");
  need(hf3fs_prep_io(&ior, &iov, true, iov.base, fd, 0, 1, NULL) == -EBADF, "not registered");
  const int name = hf3fs_reg_fd(fd, 0);
  need(name <= 0, "reg_fd");
  need(hf3fs_reg_fd(fd, 0) == EINVAL, "reg_fd twice");
  need(hf3fs_prep_io(&ior, &iov, false, iov.base, fd, 0, 1, NULL) == -EINVAL, "not for writing");
  need(hf3fs_prep_io(&ior, &iov, true, iov.base, fd, 0, size + 1, NULL) == -EINVAL, "beyond");

  char* const expected = malloc(size);
  need(expected != NULL && pread(fd, expected, size, 0) == (ssize_t)size, "pread");
  transfer(&ior, &iov, true, fd, size);
  need(memcmp(iov.base, expected, size) == 0, "the bytes");
  memset(iov.base, 0, size);
  transfer(&ior, &iov, true, name, size);
  need(memcmp(iov.base, expected, size) == 0, "the bytes, by the other name");

  /* Another process opens the same memory by its id. */
  const pid_t child = fork();
  if (child == 0) {
    struct hf3fs_iov same;
    if (hf3fs_iovopen(&same, (const uint8_t*)iov.id, mount, size, 0, -1) != 0) _exit(1);
    _exit(memcmp(same.base, expected, size) == 0 ? 0 : 2);
  }
  int ended = 0;
  need(waitpid(child, &ended, 0) == child && ended == 0, "iovopen in another process");
  hf3fs_iovunlink(&iov);
  struct hf3fs_iov none;
  need(hf3fs_iovopen(&none, (const uint8_t*)iov.id, mount, size, 0, -1) == -ENOENT, "unlinked");

  /* Writes a copy from memory that was only wrapped. */
  char path[4096];
  snprintf(path, sizeof path, "%s/copy", mount);
  const int copy = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  need(copy >= 0 && hf3fs_reg_fd(copy, 0) <= 0, "register the copy");
  struct hf3fs_ior writer;
  need(hf3fs_iorcreate(&writer, mount, DEPTH, false, 0, -1) == 0, "iorcreate");
  struct hf3fs_iov wrapped;
  const uint8_t id[16] = {1};
  need(hf3fs_iovwrap(&wrapped, expected, id, mount, size, 0, -1) == 0, "iovwrap");
  transfer(&writer, &wrapped, false, copy, size);
  need(pread(copy, iov.base, size, 0) == (ssize_t)size, "read the copy");
  need(memcmp(iov.base, expected, size) == 0, "the copy");

  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  struct hf3fs_cqe cqe;
  need(hf3fs_wait_for_ios(&ior, &cqe, 1, 1, &now) == 0, "nothing to wait for");
  hf3fs_iordestroy(&writer);
  hf3fs_iovdestroy(&wrapped);
  hf3fs_dereg_fd(copy);
  hf3fs_dereg_fd(fd);
  close(copy);
  close(fd);
  hf3fs_iovdestroy(&iov);
  hf3fs_iordestroy(&ior);
  free(expected);
  return 0;
}
