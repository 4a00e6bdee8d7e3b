/* SPDX-License-Identifier: BSD-2-Clause
 *
 * libsluice: file bytes to and from GPU memory, on a Sluice mount and on any other file.
 *
 * Files of a Sluice mount are read by its daemon, which shares pinned memory and registered page
 * cache among all processes; where the daemon can't (it has no GPU, the memory can't be exported,
 * the file is elsewhere), the same engine works inside this process. Results are the same, and
 * struct sluice_result says which it was.
 *
 * Functions return 0 or a count, or a negative errno; sluice_error() then has a sentence about it.
 * Threads: all functions may be called from any thread, also on one file or buffer at once; closing
 * something that another thread uses is the caller's mistake to avoid.
 */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sluice/ioctl.h"

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
/* Some functions are called as the structures of their ioctls: as stat() and struct stat. */
#pragma GCC diagnostic ignored "-Wshadow"
#endif

typedef struct sluice_file sluice_file;
typedef struct sluice_buffer sluice_buffer;

struct sluice_result {
  uint64_t bytes;
  uint32_t route;      /* enum sluice_route */
  uint32_t why;        /* enum sluice_why */
  uint32_t in_process; /* 1: the engine of this process did it, not the daemon */
  uint32_t reserved;
};

/* Opens `path`, a regular file; `flags` are those of open(2) and `mode` counts with O_CREAT.
 * O_APPEND and O_DIRECT are left out: every request names its offset, and the library chooses what
 * goes past the page cache. */
int sluice_open(const char* path, int flags, mode_t mode, sluice_file** file);
/* The same for a descriptor, which stays the caller's, and open until sluice_close(). */
int sluice_open_fd(int fd, sluice_file** file);
void sluice_close(sluice_file* file);
/* The size now, or a negative errno. */
int64_t sluice_size(sluice_file* file);

/* Makes memory known: a GPU's (cudaMalloc, cudaMallocAsync, PyTorch's allocators, also in the
 * middle of an allocation), pinned, or plain. It may be used with every file. Unregister it before
 * it is freed. */
int sluice_buffer_register(void* memory, size_t length, sluice_buffer** buffer);
void sluice_buffer_unregister(sluice_buffer* buffer);

/* Return the number of bytes: fewer than asked for only at the end of the file. `result` may be
 * null. */
ssize_t sluice_read(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset, size_t length,
                    uint64_t file_offset, struct sluice_result* result);
ssize_t sluice_write(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset, size_t length,
                     uint64_t file_offset, struct sluice_result* result);
ssize_t sluice_readv(sluice_file* file, sluice_buffer* buffer,
                     const struct sluice_segment* segments, size_t count,
                     struct sluice_result* result);
/* As sluice_read(), by one route only. */
ssize_t sluice_read_route(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                          size_t length, uint64_t file_offset, uint32_t route,
                          struct sluice_result* result);

/* Records of `record_bytes` bytes by number, any amount of them: record 0 begins at `file_offset`,
 * and record index[i] goes to `buffer_offset` + i * `record_bytes` of the buffer, for i from 0 to
 * `count` - 1. The same number may come several times. `index` is in host memory or in that of a
 * GPU. Returns the number of bytes.
 *
 * Always done in this process, so that millions of numbers need not reach the daemon. The file has
 * as many records as are whole in it: -ERANGE for any other number, and sluice_error() names the
 * first; the buffer may then have some of the records. */
ssize_t sluice_gather(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                      const uint64_t* index, size_t count, size_t record_bytes,
                      uint64_t file_offset, struct sluice_result* result);
/* The other way: record index[i] of the file becomes what is at `buffer_offset` + i *
 * `record_bytes` of the buffer; of the same number, the last. The file does not grow: -ERANGE, and
 * nothing was written. */
ssize_t sluice_scatter(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                       const uint64_t* index, size_t count, size_t record_bytes,
                       uint64_t file_offset, struct sluice_result* result);

/* Begin, and call back from a thread of the library's when done, with what the function above would
 * have returned. The callback may begin further requests but must not wait for one. Never called if
 * these return an error. */
typedef void (*sluice_callback)(void* user, ssize_t done, const struct sluice_result* result);
int sluice_read_async(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset, size_t length,
                      uint64_t file_offset, sluice_callback callback, void* user);
int sluice_write_async(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                       size_t length, uint64_t file_offset, sluice_callback callback, void* user);

/* In the order of a CUDA stream (a CUstream or cudaStream_t): begins when what was put into the
 * stream before is done, and what is put into it afterwards waits for the bytes. `*done` gets what
 * the function above would have returned, before the stream goes on; it must stay valid until then.
 */
int sluice_read_stream(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                       size_t length, uint64_t file_offset, void* stream, ssize_t* done);
int sluice_write_stream(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                        size_t length, uint64_t file_offset, void* stream, ssize_t* done);

/* The same with numbers that nobody knows before the stream gets there. `numbers` is asked then,
 * and `callback` is told before the stream goes on, both by a thread of the library's. Neither is
 * called if these return an error. */
typedef void (*sluice_numbers)(void* user, size_t* buffer_offset, size_t* length,
                               uint64_t* file_offset);
int sluice_read_stream_late(sluice_file* file, sluice_buffer* buffer, sluice_numbers numbers,
                            sluice_callback callback, void* user, void* stream);
int sluice_write_stream_late(sluice_file* file, sluice_buffer* buffer, sluice_numbers numbers,
                             sluice_callback callback, void* user, void* stream);

/* Warms a range of the file, or promotes it: SLUICE_PREFETCH_*. Length 0: to the end. */
int sluice_prefetch(sluice_file* file, uint64_t offset, uint64_t length, uint32_t flags);
/* Which route a large read into this buffer would take; null: into a GPU's memory. */
int sluice_query_file(sluice_file* file, sluice_buffer* buffer, struct sluice_query* query);

/* "staged" */
const char* sluice_route_name(uint32_t route);
/* "registering pays from the second reading on" */
const char* sluice_why_text(uint32_t why);
/* What went wrong in the calling thread's last call that failed: what, where, why, what next. */
const char* sluice_error(void);
/* "0.1.0" */
const char* sluice_version(void);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
