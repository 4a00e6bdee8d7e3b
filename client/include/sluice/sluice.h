/* SPDX-License-Identifier: BSD-2-Clause
 *
 * libsluice transfers file bytes to and from GPU memory, for files on a Sluice mount and for any
 * other file.
 *
 * The daemon of a Sluice mount does the transfers for its files. It shares pinned memory and
 * registered page cache among all processes. If the daemon can't do a request (it has no GPU, the
 * memory can't be exported, or the file is not on a mount), the same engine does it inside this
 * process. The results are the same; struct sluice_result says which one did it.
 *
 * Functions return 0 or a count on success and a negative errno on failure; sluice_error() then
 * returns a description. Threads: all functions may be called from any thread, even at the same
 * time on one file or buffer. The caller must not close a file or buffer that another thread is
 * using.
 *
 * Order with GPU work: like cudaMemcpy(), a call with GPU memory first waits for the legacy default
 * stream of the buffer's GPU, and so for all streams that were not created with
 * cudaStreamNonBlocking. Calls that start requests (sluice_read_async(), sluice_ring_submit()) wait
 * before they return. Work in other streams, such as cudaStreamPerThread, must be complete; or use
 * the calls that take a stream, which wait for that one only. When a request is done, every stream
 * sees its bytes. -EBUSY: a stream that the default stream waits for is being captured into a
 * graph.
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
/* Some functions have the names of ioctl structures, as stat() and struct stat do. */
#pragma GCC diagnostic ignored "-Wshadow"
#endif

typedef struct sluice_file sluice_file;
typedef struct sluice_buffer sluice_buffer;
typedef struct sluice_mapping sluice_mapping;

struct sluice_result {
  uint64_t bytes;
  uint32_t route;      /* enum sluice_route */
  uint32_t why;        /* enum sluice_why */
  uint32_t in_process; /* 1: the engine in this process did it; 0: the daemon */
  uint32_t reserved;
};

/* Opens `path`, which must be a regular file. `flags` are those of open(2); `mode` is used with
 * O_CREAT. O_APPEND and O_DIRECT are ignored: every request has an offset, and the library chooses
 * what bypasses the page cache. */
int sluice_open(const char* path, int flags, mode_t mode, sluice_file** file);
/* Uses an open descriptor. The caller keeps it open until sluice_close() and closes it afterwards.
 */
int sluice_open_fd(int fd, sluice_file** file);
void sluice_close(sluice_file* file);
/* Returns the current size of the file, or a negative errno. */
int64_t sluice_size(sluice_file* file);

/* Registers memory: GPU memory (cudaMalloc, cudaMallocAsync, PyTorch's allocators; it may begin in
 * the middle of an allocation), pinned memory or plain memory. The buffer may be used with every
 * file. Unregister it before the memory is freed. */
int sluice_buffer_register(void* memory, size_t length, sluice_buffer** buffer);
void sluice_buffer_unregister(sluice_buffer* buffer);
/* From now on, requests with this buffer do not wait for the default stream: for a program that
 * reads into one part of its memory while the GPU works with another. */
void sluice_buffer_unordered(sluice_buffer* buffer);

/* These return the number of bytes, which is less than requested only at the end of the file.
 * `result` may be NULL. */
ssize_t sluice_read(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset, size_t length,
                    uint64_t file_offset, struct sluice_result* result);
ssize_t sluice_write(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset, size_t length,
                     uint64_t file_offset, struct sluice_result* result);
ssize_t sluice_readv(sluice_file* file, sluice_buffer* buffer,
                     const struct sluice_segment* segments, size_t count,
                     struct sluice_result* result);
/* Like sluice_read(), but fails with -EOPNOTSUPP if this route can't be taken. */
ssize_t sluice_read_route(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                          size_t length, uint64_t file_offset, uint32_t route,
                          struct sluice_result* result);

/* Reads records of `record_bytes` bytes by number. Record 0 begins at `file_offset`. Record
 * index[i] goes to `buffer_offset` + i * `record_bytes` in the buffer, for i from 0 to `count` - 1.
 * A number may occur more than once. `index` may be in host memory or GPU memory. Returns the
 * number of bytes.
 *
 * The engine in this process does this, so that millions of numbers need not be sent to the daemon,
 * unless the daemon has the file in the memory of the buffer's GPU. A record must be completely
 * inside the file: a number out of range fails with -ERANGE, and sluice_error() names the first
 * one; some records may be in the buffer already.
 */
ssize_t sluice_gather(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                      const uint64_t* index, size_t count, size_t record_bytes,
                      uint64_t file_offset, struct sluice_result* result);
/* Writes records by number: the bytes at `buffer_offset` + i * `record_bytes` in the buffer become
 * record index[i] of the file. If a number occurs more than once, the last record stays. The file
 * does not grow: a record number out of range fails with -ERANGE, and then nothing has been
 * written.
 */
ssize_t sluice_scatter(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                       const uint64_t* index, size_t count, size_t record_bytes,
                       uint64_t file_offset, struct sluice_result* result);

/* These start a request and return. A thread of the library calls `callback` when it is done, with
 * the value that sluice_read() or sluice_write() would have returned. The callback may start
 * requests but must not wait for one. It is not called if these functions return an error. */
