/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The ioctls of a file on a Sluice mount. They copy the file's bytes to and from GPU memory, or to
 * and from host memory that is shared with the daemon. docs/ioctl.md describes each ioctl and its
 * errors.
 *
 * FUSE passes one flat structure of at most 16,383 bytes, so no structure contains a pointer.
 * Structures grow at their end. The size is part of an ioctl's number, but the daemon selects the
 * operation by _IOC_NR alone. It treats fields that an older, shorter structure lacks as zero. A
 * reserved field that is not zero is an error (EINVAL).
 */
#ifndef SLUICE_IOCTL_H
#define SLUICE_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SLUICE_ABI_VERSION 1u

/* The upper bits of the number of a buffer, a ring or a ring's file (number >> SLUICE_EPOCH_SHIFT)
 * are the epoch of the daemon that gave it out: how many daemons served the mount before. A request
 * with a number of an earlier daemon fails with ESTALE: another daemon serves the mount now.
 * Register buffers, rings and files again, and repeat the request. */
#define SLUICE_EPOCH_SHIFT 40

#define SLUICE_UUID_SIZE 16
#define SLUICE_IPC_HANDLE_SIZE 64

/* How bytes travel. In a request: the route to take; if it can't be taken, the request fails with
 * EOPNOTSUPP. AUTO lets the daemon choose. In a reply: the route that was taken. ABI: never
 * renumber. */
enum sluice_route {
  SLUICE_ROUTE_AUTO = 0,
  SLUICE_ROUTE_GDS = 1,      /* cuFile, from the disk to the GPU with no copy in host memory */
  SLUICE_ROUTE_CUFILE = 2,   /* cuFile in its compatibility mode */
  SLUICE_ROUTE_MAPPED = 3,   /* the GPU reads the page cache itself */
  SLUICE_ROUTE_STAGED = 4,   /* through pinned host memory, in pieces, by several threads */
  SLUICE_ROUTE_PAGEABLE = 5, /* pread(2) into plain memory and a copy: if none can be pinned */
  SLUICE_ROUTE_HOST = 6,     /* into host memory, without a GPU */
  SLUICE_ROUTE_HBM = 7,      /* from the daemon's copy of the file in the memory of the GPU */
};

/* Why that route was taken. ABI: never renumber; sluice_why_text() in libsluice returns the text.
 */
enum sluice_why {
  SLUICE_WHY_ASKED = 0,           /* the request asked for this route */
  SLUICE_WHY_FASTEST = 1,         /* nothing prevents the fastest route */
  SLUICE_WHY_HOST_MEMORY = 2,     /* the buffer is in host memory */
  SLUICE_WHY_SMALL = 3,           /* the request is too small for a faster route to pay off */
  SLUICE_WHY_CACHED = 4,          /* the page cache has the bytes: a copy beats the disk */
  SLUICE_WHY_NOT_CACHED = 5,      /* the page cache does not have the bytes */
  SLUICE_WHY_REGISTERED = 6,      /* the file's page cache is already registered with the GPU */
  SLUICE_WHY_READ_ONCE = 7,       /* registering pays off from the second read on */
  SLUICE_WHY_CHANGED = 8,         /* the file changed recently, so it is not registered */
  SLUICE_WHY_NO_MEMORY_LEFT = 9,  /* the share of memory that may be pinned is used up */
  SLUICE_WHY_NO_DIRECT_PATH = 10, /* no nvidia-fs and no PCIe P2PDMA to this disk */
  SLUICE_WHY_NO_CUFILE = 11,      /* libcufile is missing or unusable */
  SLUICE_WHY_CUFILE_REFUSED = 12, /* cuFile does not accept this file */
  SLUICE_WHY_WRITING = 13,        /* all writes take this route */
  SLUICE_WHY_NOT_PINNED = 14,     /* no host memory could be pinned */
  SLUICE_WHY_IN_HBM = 15,         /* the file is in the memory of the GPU already */
  SLUICE_WHY_FILLING_HBM = 16,    /* the request also put the file into the memory of the GPU */
};

