/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Rings of libsluice: many small requests in progress at once, without a system call for each.
 *
 * A ring has a queue of requests and a queue of completions in memory that is shared with the
 * daemon of a Sluice mount. The daemon does the requests of one file and buffer together. A thread
 * of this process does what the daemon can't: requests for files that are not on the mount, for
 * plain memory, or for a GPU if the daemon has none. The flags of the completion tell which one did
 * it.
 *
 * Functions return 0 or a count on success and a negative errno on failure; sluice_error() then
 * returns a description. Threads: all functions may be called from any thread at the same time, but
 * one ring per thread is faster. A ring belongs to its process: a child creates its own after
 * fork().
 */
#ifndef SLUICE_RING_H
#define SLUICE_RING_H

#include <time.h>

#include "sluice/sluice.h"

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
/* Some functions have the names of ioctl structures, as stat() and struct stat do. */
#pragma GCC diagnostic ignored "-Wshadow"
#endif

typedef struct sluice_ring sluice_ring;

/* Creates a ring for at most `entries` requests at once (rounded up to a power of two, at most
 * 32,768). */
int sluice_ring_create(unsigned entries, sluice_ring** ring);
/* The same, but this process does all requests. The ring keeps no file of a mount open: for files
 * that are dropped again, and memory that the daemon can't use. */
int sluice_ring_create_in_process(unsigned entries, sluice_ring** ring);
/* Waits for requests in progress. Requests that have not started are dropped. */
void sluice_ring_destroy(sluice_ring* ring);

/* These add a file, or a buffer (from sluice_buffer_register() or sluice_buffer_create()), to the
 * ring and return its number there, 0 or more. Files and buffers must outlive the ring, or be
 * dropped when none of their requests is in progress. */
int sluice_ring_add_file(sluice_ring* ring, sluice_file* file);
int sluice_ring_drop_file(sluice_ring* ring, int file);
int sluice_ring_add_buffer(sluice_ring* ring, sluice_buffer* buffer);
int sluice_ring_drop_buffer(sluice_ring* ring, int buffer);

/* These put a request into the queue. It starts with the next sluice_ring_submit(). -EAGAIN:
 * `entries` requests are in progress; take completions first. Requests may be done in any order. */
int sluice_ring_read(sluice_ring* ring, int file, int buffer, uint64_t buffer_offset,
                     uint64_t length, uint64_t file_offset, uint64_t user_data);
int sluice_ring_write(sluice_ring* ring, int file, int buffer, uint64_t buffer_offset,
                      uint64_t length, uint64_t file_offset, uint64_t user_data);
/* Starts the requests in the queue and returns their number. If they use GPU memory, it first waits
 * for the default stream (sluice.h); after an error, they are still in the queue. */
int sluice_ring_submit(sluice_ring* ring);
/* Takes up to `most` completions, waiting until there are at least `least`; with `least` 0 it does
 * not wait. Returns the number of completions. It is less than `least` if `timeout` has passed
 * (NULL: no timeout) and some had arrived; if none had, the result is -ETIMEDOUT. -ESHUTDOWN,
 * -ENOTCONN: the mount has ended, and its requests with it. If another daemon takes over the mount,
 * requests are repeated, and a wait may take longer than `timeout`; -ECONNABORTED: this happened
 * too often. -EAGAIN, -ENOMEM: this process has no thread or memory for the requests that it
 * does itself. */
int sluice_ring_wait(sluice_ring* ring, struct sluice_ring_completion* completions, unsigned most,
                     unsigned least, const struct timespec* timeout);
/* Returns an eventfd that becomes readable when completions have arrived since it was last read.
 * The ring closes it. */
int sluice_ring_eventfd(sluice_ring* ring);

/* Allocates host memory that the daemon and other processes can also use: a memfd. */
int sluice_buffer_create(size_t length, sluice_buffer** buffer);
/* The address of the buffer, in host memory or on its GPU. */
void* sluice_buffer_memory(sluice_buffer* buffer);

/* Describes a buffer to another process. The structure has no pointers and can be sent as it is.
 * The buffer must exist in this process until the other one has imported it. A process that
 * receives the memfd in another way (SCM_RIGHTS) fills in its own pid and descriptor. */
struct sluice_shared_buffer {
  uint32_t version; /* 1 */
  uint32_t kind;    /* SLUICE_BUFFER_MEMFD or SLUICE_BUFFER_CUDA_IPC */
  uint64_t offset;
  uint64_t length;
  uint64_t allocation_length; /* 0 */
  int32_t pid;                /* MEMFD: the process of `fd` */
  int32_t fd;
  uint64_t inode; /* MEMFD: st_ino */
  uint8_t gpu_uuid[SLUICE_UUID_SIZE];
  uint8_t ipc_handle[SLUICE_IPC_HANDLE_SIZE];
};
/* Fails with -EOPNOTSUPP if the memory can't be shared: plain host memory, GPU memory of several
 * allocations, or CUDA's virtual memory API (cuMemCreate; PyTorch's expandable segments). */
int sluice_buffer_export(sluice_buffer* buffer, struct sluice_shared_buffer* shared);
/* Maps memory of another process. This needs ptrace rights over that process (same user). */
int sluice_buffer_import(const struct sluice_shared_buffer* shared, sluice_buffer** buffer);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
