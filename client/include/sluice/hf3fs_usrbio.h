/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The functions of 3FS's USRBIO, for files of a Sluice mount. Programs written for USRBIO build and
 * run unchanged, with this directory in the include path and -lsluice_hf3fs. docs/rings.md lists
 * the differences. An ior is a ring of ring.h; an iov is a buffer that the daemon can use.
 *
 * Threads: as in 3FS, one thread prepares and submits on an ior, and one waits. All other functions
 * are thread-safe.
 */
#ifndef SLUICE_HF3FS_USRBIO_H
#define SLUICE_HF3FS_USRBIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HF3FS_SUPER_MAGIC 0x8f3f5fff

typedef void* hf3fs_iov_handle;
typedef void* hf3fs_ior_handle;

/* Memory for reads and writes. The caller allocates the structure; hf3fs_iovcreate() and similar
 * functions fill it in. */
struct hf3fs_iov {
  uint8_t* base;
  hf3fs_iov_handle iovh;
  char id[16];
  char mount_point[256];
  size_t size;
  size_t block_size;
  int numa;
};

/* A ring of requests. */
struct hf3fs_ior {
  struct hf3fs_iov iov; /* unused: the library owns the ring's memory */
  hf3fs_ior_handle iorh;
  char mount_point[256];
  bool for_read;
  int io_depth;
  int priority;
  int timeout;
  uint64_t flags;
};

struct hf3fs_cqe {
  int32_t index;
  int32_t reserved;
  int64_t result;
  const void* userdata;
};

/* Tells whether the file or directory is on a Sluice mount. */
bool hf3fs_is_hf3fs(int fd);
/* Writes the mount point of `path`. Returns its length + 1, or -1 if the path is not on a mount. If
 * the result is larger than `size`, nothing was written. */
int hf3fs_extract_mount_point(char* hf3fs_mount_point, int size, const char* path);

/* These return 0 or a negative errno. Another process of this user can open the memory by `id`
 * until it is unlinked or this process ends. */
int hf3fs_iovcreate(struct hf3fs_iov* iov, const char* hf3fs_mount_point, size_t size,
                    size_t block_size, int numa);
int hf3fs_iovopen(struct hf3fs_iov* iov, const uint8_t id[16], const char* hf3fs_mount_point,
                  size_t size, size_t block_size, int numa);
void hf3fs_iovunlink(struct hf3fs_iov* iov);
void hf3fs_iovdestroy(struct hf3fs_iov* iov);
/* Uses memory of the caller, who still owns it. */
int hf3fs_iovwrap(struct hf3fs_iov* iov, void* base, const uint8_t id[16],
                  const char* hf3fs_mount_point, size_t size, size_t block_size, int numa);

/* The memory that a ring needs. It is allocated with the ring. */
size_t hf3fs_ior_size(int entries);

#define HF3FS_IOR_ALLOW_READ_UNCOMMITTED 1
#define HF3FS_IOR_FORBID_READ_HOLES 2
int hf3fs_iorcreate(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                    bool for_read, int io_depth, int numa);
int hf3fs_iorcreate2(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int numa);
int hf3fs_iorcreate3(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int timeout, int numa);
int hf3fs_iorcreate4(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int timeout, int numa, uint64_t flags);
void hf3fs_iordestroy(struct hf3fs_ior* ior);
int hf3fs_io_entries(const struct hf3fs_ior* ior);

/* Returns a negative number that can be used like the descriptor, or a positive errno. */
int hf3fs_reg_fd(int fd, uint64_t flags);
void hf3fs_dereg_fd(int fd);

/* Returns the index of the request, 0 or more, or a negative errno; -EAGAIN if the ring is full. */
int hf3fs_prep_io(const struct hf3fs_ior* ior, const struct hf3fs_iov* iov, bool read, void* ptr,
                  int fd, size_t off, uint64_t len, const void* userdata);
int hf3fs_submit_ios(const struct hf3fs_ior* ior);
/* Returns the number of results, or a negative errno. It is less than `min_results` if
 * `abs_timeout` (CLOCK_REALTIME) has passed. */
int hf3fs_wait_for_ios(const struct hf3fs_ior* ior, struct hf3fs_cqe* cqes, int cqec,
                       int min_results, const struct timespec* abs_timeout);

/* These return 0 or an errno. */
int hf3fs_hardlink(const char* target, const char* link_name);
int hf3fs_punchhole(int fd, int n, const size_t* start, const size_t* end, size_t flags);

/* GPU memory. `gpu_device_id` is CUDA's number of the GPU. The functions return 0 or a negative
 * errno. */
typedef struct hf3fs_gpu_ipc_handle {
  uint8_t bytes[128];
} hf3fs_gpu_ipc_handle_t;

bool hf3fs_gdr_available(void);
int hf3fs_gdr_device_count(void);
int hf3fs_iovcreate_gpu(struct hf3fs_iov* iov, const char* hf3fs_mount_point, size_t size,
                        size_t block_size, int gpu_device_id);
int hf3fs_iovwrap_gpu(struct hf3fs_iov* iov, void* gpu_ptr, const uint8_t id[16],
                      const char* hf3fs_mount_point, size_t size, size_t block_size,
                      int gpu_device_id);
int hf3fs_iov_export_gpu(const struct hf3fs_iov* iov, hf3fs_gpu_ipc_handle_t* handle);
int hf3fs_iov_import_gpu(struct hf3fs_iov* iov, const hf3fs_gpu_ipc_handle_t* handle,
                         const char* hf3fs_mount_point);
void hf3fs_iovdestroy_gpu(struct hf3fs_iov* iov);
bool hf3fs_iov_is_gpu(const struct hf3fs_iov* iov);
/* Returns -1 if the memory is not on a GPU. */
int hf3fs_iov_gpu_device(const struct hf3fs_iov* iov);
/* Waits for the work of the GPU. It is not needed after a completion. */
int hf3fs_iovsync_gpu(const struct hf3fs_iov* iov, int direction);

/* Not in 3FS: describes what failed last in this thread. */
const char* hf3fs_error(void);

#ifdef __cplusplus
}
#endif

#endif