/* The kind of a buffer. ABI: never renumber. */
enum sluice_buffer_kind {
  SLUICE_BUFFER_CUDA_IPC = 1, /* cudaMalloc memory: the handle of cudaIpcGetMemHandle */
  SLUICE_BUFFER_CUDA_FD = 2,  /* memory of the virtual memory API, exported as a file descriptor */
  SLUICE_BUFFER_MEMFD = 3,    /* host memory: a memfd that is sealed with F_SEAL_SHRINK */
};

/* Asks what the daemon supports, and which route a large read of this file would take. */
struct sluice_query {
  __u32 abi_version; /* out: the daemon's ABI version */
  __u32 kind;        /* in: kind of the buffer (enum sluice_buffer_kind); 0: GPU memory */
  __u8 gpu_uuid[SLUICE_UUID_SIZE]; /* in: the buffer's GPU; zero: any GPU */
  __u64 file_size;                 /* out */
  __u32 route;                     /* out */
  __u32 why;                       /* out */
  __u32 alignment;                 /* out: alignment of the disk; requests need none */
  __u32 max_segments;              /* out: limit for SLUICE_IOC_READV */
  __u32 gpus;                      /* out: number of GPUs that the daemon can use */
  __u32 epoch;                     /* out: of the daemon; see SLUICE_EPOCH_SHIFT */
  char tier[32];                   /* out: the file's tier */
  char reason[192];                /* out: route and reason in words, and why not a faster route */
};

/* Registers a buffer. The buffer belongs to this open file and to the calling process: no other
 * process or open file can use it, and it ends when either ends. sluice.h declares a function with
 * the same name, so C++ code that includes both headers must write `struct sluice_buffer_register`.
 */
struct sluice_buffer_register {
  __u32 kind;
  __u32 reserved;
  __u64 offset;            /* of the buffer in the allocation (CUDA_*) or the memfd */
  __u64 length;            /* of the buffer */
  __u64 allocation_length; /* CUDA_FD: size of the whole allocation; otherwise 0 */
  __s32 fd; /* CUDA_FD, MEMFD: a descriptor of the caller; may be closed afterwards */
  __u32 reserved2;
  __u8 gpu_uuid[SLUICE_UUID_SIZE];
  __u8 ipc_handle[SLUICE_IPC_HANDLE_SIZE];
  __u64 buffer; /* out: the buffer's id, never 0 */
};

struct sluice_buffer_unregister {
  __u64 buffer;
};

/* Reads from the file into the buffer, or writes from the buffer to the file. Offsets and lengths
 * need no alignment. As with read(2) and write(2), `done` may be less than `length`: at the end of
 * the file, before an error, and when another daemon takes over. Call again for the rest. A READ
 * with `done` 0 is at the end of the file. */
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
/* The most bytes of one segment of READV; READ has no such limit. */
#define SLUICE_MAX_SEGMENT (16u << 20)

/* Reads several ranges of one file into one buffer. A segment that reaches the end of the file is
 * short; the others are still read. When another daemon takes over, the last segments may not
 * be read: `count` then comes back smaller, but never 0. Call again for the rest. */
struct sluice_readv {
  __u64 buffer;
  __u32 count; /* in: number of segments, at most SLUICE_MAX_SEGMENTS; out: number read */
  __u32 route; /* in: as in sluice_transfer; out: route of the largest part */
  __u32 why;   /* out */
  __u32 reserved;
  __u64 done; /* out: bytes of all segments together */
  struct sluice_segment segments[SLUICE_MAX_SEGMENTS];
};

/* The most records of one GATHER. */
#define SLUICE_MAX_RECORDS (16u << 20)

/* Copies records of one size by number, from the file's copy in GPU memory (route hbm): record
 * index[i] goes to buffer_offset + i * record_bytes of the buffer. `index` is a registered buffer
 * of 64-bit numbers, on the GPU of the other. Fewer records are copied if they are too many for one
 * request; call again for the rest. EOPNOTSUPP: the file has no such copy, so that its records must
 * be read in another way. ERANGE: a number is out of range; others may have been copied. */