typedef void (*sluice_callback)(void* user, ssize_t done, const struct sluice_result* result);
int sluice_read_async(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset, size_t length,
                      uint64_t file_offset, sluice_callback callback, void* user);
int sluice_write_async(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                       size_t length, uint64_t file_offset, sluice_callback callback, void* user);

/* These run in the order of a CUDA stream (a CUstream or cudaStream_t). The request starts when all
 * earlier work in the stream is done, and later work waits for it. `*done` is set to the value that
 * sluice_read() or sluice_write() would have returned, before the stream continues; it must stay
 * valid until then. -EOPNOTSUPP: the stream is being captured into a graph. */
int sluice_read_stream(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                       size_t length, uint64_t file_offset, void* stream, ssize_t* done);
int sluice_write_stream(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                        size_t length, uint64_t file_offset, void* stream, ssize_t* done);

/* The same, but offsets and length are computed when the stream reaches this call. A thread of the
 * library calls `numbers` for them, and `callback` with the result before the stream continues.
 * Neither is called if these functions return an error. */
typedef void (*sluice_numbers)(void* user, size_t* buffer_offset, size_t* length,
                               uint64_t* file_offset);
int sluice_read_stream_late(sluice_file* file, sluice_buffer* buffer, sluice_numbers numbers,
                            sluice_callback callback, void* user, void* stream);
int sluice_write_stream_late(sluice_file* file, sluice_buffer* buffer, sluice_numbers numbers,
                             sluice_callback callback, void* user, void* stream);

/* Computes the checksum of `length` bytes in the buffer: XXH3-64 of each block of 4096 bytes (the
 * last one may be shorter), then XXH3-64 of these numbers, as an array in little-endian byte order.
 * The GPU computes it for GPU memory, the CPU for host memory. Two buffers with the same bytes have
 * the same checksum, wherever they are. -ERANGE: the buffer has no such range. */
int sluice_checksum(sluice_buffer* buffer, size_t buffer_offset, size_t length, uint64_t* sum);
/* The checksum of a range of the file, which the CPU computes from what read(2) returns. Bytes
 * beyond the end of the file do not count. It equals sluice_checksum() of a buffer that the same
 * range was read into. */
int sluice_checksum_file(sluice_file* file, uint64_t file_offset, uint64_t length, uint64_t* sum);

/* Maps the copy of the whole file that the daemon keeps in the memory of a GPU (option hbm),
 * without copying it: other processes of the same user see the same memory. A file that is not
 * there is copied first. `gpu` is the UUID of a GPU as nvidia-smi prints it; NULL stands for the
 * GPU of the current CUDA context, or the first one.
 *
 * The mapping has the bytes that the file had when it was mapped, and stays valid until
 * sluice_unmap(), even when the file changes, is deleted or closed, or the daemon ends. It is
 * read-only: a kernel that writes to it fails, and so does all later work of its CUDA context.
 *
 * A file that can't be shared gives an error, and sluice_error() says "not shared because ...";
 * read it instead. ENOTTY: it is not on a mount. EOPNOTSUPP: hbm is off. ENOSPC: there is no room.
 * EAGAIN: it changed in the last seconds, or is open for writing. ESTALE: it changed since
 * sluice_open(), so the mapping would not match what was read before. */
int sluice_map(sluice_file* file, const char* gpu, sluice_mapping** mapping);
/* sluice_map() in two steps. The daemon checks that no program wrote to the memory that it shares,
 * which takes 2 ms for 8 GiB. Between the steps, address and size are known, but nothing may be
 * read. sluice_map_wait() returns 0 if the memory is good. -EAGAIN: it is not; unmap it and call
 * sluice_map(). One thread at a time may call it for a mapping. */
int sluice_map_begin(sluice_file* file, const char* gpu, sluice_mapping** mapping);
int sluice_map_wait(sluice_mapping* mapping);
/* An address in GPU memory. */
const void* sluice_mapping_address(const sluice_mapping* mapping);
/* The size of the file when it was mapped. */
uint64_t sluice_mapping_size(const sluice_mapping* mapping);
/* Waits until the GPU has done all work that it was given, because that may use the mapping. */
void sluice_unmap(sluice_mapping* mapping);

/* Prefetches a range of the file. `flags` is SLUICE_PREFETCH_WARM (or 0), which reads the range
 * into the page cache, SLUICE_PREFETCH_PROMOTE, which moves the file to the fastest tier, or
 * SLUICE_PREFETCH_HBM, which copies it into the memory of the first GPU. Length 0 means to the end.
 */
int sluice_prefetch(sluice_file* file, uint64_t offset, uint64_t length, uint32_t flags);
/* Says which route a large read into `buffer` would take. NULL stands for GPU memory. */
int sluice_query_file(sluice_file* file, sluice_buffer* buffer, struct sluice_query* query);

/* The name of a route, such as "staged". */
const char* sluice_route_name(uint32_t route);
/* The reason for a route, such as "registering pays off from the second read on". */
const char* sluice_why_text(uint32_t why);
/* Describes the last failed call of the calling thread: what failed, where, why, and what to do. */
const char* sluice_error(void);
/* The version of the library, such as "0.1.0". */
const char* sluice_version(void);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
