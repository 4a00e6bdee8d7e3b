/* SPDX-License-Identifier: BSD-2-Clause
 *
 * ring_read [--gpu] [--depth N] [--threads N] [--size BYTES] [--seconds N] FILE: reads a file at
 * random offsets through rings, one per thread, into host memory or GPU memory. It prints the
 * number of reads per second, and compares the last ones with the file.
 *
 *   cc ring_read.c -o ring_read $(pkg-config --cflags --libs sluice) -lpthread
 *      -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart
 */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <sluice/ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct job {
  const char* path;
  unsigned depth;
  size_t size;
  double seconds;
  void* gpu_memory;           /* NULL: host memory */
  uint64_t* offsets;          /* the offset last read into each of `depth` slots */
  uint64_t reads, in_process; /* out */
  int code;                   /* out */
  char error[256];            /* out: sluice_error() belongs to one thread */
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int begin(sluice_ring* ring, const struct job* job, int file, int buffer, uint64_t slot,
                 uint64_t blocks, uint64_t* random) {
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  job->offsets[slot] = (*random >> 33) % blocks * job->size;
  return sluice_ring_read(ring, file, buffer, slot * job->size, job->size, job->offsets[slot],
                          slot);
}

static int work(struct job* job, sluice_ring* ring, sluice_file* file, sluice_buffer* buffer) {
  const int from = sluice_ring_add_file(ring, file), to = sluice_ring_add_buffer(ring, buffer);
  const uint64_t blocks = (uint64_t)sluice_size(file) / job->size;
  if (from < 0 || to < 0 || blocks == 0) return -1;
  struct sluice_ring_completion done[256];
  uint64_t random = (uint64_t)(size_t)job, under_way = 0;
  const double end = now() + job->seconds;
  for (; under_way < job->depth; ++under_way) {
    if (begin(ring, job, from, to, under_way, blocks, &random) < 0) return -1;
  }
  for (;;) {
    if (sluice_ring_submit(ring) < 0) return -1;
    const int got = sluice_ring_wait(ring, done, 256, (unsigned)(under_way + 1) / 2, NULL);
    if (got < 0) return -1;
    const int goes_on = now() < end;
    for (int i = 0; i < got; ++i) {
      if (done[i].result != (int64_t)job->size) return (int)done[i].result;
      job->in_process += done[i].flags & SLUICE_RING_IN_PROCESS;
      ++job->reads;
      if (!goes_on) --under_way;
      if (goes_on && begin(ring, job, from, to, done[i].user_data, blocks, &random) < 0) return -1;
    }
    if (under_way == 0) return 0;
  }
}

/* True if every slot has the bytes of the file. */
static int check(const struct job* job, sluice_buffer* buffer) {
  char* came = malloc(job->size);
  char* wanted = malloc(job->size);
  const int fd = open(job->path, O_RDONLY | O_CLOEXEC);
  int is_right = came != NULL && wanted != NULL && fd >= 0;
  for (unsigned slot = 0; is_right && slot < job->depth; ++slot) {
    if (job->gpu_memory != NULL) {
      const char* from = (const char*)job->gpu_memory + slot * job->size;
      is_right = cudaMemcpy(came, from, job->size, cudaMemcpyDeviceToHost) == cudaSuccess;
    } else {
      memcpy(came, (const char*)sluice_buffer_memory(buffer) + slot * job->size, job->size);
    }
    is_right = is_right &&
               pread(fd, wanted, job->size, (off_t)job->offsets[slot]) == (ssize_t)job->size &&
               memcmp(came, wanted, job->size) == 0;
  }
  close(fd);
  free(came);
  free(wanted);
  return is_right;
}

static void* run(void* argument) {
  struct job* const job = argument;
  sluice_ring* ring = NULL;
  sluice_file* file = NULL;
  sluice_buffer* buffer = NULL;
  job->code = -1;
  if (sluice_open(job->path, O_RDONLY, 0, &file) == 0 &&
      sluice_ring_create(job->depth, &ring) == 0 &&
      (job->gpu_memory != NULL
           ? sluice_buffer_register(job->gpu_memory, job->depth * job->size, &buffer)
           : sluice_buffer_create(job->depth * job->size, &buffer)) == 0) {
    job->code = work(job, ring, file, buffer);
  }
  snprintf(job->error, sizeof job->error, "%s", sluice_error());
  if (job->code == 0 && !check(job, buffer)) {
    job->code = -1;
    snprintf(job->error, sizeof job->error, "the bytes differ from the file");
  }
  sluice_ring_destroy(ring);
  sluice_buffer_unregister(buffer);
  sluice_close(file);
  return NULL;
}

int main(int argc, char** argv) {
  static const struct option kOptions[] = {
      {"gpu", no_argument, NULL, 'g'},           {"depth", required_argument, NULL, 'd'},
      {"threads", required_argument, NULL, 't'}, {"size", required_argument, NULL, 's'},
      {"seconds", required_argument, NULL, 'n'}, {NULL, 0, NULL, 0}};
  struct job job = {.depth = 128, .size = 4096, .seconds = 2};
  unsigned threads = 1;
  int wants_gpu = 0;
  for (int option; (option = getopt_long(argc, argv, "", kOptions, NULL)) != -1;) {
    if (option == 'g') wants_gpu = 1;
    if (option == 'd') job.depth = (unsigned)strtoul(optarg, NULL, 10);
    if (option == 't') threads = (unsigned)strtoul(optarg, NULL, 10);
    if (option == 's') job.size = strtoul(optarg, NULL, 10);
    if (option == 'n') job.seconds = strtod(optarg, NULL);
    if (option == '?') return 2;
  }
  if (optind + 1 != argc || threads == 0 || threads > 64 || job.depth == 0 || job.size == 0) {
    fprintf(stderr,
            "usage: ring_read [--gpu] [--depth N] [--threads N] [--size N] [--seconds N] FILE\n");
    return 2;
  }
  job.path = argv[optind];
  struct job jobs[64];
  pthread_t ids[64];
  void* memory = NULL;
  uint64_t* offsets = calloc((size_t)threads * job.depth, sizeof *offsets);
  if (offsets == NULL) return 1;
  if (wants_gpu && cudaMalloc(&memory, threads * job.depth * job.size) != cudaSuccess) {
    fprintf(stderr, "ring_read: no GPU memory to read into\n");
    return 1;
  }
  for (unsigned i = 0; i < threads; ++i) {
    jobs[i] = job;
    jobs[i].offsets = offsets + i * job.depth;
    if (wants_gpu) jobs[i].gpu_memory = (char*)memory + i * job.depth * job.size;
    if (pthread_create(&ids[i], NULL, run, &jobs[i]) != 0) return 1;
  }
  uint64_t reads = 0, in_process = 0;
  int failed = 0;
  for (unsigned i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    if (jobs[i].code != 0) {
      fprintf(stderr, "ring_read: %s (%d)\n", jobs[i].error, jobs[i].code);
      failed = 1;
    }
    reads += jobs[i].reads;
    in_process += jobs[i].in_process;
  }
  printf("%.0f reads/s of %zu bytes, %u threads, depth %u, %s, into %s memory\n",
         (double)reads / job.seconds, job.size, threads, job.depth,
         in_process > 0 ? "in process" : "by the daemon", wants_gpu ? "GPU" : "host");
  if (wants_gpu) cudaFree(memory);
  free(offsets);
  return failed;
}