struct sluice_records {
  __u64 buffer;
  __u64 buffer_offset;
  __u64 index;        /* the buffer with the numbers */
  __u64 index_offset; /* of the first number, a multiple of 8 */
  __u64 file_offset;  /* of record 0 */
  __u32 count;        /* of numbers, at most SLUICE_MAX_RECORDS */
  __u32 record_bytes;
  __u32 route; /* out */
  __u32 why;   /* out */
  __u64 done;  /* out: bytes */
  __u64 reserved;
};

#define SLUICE_PREFETCH_WARM 1u    /* read the range into the page cache, in the background */
#define SLUICE_PREFETCH_PROMOTE 2u /* move the file to the fastest tier, in the background */
#define SLUICE_PREFETCH_HBM 4u     /* copy it into the memory of the first GPU, the same way */

struct sluice_prefetch {
  __u64 offset;
  __u64 length; /* 0: to the end of the file */
  __u32 flags;  /* SLUICE_PREFETCH_*; 0 means WARM */
  __u32 reserved;
};

/* Statistics of one route, reads and writes together, since the mount or the last reset. */
struct sluice_route_stats {
  __u64 operations;
  __u64 failures;
  __u64 bytes;
  __u64 busy_ns; /* time during which at least one such request was in progress */
  __u64 latency_sum_ns;
  __u64 latency_p50_ns;
  __u64 latency_p99_ns;
  __u64 peak_bytes_per_second; /* of a single request of at least 1 MiB */
};

#define SLUICE_STATS_ROUTES 8

struct sluice_stats {
  __u8 gpu_uuid[SLUICE_UUID_SIZE]; /* in: only requests of this GPU; zero: all requests */
  __u32 flags;                     /* in: SLUICE_STATS_RESET */
  __u32 buffers;                   /* out: number registered now */
  __u64 buffer_bytes;              /* out */
  __u64 pinned_bytes;              /* out: host memory pinned for staging */
  __u64 mapped_bytes;              /* out: page cache registered with GPUs */
  struct sluice_route_stats routes[SLUICE_STATS_ROUTES]; /* out: by enum sluice_route; [0]: all */
};

/* Start from zero after this reply. Only root may do this. */
#define SLUICE_STATS_RESET 1u

/* Rings: many requests without a system call for each. A ring is memory that the process shares
 * with the daemon. It has a header, a queue of entries written by the process, and a queue of
 * completions written by the daemon. docs/rings.md has the rules. ABI: never move or renumber. */
#define SLUICE_RING_MAGIC 0x52434c53u /* "SLCR" */
#define SLUICE_RING_VERSION 1u
#define SLUICE_RING_MAX_ENTRIES 32768u
#define SLUICE_RING_HEADER_SIZE 4096u /* the entries follow it, then the completions */

enum sluice_ring_operation {
  SLUICE_RING_NOP = 0, /* completes with 0 */
  SLUICE_RING_READ = 1,
  SLUICE_RING_WRITE = 2,
};

struct sluice_ring_entry {
  __u64 user_data; /* returned in the completion */
  __u64 file;      /* a token from RING_ADD_FILE */
  __u64 buffer;    /* id from BUFFER_REGISTER on the open file that the ring was created on */
  __u64 buffer_offset;
  __u64 file_offset;
  __u64 length;
  __u32 operation;
  __u32 flags;    /* must be 0 */
  __u64 reserved; /* must be 0 */
};

struct sluice_ring_completion {
  __u64 user_data;
  __s64 result; /* bytes, or a negative errno */
  __u32 route;  /* enum sluice_route */
  __u32 why;    /* enum sluice_why */
  __u64 flags;  /* SLUICE_RING_IN_PROCESS */
};

#define SLUICE_RING_IN_PROCESS 1u /* libsluice did it in this process, without the daemon */

