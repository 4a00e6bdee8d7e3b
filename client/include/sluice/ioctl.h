/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The ioctls of a file on a Sluice mount: its bytes to and from GPU memory, or host memory that is
 * shared with the daemon. docs/ioctl.md describes each, with its errors.
 *
 * FUSE passes one flat structure of at most 16,383 bytes: there are no pointers here. Structures
 * grow at their end. The size is part of an ioctl's number; the daemon goes by _IOC_NR alone, takes
 * what is missing at the end of an older, shorter structure as zero, and refuses (EINVAL) anything
 * but zero in reserved fields.
 */
#ifndef SLUICE_IOCTL_H
#define SLUICE_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SLUICE_ABI_VERSION 1u

#define SLUICE_UUID_SIZE 16
#define SLUICE_IPC_HANDLE_SIZE 64

/* How bytes travel. In a request: the one to take, or none other (EOPNOTSUPP); AUTO lets the daemon
 * choose. In a reply: the one taken. ABI: never renumber. */
enum sluice_route {
  SLUICE_ROUTE_AUTO = 0,
  SLUICE_ROUTE_GDS = 1,      /* cuFile, from the disk to the GPU with no copy in host memory */
  SLUICE_ROUTE_CUFILE = 2,   /* cuFile in its compatibility mode */
  SLUICE_ROUTE_MAPPED = 3,   /* the GPU reads the page cache itself */
  SLUICE_ROUTE_STAGED = 4,   /* through pinned host memory, in pieces, by several threads */
  SLUICE_ROUTE_PAGEABLE = 5, /* pread(2) into plain memory and a copy: where none can be pinned */
  SLUICE_ROUTE_HOST = 6,     /* into host memory; no GPU has a part in it */
};

/* Why that route. ABI: never renumber; sluice_why_text() in libsluice has the words. */
enum sluice_why {
  SLUICE_WHY_ASKED = 0,           /* the request named it */
  SLUICE_WHY_FASTEST = 1,         /* nothing speaks against the fastest one */
  SLUICE_WHY_HOST_MEMORY = 2,     /* the buffer is in host memory */
  SLUICE_WHY_SMALL = 3,           /* a request so small that it is not worth more */
  SLUICE_WHY_CACHED = 4,          /* the page cache has the bytes: a copy beats the disk */
  SLUICE_WHY_NOT_CACHED = 5,      /* the page cache lacks the bytes */
  SLUICE_WHY_REGISTERED = 6,      /* the file's page cache is registered with the GPU already */
  SLUICE_WHY_READ_ONCE = 7,       /* registering pays from the second reading on */
  SLUICE_WHY_CHANGED = 8,         /* changed a moment ago: not registered */
  SLUICE_WHY_NO_MEMORY_LEFT = 9,  /* the share of memory that may be pinned is taken */
  SLUICE_WHY_NO_DIRECT_PATH = 10, /* no nvidia-fs and no PCIe P2PDMA to this disk */
  SLUICE_WHY_NO_CUFILE = 11,      /* libcufile is not there, or not usable */
  SLUICE_WHY_CUFILE_REFUSED = 12, /* cuFile does not take this file */
  SLUICE_WHY_WRITING = 13,        /* this is how writes go */
  SLUICE_WHY_NOT_PINNED = 14,     /* no host memory could be pinned */
};

/* What a buffer is. ABI: never renumber. */
enum sluice_buffer_kind {
  SLUICE_BUFFER_CUDA_IPC = 1, /* cudaMalloc memory: the handle of cudaIpcGetMemHandle */
  SLUICE_BUFFER_CUDA_FD = 2,  /* memory of the virtual memory API, exported as a file descriptor */
  SLUICE_BUFFER_MEMFD = 3,    /* host memory: a memfd that is sealed with F_SEAL_SHRINK */
};

/* What the daemon is, and how a large read of this file would travel. */
struct sluice_query {
  __u32 abi_version;               /* out: the daemon's */
  __u32 kind;                      /* in: of the buffer (enum sluice_buffer_kind); 0: a GPU's */
  __u8 gpu_uuid[SLUICE_UUID_SIZE]; /* in: which; zero: any */
  __u64 file_size;                 /* out */
  __u32 route;                     /* out */
  __u32 why;                       /* out */
  __u32 alignment;    /* out: multiples of this need no more than is asked for from the disk */
  __u32 max_segments; /* out: of SLUICE_IOC_READV */
  __u32 gpus;         /* out: how many the daemon can use */
  __u32 reserved;
  char tier[32];    /* out: where the file is */
  char reason[192]; /* out: route and why in words, and why not a faster one */
};

