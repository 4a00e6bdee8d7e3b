/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Models and other collections of named pieces of files, into one piece of memory of the caller's.
 *
 * A sluice_model is a list of tensors: of a safetensors file, of all files of an index, or named
 * ranges that the caller describes. It knows where each would lie in an arena, and fills one in
 * large reads, several at a time, with no copy in between. A part of a model is a model, too: that
 * is how layers and other subsets are loaded.
 *
 * Headers are not trusted: what does not add up is EUCLEAN, and sluice_error() names the file, the
 * tensor and what is wrong. The other errors, and threads, are as in sluice.h.
 */
#ifndef SLUICE_LOADER_H
#define SLUICE_LOADER_H

#include "sluice/sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where tensors begin in an arena. */
#define SLUICE_ARENA_ALIGNMENT 256

typedef struct sluice_model sluice_model;
typedef struct sluice_layers sluice_layers;

/* It, and what it points to, belong to the model. Rows are what shape[0] counts (a tensor without
 * dimensions is one row): those of an embedding, the records of a range. sluice_gather takes the
 * file, row_bytes and file_offset as they are here. */
struct sluice_tensor {
  const char* name;
  const char* dtype; /* as safetensors calls it: "BF16"; of a range "U8" */
  const uint64_t* shape;
  uint32_t dimensions;
  uint32_t reserved;
  uint64_t bytes;
  uint64_t rows;
  uint64_t row_bytes;
  sluice_file* file;
  uint64_t file_offset;
  uint64_t arena_offset;
};

/* Rows of one size at some place of a file. */
struct sluice_range {
  const char* path;
  const char* name; /* null: the path */
  uint64_t offset;
  uint64_t row_bytes; /* 0: 1 */
  uint64_t rows;      /* 0: as many whole ones as the file has */
};

/* Opens a safetensors file, an index of several (*.json), or a folder that has either by its usual
 * name: model.safetensors.index.json, model.safetensors. */
int sluice_model_open(const char* path, sluice_model** model);
/* A model of ranges: many whole files, or the kinds of data that one file has. */
int sluice_model_open_ranges(const struct sluice_range* ranges, size_t count, sluice_model** model);
/* A model of some tensors of a model, with an arena of its own; either may be closed first. ENOENT
 * if there is no such tensor. */
int sluice_model_select(const sluice_model* model, const char* const* names, size_t count,
                        sluice_model** part);
/* Not while it is being loaded, nor while layers of it are streamed. */
void sluice_model_close(sluice_model* model);

/* In the order of their bytes in the files. */
size_t sluice_model_count(const sluice_model* model);
/* Null if there is none. */
const struct sluice_tensor* sluice_model_tensor(const sluice_model* model, size_t index);
const struct sluice_tensor* sluice_model_find(const sluice_model* model, const char* name);
/* How large an arena has to be: a multiple of SLUICE_ARENA_ALIGNMENT, or 0. */
uint64_t sluice_model_arena(const sluice_model* model);

/* Reads all tensors to buffer[buffer_offset + arena_offset]. Returns their bytes: all, or an error.
 * `progress`, which may be null, is called in the calling thread now and then, and at the end; if
 * it returns anything but 0, no further read is begun and the load is ECANCELED. */
typedef int (*sluice_progress)(void* user, uint64_t done, uint64_t total);
ssize_t sluice_model_load(sluice_model* model, sluice_buffer* buffer, size_t buffer_offset,
                          sluice_progress progress, void* user, struct sluice_result* result);

/* Reads `count` rows of a tensor from row `first` on. ERANGE if it has no such rows: what lies
 * behind them in the file is somebody else's. */
ssize_t sluice_tensor_read(const struct sluice_tensor* tensor, uint64_t first, uint64_t count,
                           sluice_buffer* buffer, size_t buffer_offset,
                           struct sluice_result* result);

/* Layers (parts of a model, each loaded as one) in turn, the next ones while one is worked with.
 * The buffer has `slots` places for them from `buffer_offset` on, each as large as the largest
 * arena. Loading begins with layer 0; after sluice_layers_acquire(i) it goes on with i + 1, and
 * with SLUICE_LAYERS_AGAIN from the last to the first. Models and buffer must outlive it. */
#define SLUICE_LAYERS_AGAIN 1u
int sluice_layers_open(sluice_model* const* models, size_t count, sluice_buffer* buffer,
                       size_t buffer_offset, size_t slots, uint32_t flags, sluice_layers** layers);
/* Waits until the layer is there, and returns where its arena begins in the buffer. It stays until
 * it is released. EBUSY if it is acquired already, or no slot is left. Any order is right; the next
 * one is fast. */
int64_t sluice_layers_acquire(sluice_layers* layers, size_t layer);
/* The slot may be filled anew: now, or once the CUDA stream has done what it was given so far.
 * EOPNOTSUPP while the stream is being captured into a graph. */
int sluice_layers_release(sluice_layers* layers, size_t layer);
int sluice_layers_release_stream(sluice_layers* layers, size_t layer, void* stream);
/* Waits for reads that are under way, and for streams to come to the releases that they have. */
void sluice_layers_close(sluice_layers* layers);

#ifdef __cplusplus
}
#endif

#endif