/* Each of these words has its own cache line. Indexes count up and wrap around; entry i is in place
 * i % entries. */
struct sluice_ring_header {
  __u32 magic;
  __u32 version;
  __u32 entries;     /* a power of two, at most SLUICE_RING_MAX_ENTRIES */
  __u32 completions; /* a power of two, at least `entries` */
  __u32 reserved[12];
  __u32 submitted; /* written by the process: entries before this index are ready */
  __u32 padding1[15];
  __u32 taken; /* written by the daemon: places of entries before this index are free */
  __u32 padding2[15];
  __u32 completed; /* written by the daemon: completions before this index are ready */
  __u32 padding3[15];
  __u32 reaped; /* written by the process: places of completions before this index are free */
  __u32 padding4[15];
  __u32 sleeping; /* 1: the daemon sleeps; to wake it, set 0 and FUTEX_WAKE (shared futex) */
  __u32 padding5[15];
  __u32 waiting; /* 1: the process waits for completions */
  __u32 padding6[15];
  __u32 bell; /* counts up when a waiting process must look again; a shared futex */
  __u32 padding7[15];
  __u32 ended; /* written by the daemon: if not 0, the errno with which it ended the ring */
  __u32 padding8[15];
};

/* Creates a ring in a memfd that is sealed against shrinking and begins with a filled-in header.
 * The ring belongs to this open file and to the calling process, and ends when either ends. */
struct sluice_ring_create {
  __s32 fd; /* a descriptor of the caller; may be closed afterwards */
  __u32 reserved;
  __u64 length; /* of the whole memory */
  __u64 ring;   /* out: the ring's id, never 0 */
};

/* Ends a ring. Returns when none of its requests is in progress. */
struct sluice_ring_destroy {
  __u64 ring;
};

/* RING_ADD_FILE returns a token for the file it is called on. Entries of the ring may use the file
 * by this token, with the access mode of this open file. The token ends with the open file or with
 * RING_DROP_FILE, which returns when no request with the token is in progress. */
struct sluice_ring_file {
  __u64 ring;
  __u64 file; /* the token, never 0; RING_ADD_FILE: out */
};

#define SLUICE_TOKEN_SIZE 16

/* Asks to share the file's copy in the memory of a GPU, which the process can then map. The file
 * must be open for reading. If `filled` comes back less than `size`, the daemon is still copying
 * the file into the GPU's memory: call again; each call copies a part. Otherwise `token` is set:
 * connect to the Unix stream socket at `socket`, send the token, and receive struct
 * sluice_share_reply and, if its `error` is 0, one descriptor (SCM_RIGHTS) for
 * cuMemImportFromShareableHandle(). A token is valid once, for some seconds, and only for the user
 * who asked. Map the memory for reading only: the daemon checks it before it is shared again, and
 * drops a copy that was written to. */
struct sluice_share {
  __u8 gpu_uuid[SLUICE_UUID_SIZE]; /* in: zero: the first GPU; out: the GPU */
  __u64 size;                      /* out: of the file */
  __u64 filled;                    /* out */
  __u64 allocation_length;         /* out: size of the memory, at least `size` */
  __u64 changed_ns;                /* out: when the file last changed; same value, same content */
  __u8 token[SLUICE_TOKEN_SIZE];   /* out */
  __u64 reserved[2];
  char socket[256]; /* out: an absolute path */
};

/* The first reply comes with the descriptor; the second, when the daemon has checked the memory. */
struct sluice_share_reply {
  __u32 error; /* an errno; ENOENT: the token is unknown, used or too old, or of another user.
                * EAGAIN, in the second: a program wrote to the memory; do not use it, ask again. */
  __u32 reserved;
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
#define SLUICE_IOC_SHARE _IOWR(SLUICE_IOC_TYPE, 13, struct sluice_share)
#define SLUICE_IOC_GATHER _IOWR(SLUICE_IOC_TYPE, 14, struct sluice_records)

#endif
