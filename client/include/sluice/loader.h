/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Loads models, and other collections of named ranges of files, into one piece of memory that the
 * caller provides (the arena).
 *
 * A sluice_model is a list of tensors: those of a safetensors file, those of all files of an index,
 * or named ranges that the caller describes. It has a place in the arena for each tensor, and fills
 * the arena with large reads, several at a time, without intermediate copies. A part of a model is
 * also a model; layers and other subsets are loaded that way.
 *
 * File headers are checked before use. An inconsistent file gives EUCLEAN, and sluice_error() names
 * the file, the tensor and what is wrong. Other errors and the rules for threads are those of
 * sluice.h.
 */
#ifndef SLUICE_LOADER_H
#define SLUICE_LOADER_H

#include "sluice/sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the arena, tensors begin at multiples of this. */
#define SLUICE_ARENA_ALIGNMENT 256

typedef struct sluice_model sluice_model;
typedef struct sluice_layers sluice_layers;

/* A tensor, and everything it points to, belongs to the model. shape[0] is the number of rows (a
 * tensor without dimensions is one row): the rows of an embedding, the records of a range. `file`,
 * `row_bytes` and `file_offset` can be passed to sluice_gather() as they are. */
struct sluice_tensor {
  const char* name;
  const char* dtype; /* safetensors' name, such as "BF16"; "U8" for a range */
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

/* Describes a range of a file: rows of one size. */
struct sluice_range {
  const char* path;
  const char* name; /* NULL: the path */
  uint64_t offset;
  uint64_t row_bytes; /* 0 means 1 */
  uint64_t rows;      /* 0: all complete rows up to the end of the file */
};

/* Opens a safetensors file, an index of several (*.json), or a folder that contains
 * model.safetensors.index.json or model.safetensors. */
int sluice_model_open(const char* path, sluice_model** model);
/* Makes a model of ranges, such as many whole files, or several kinds of data in one file. */
int sluice_model_open_ranges(const struct sluice_range* ranges, size_t count, sluice_model** model);
/* Makes a model of some tensors of a model, with its own arena. The two may be closed in any order.
 * ENOENT: there is no tensor with that name. */
int sluice_model_select(const sluice_model* model, const char* const* names, size_t count,
                        sluice_model** part);
/* Must not be called while the model is loaded or while layers of it are streamed. */
void sluice_model_close(sluice_model* model);

/* The number of tensors. They are in the order of their bytes in the files. */
size_t sluice_model_count(const sluice_model* model);
/* These return NULL if there is no such tensor. The tensors are one array, which begins with
 * sluice_model_tensor(model, 0). */
const struct sluice_tensor* sluice_model_tensor(const sluice_model* model, size_t index);
const struct sluice_tensor* sluice_model_find(const sluice_model* model, const char* name);
/* The size of the arena in bytes: a multiple of SLUICE_ARENA_ALIGNMENT, or 0. */
uint64_t sluice_model_arena(const sluice_model* model);

/* Reads every tensor to buffer[buffer_offset + arena_offset]. Returns the number of bytes of all
 * tensors; a load that can't read them all fails. `progress` may be NULL. It is called in the
 * calling thread from time to time, and at the end. If it returns a value other than 0, no further
 * read is started and the load fails with ECANCELED. */
typedef int (*sluice_progress)(void* user, uint64_t done, uint64_t total);
ssize_t sluice_model_load(sluice_model* model, sluice_buffer* buffer, size_t buffer_offset,
                          sluice_progress progress, void* user, struct sluice_result* result);

/* Reads `count` rows of a tensor, starting with row `first`. ERANGE: the tensor has no such rows.
 */
ssize_t sluice_tensor_read(const struct sluice_tensor* tensor, uint64_t first, uint64_t count,
                           sluice_buffer* buffer, size_t buffer_offset,
                           struct sluice_result* result);

/* Streams layers through a buffer. A layer is a model that is loaded as a whole. The buffer has
 * `slots` slots, starting at `buffer_offset`, each as large as the largest arena. The next layers
 * are loaded while the caller uses one. Loading begins with layer 0. After sluice_layers_acquire(i)
 * it continues with i + 1; with SLUICE_LAYERS_AGAIN, layer 0 follows the last layer. Models and
 * buffer must outlive the layers. */
#define SLUICE_LAYERS_AGAIN 1u
int sluice_layers_open(sluice_model* const* models, size_t count, sluice_buffer* buffer,
                       size_t buffer_offset, size_t slots, uint32_t flags, sluice_layers** layers);
/* Waits until the layer is loaded and returns the offset of its arena in the buffer. The layer
 * stays until it is released. EBUSY: it is already acquired, or no slot is free. Layers may be
 * acquired in any order, but only the next ones are loaded in advance. */
int64_t sluice_layers_acquire(sluice_layers* layers, size_t layer);
/* These allow the slot to be filled again. The first waits until the default stream has finished
 * its work so far. The second does not wait: the slot is filled once this CUDA stream has finished
 * its work so far. EOPNOTSUPP: the stream is being captured into a graph. */
int sluice_layers_release(sluice_layers* layers, size_t layer);
int sluice_layers_release_stream(sluice_layers* layers, size_t layer, void* stream);
/* Waits for reads in progress, and for streams to reach the releases that were put into them. */
void sluice_layers_close(sluice_layers* layers);

#ifdef __cplusplus
}
#endif

#endif
