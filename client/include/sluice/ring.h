/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Rings of libsluice: many small requests on their way at once, without a system call each.
 *
 * A ring has a queue of requests and one of completions in memory that is shared with the daemon of
 * a Sluice mount, which does those of one file and buffer together. What the daemon can't do (a
 * file that is elsewhere, plain memory that it can't reach, a daemon without GPUs) a thread of this
 * process does, and the completion's flags say so: a program need not care.
 *
 * Functions return 0 or a count, or a negative errno; sluice_error() then has a sentence about it.
 * Threads: all functions may be called from any thread at once; a ring a thread is faster. A ring
 * belongs to its process: a child after fork() makes its own.
 */
#ifndef SLUICE_RING_H
#define SLUICE_RING_H

#include <time.h>

#include "sluice/sluice.h"

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
/* Some functions are called as the structures of their ioctls: as stat() and struct stat. */
#pragma GCC diagnostic ignored "-Wshadow"
#endif

typedef struct sluice_ring sluice_ring;

/* For at most `entries` requests under way at once (rounded up to a power of two, at most 32,768).
 */
int sluice_ring_create(unsigned entries, sluice_ring** ring);
/* Waits for what the servers are at; what they have not begun is not done. */
void sluice_ring_destroy(sluice_ring* ring);

/* Make a file, or memory (sluice_buffer_register(), sluice_buffer_create()), known to the ring.
 * Return a number that requests name it by, 0 or more. They must outlive the ring, or be dropped
 * first, when none of their requests is under way. */
int sluice_ring_add_file(sluice_ring* ring, sluice_file* file);
int sluice_ring_drop_file(sluice_ring* ring, int file);
int sluice_ring_add_buffer(sluice_ring* ring, sluice_buffer* buffer);
int sluice_ring_drop_buffer(sluice_ring* ring, int buffer);

/* Put a request into the queue; it begins with the next sluice_ring_submit(). -EAGAIN: `entries`
 * are under way already, take completions first. Requests have no order among themselves. */
int sluice_ring_read(sluice_ring* ring, int file, int buffer, uint64_t buffer_offset,
                     uint64_t length, uint64_t file_offset, uint64_t user_data);
int sluice_ring_write(sluice_ring* ring, int file, int buffer, uint64_t buffer_offset,
                      uint64_t length, uint64_t file_offset, uint64_t user_data);
/* Begins what is in the queue, and returns how many that were. */
int sluice_ring_submit(sluice_ring* ring);
/* Takes up to `most` completions, and waits until there are `least`; 0 does not wait. Returns how
 * many: fewer than `least` when `timeout` (null: none) was over and some had come; -ETIMEDOUT if
 * none had. -ESHUTDOWN, -ENOTCONN: the mount has ended, and what was under way with it; -EAGAIN,
 * -ENOMEM: this process had no thread or memory to go on with its part. */
int sluice_ring_wait(sluice_ring* ring, struct sluice_ring_completion* completions, unsigned most,
                     unsigned least, const struct timespec* timeout);
/* An eventfd that gets readable when completions came since it was last read; the ring's to close.
 */
int sluice_ring_eventfd(sluice_ring* ring);

/* Host memory that the daemon and other processes can use as well: a memfd. */
int sluice_buffer_create(size_t length, sluice_buffer** buffer);
/* Where the buffer is: in host memory, or on its GPU. */
void* sluice_buffer_memory(sluice_buffer* buffer);

/* A buffer as another process finds it. Flat: send the bytes as they are. The buffer has to live,
 * in this process, until the other has imported it. Who gets a memfd by other ways (SCM_RIGHTS)
 * puts his own pid and descriptor there. */
struct sluice_shared_buffer {
  uint32_t version; /* 1 */
  uint32_t kind;    /* SLUICE_BUFFER_MEMFD or SLUICE_BUFFER_CUDA_IPC */
  uint64_t offset;
  uint64_t length;
  uint64_t allocation_length; /* 0 */
  int32_t pid;                /* MEMFD: whose descriptor */
  int32_t fd;
  uint64_t inode; /* MEMFD: st_ino */
  uint8_t gpu_uuid[SLUICE_UUID_SIZE];
  uint8_t ipc_handle[SLUICE_IPC_HANDLE_SIZE];
};
/* -EOPNOTSUPP for memory that can't be shared: plain host memory, a GPU's in several pieces, or of
 * CUDA's virtual memory API (cuMemCreate; PyTorch's expandable segments). */
int sluice_buffer_export(sluice_buffer* buffer, struct sluice_shared_buffer* shared);
/* Memory of another process, mapped here. Takes the right to look at that process (same user). */
int sluice_buffer_import(const struct sluice_shared_buffer* shared, sluice_buffer** buffer);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