/* Makes a buffer known. It belongs to this open file and to the calling process: nobody else can
 * name it, and it ends with either. sluice.h declares a function of the same name: where both are
 * included, C++ needs the word `struct`, too. */
struct sluice_buffer_register {
  __u32 kind;
  __u32 reserved;
  __u64 offset;            /* of the buffer in what the handle or the descriptor stands for */
  __u64 length;            /* of the buffer */
  __u64 allocation_length; /* CUDA_FD: of all that the descriptor stands for; else 0 */
  __s32 fd;                /* CUDA_FD and MEMFD: the caller's; may be closed afterwards */
  __u32 reserved2;
  __u8 gpu_uuid[SLUICE_UUID_SIZE];
  __u8 ipc_handle[SLUICE_IPC_HANDLE_SIZE];
  __u64 buffer; /* out: names it from now on; never 0 */
};

struct sluice_buffer_unregister {
  __u64 buffer;
};

/* One request moves at most so many bytes. */
#define SLUICE_MAX_TRANSFER (256u << 20)

/* Reads from the file into the buffer, or writes from the buffer to the file. Nothing need be
 * aligned. As with read(2) and write(2), fewer bytes than asked for may be done: at the end of the
 * file, beyond SLUICE_MAX_TRANSFER, and when other requests wait. Ask again for the rest; a READ
 * that does none is at the end of the file. */
struct sluice_transfer {
  __u64 buffer;
  __u64 buffer_offset;
  __u64 file_offset;
  __u64 length;
  __u32 route; /* in and out */
  __u32 why;   /* out */
  __u64 done;  /* out: bytes */
  __u64 reserved;
};

struct sluice_segment {
  __u64 buffer_offset;
  __u64 file_offset;
  __u64 length;
};

#define SLUICE_MAX_SEGMENTS 512
#define SLUICE_MAX_SEGMENT (16u << 20) /* bytes of one segment of READV; READ has no such limit */

/* Several reads of one file into one buffer. A segment that meets the end of the file is short, and
 * the others are read. Segments are read in their order; when other requests wait, or beyond
 * SLUICE_MAX_TRANSFER, the last ones are not read: `count` comes back smaller, but not 0. Ask again
 * for the rest. */
struct sluice_readv {
  __u64 buffer;
  __u32 count; /* in: of segments, at most SLUICE_MAX_SEGMENTS; out: of those that were read */
  __u32 route; /* in and out: of the largest segment */
  __u32 why;   /* out */
  __u32 reserved;
  __u64 done; /* out: bytes, all segments together */
  struct sluice_segment segments[SLUICE_MAX_SEGMENTS];
};

#define SLUICE_PREFETCH_WARM 1u    /* read the range into the page cache, in the background */
#define SLUICE_PREFETCH_PROMOTE 2u /* move the file to the fastest tier, in the background */

struct sluice_prefetch {
  __u64 offset;
  __u64 length; /* 0: to the end of the file */
  __u32 flags;  /* SLUICE_PREFETCH_*; WARM if 0 */
  __u32 reserved;
};

/* One route's figures, of reads and writes together, since the mount or the last reset. */
struct sluice_route_stats {
  __u64 operations;
  __u64 failures;
  __u64 bytes;
  __u64 busy_ns; /* time in which at least one such request was under way */
  __u64 latency_sum_ns;
  __u64 latency_p50_ns;
  __u64 latency_p99_ns;
  __u64 peak_bytes_per_second; /* of one request of a MiB or more */
};

#define SLUICE_STATS_ROUTES 8

struct sluice_stats {
  __u8 gpu_uuid[SLUICE_UUID_SIZE]; /* in: of requests to and from this GPU only; zero: of all */
  __u32 flags;                     /* in: SLUICE_STATS_RESET */
  __u32 buffers;                   /* out: registered now */
  __u64 buffer_bytes;              /* out */
  __u64 pinned_bytes;              /* out: host memory pinned for staging */
  __u64 mapped_bytes;              /* out: page cache registered with GPUs */
  struct sluice_route_stats routes[SLUICE_STATS_ROUTES]; /* out: by enum sluice_route; [0]: all */
};

#define SLUICE_STATS_RESET 1u /* after reading them; needs the rights of the mount's owner */

/* Rings: many requests without a system call each. A ring is memory that the process shares with
 * the daemon: a header, a queue of entries from the process, a queue of completions from the
 * daemon. docs/rings.md has the rules. ABI: never move or renumber. */
#define SLUICE_RING_MAGIC 0x52434c53u /* "SLCR" */
#define SLUICE_RING_VERSION 1u
#define SLUICE_RING_MAX_ENTRIES 32768u
#define SLUICE_RING_HEADER_SIZE 4096u /* the entries come behind it, then the completions */

enum sluice_ring_operation {
  SLUICE_RING_NOP = 0, /* completes with 0 */
  SLUICE_RING_READ = 1,
  SLUICE_RING_WRITE = 2,
};

struct sluice_ring_entry {
  __u64 user_data; /* comes back with the completion */
  __u64 file;      /* of RING_ADD_FILE */
  __u64 buffer;    /* of BUFFER_REGISTER on the open file that the ring was made on */
  __u64 buffer_offset;
  __u64 file_offset;
  __u64 length;
  __u32 operation;
  __u32 flags;    /* 0 */
  __u64 reserved; /* 0 */
};

struct sluice_ring_completion {
  __u64 user_data;
  __s64 result; /* bytes, or a negative errno */
  __u32 route;  /* enum sluice_route */
  __u32 why;    /* enum sluice_why */
  __u64 flags;  /* SLUICE_RING_IN_PROCESS */
};

#define SLUICE_RING_IN_PROCESS 1u /* libsluice did it in this process, not the daemon */

/* Each of these words has a cache line of its own. Indexes count up and wrap around; entry i is in
 * place i % entries. */
struct sluice_ring_header {
  __u32 magic;
  __u32 version;
  __u32 entries;     /* a power of two, at most SLUICE_RING_MAX_ENTRIES */
  __u32 completions; /* a power of two, at least as many */
  __u32 reserved[12];
  __u32 submitted; /* the process's: entries before this index are there */
  __u32 padding1[15];
  __u32 taken; /* the daemon's: places of entries before this index are free again */
  __u32 padding2[15];
  __u32 completed; /* the daemon's: completions before this index are there */
  __u32 padding3[15];
  __u32 reaped; /* the process's: places of completions before this index are free again */
  __u32 padding4[15];
  __u32 sleeping; /* 1: the daemon sleeps; whoever sets it to 0 wakes it: a futex, shared */
  __u32 padding5[15];
  __u32 waiting; /* 1: the process waits for completions */
  __u32 padding6[15];
  __u32 bell; /* counts up when something came for one that waits: a futex, shared */
  __u32 padding7[15];
  __u32 ended; /* the daemon's: not 0: the errno for which it serves the ring no more */
  __u32 padding8[15];
};

/* Makes a ring of a memfd, sealed against shrinking, that begins with a filled in header. It
 * belongs to this open file and to the calling process, and ends with either. */
struct sluice_ring_create {
  __s32 fd; /* the caller's; may be closed afterwards */
  __u32 reserved;
  __u64 length; /* of all of it */
  __u64 ring;   /* out: names it from now on; never 0 */
};

/* Returns when nothing of it is under way any more. */
struct sluice_ring_destroy {
  __u64 ring;
};

/* Lets entries of the ring name the file that this is asked of, for what it is open for. Ends with
 * the open file, or by RING_DROP_FILE, which returns when nothing of it is under way any more. */
struct sluice_ring_file {
  __u64 ring;
  __u64 file; /* RING_ADD_FILE: out, never 0 */
};

#define SLUICE_IOC_TYPE 0xE6
#define SLUICE_IOC_QUERY _IOWR(SLUICE_IOC_TYPE, 1, struct sluice_query)
#define SLUICE_IOC_BUFFER_REGISTER _IOWR(SLUICE_IOC_TYPE, 2, struct sluice_buffer_register)
#define SLUICE_IOC_BUFFER_UNREGISTER _IOWR(SLUICE_IOC_TYPE, 3, struct sluice_buffer_unregister)
#define SLUICE_IOC_READ _IOWR(SLUICE_IOC_TYPE, 4, struct sluice_transfer)
#define SLUICE_IOC_WRITE _IOWR(SLUICE_IOC_TYPE, 5, struct sluice_transfer)
#define SLUICE_IOC_READV _IOWR(SLUICE_IOC_TYPE, 6, struct sluice_readv)
#define SLUICE_IOC_PREFETCH _IOWR(SLUICE_IOC_TYPE, 7, struct sluice_prefetch)
#define SLUICE_IOC_STATS _IOWR(SLUICE_IOC_TYPE, 8, struct sluice_stats)
#define SLUICE_IOC_RING_CREATE _IOWR(SLUICE_IOC_TYPE, 9, struct sluice_ring_create)
#define SLUICE_IOC_RING_DESTROY _IOWR(SLUICE_IOC_TYPE, 10, struct sluice_ring_destroy)
#define SLUICE_IOC_RING_ADD_FILE _IOWR(SLUICE_IOC_TYPE, 11, struct sluice_ring_file)
#define SLUICE_IOC_RING_DROP_FILE _IOWR(SLUICE_IOC_TYPE, 12, struct sluice_ring_file)

#endif
