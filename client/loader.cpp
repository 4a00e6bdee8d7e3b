// SPDX-License-Identifier: BSD-2-Clause
// The functions of loader.h.
#include "client/include/sluice/loader.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "client/barrier.hpp"
#include "client/layers.hpp"
#include "client/model.hpp"
#include "client/stream.hpp"

// ABI: grows at the end only.
static_assert(sizeof(struct sluice_tensor) == 80 && offsetof(sluice_tensor, file) == 56);
static_assert(sizeof(struct sluice_range) == 40);

namespace sluice {
namespace {

// Passes ownership of the new object to the caller.
template <auto Member, typename Value, typename Handle>
Result<std::int64_t> hand_over(Result<std::unique_ptr<Value>> made, Handle** handle) {
  if (!made) return made.error();
  auto owner = std::make_unique<Handle>();
  owner.get()->*Member = *std::move(made);
  *handle = owner.release();
  return 0;
}

constexpr Operation kNoModel = "a model must not be NULL";
constexpr Operation kNoPlace = "the output argument must not be NULL";
constexpr Operation kNoBuffer = "buffer must not be NULL";
constexpr Operation kNoLayers = "layers must not be NULL";

}  // namespace
}  // namespace sluice

using namespace sluice;  // NOLINT(google-build-using-namespace): C functions have no namespace.

SLUICE_API int sluice_model_open(const char* path, sluice_model** model) {
  return static_cast<int>(barrier("open a model", path, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(path != nullptr, "path must not be NULL"));
    SLUICE_TRY(need(model != nullptr, kNoPlace));
    return hand_over<&sluice_model::model>(Model::open(path), model);
  }));
}

SLUICE_API int sluice_model_open_ranges(const struct sluice_range* ranges, size_t count,
                                        sluice_model** model) {
  return static_cast<int>(barrier("open ranges", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(ranges != nullptr || count == 0, "ranges must not be NULL"));
    SLUICE_TRY(need(model != nullptr, kNoPlace));
    return hand_over<&sluice_model::model>(Model::open(std::span(ranges, count)), model);
  }));
}

SLUICE_API int sluice_model_select(const sluice_model* model, const char* const* names,
                                   size_t count, sluice_model** part) {
  return static_cast<int>(barrier("select tensors", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(model != nullptr, kNoModel));
    SLUICE_TRY(need(names != nullptr || count == 0, "names must not be NULL"));
    SLUICE_TRY(need(part != nullptr, kNoPlace));
    return hand_over<&sluice_model::model>(model->model->select(std::span(names, count)), part);
  }));
}

SLUICE_API void sluice_model_close(sluice_model* model) { delete model; }

SLUICE_API size_t sluice_model_count(const sluice_model* model) {
  return model != nullptr ? model->model->tensors().size() : 0;
}

SLUICE_API const struct sluice_tensor* sluice_model_tensor(const sluice_model* model,
                                                           size_t index) {
  return index < sluice_model_count(model) ? &model->model->tensors()[index] : nullptr;
}

SLUICE_API const struct sluice_tensor* sluice_model_find(const sluice_model* model,
                                                         const char* name) {
  return model != nullptr && name != nullptr ? model->model->find(name) : nullptr;
}

SLUICE_API uint64_t sluice_model_arena(const sluice_model* model) {
  return model != nullptr ? model->model->arena() : 0;
}

SLUICE_API ssize_t sluice_model_load(sluice_model* model, sluice_buffer* buffer,
                                     size_t buffer_offset, sluice_progress progress, void* user,
                                     struct sluice_result* result) {
  return barrier("load a model", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(model != nullptr, kNoModel));
    const Model& loaded = *model->model;
    // An empty model needs no buffer, and memory of size 0 can't be registered.
    SLUICE_TRY(need(buffer != nullptr || loaded.bytes() == 0, kNoBuffer));
    Model::Progress tell;
    if (progress != nullptr) {
      tell = [&](std::uint64_t done) { return progress(user, done, loaded.bytes()) == 0; };
    }
    Outcome outcome;
    if (loaded.bytes() > 0) {
      SLUICE_TRY(wait_for_default_stream(Library::get(), *buffer->buffer));
      outcome = SLUICE_TRY(loaded.load(Library::get(), *buffer->buffer, buffer_offset, tell));
    }
    if (result != nullptr) *result = result_of(outcome);
    return static_cast<std::int64_t>(outcome.transfer.bytes);
  });
}

SLUICE_API ssize_t sluice_tensor_read(const struct sluice_tensor* tensor, uint64_t first,
                                      uint64_t count, sluice_buffer* buffer, size_t buffer_offset,
                                      struct sluice_result* result) {
  const File* file = tensor != nullptr ? tensor->file->file.get() : nullptr;
  return barrier("read rows", file, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(tensor != nullptr, "tensor must not be NULL"));
    if (first > tensor->rows || count > tensor->rows - first) {
      return Error{ERANGE, "read rows",
                   "read rows " + std::to_string(first) + " to " + std::to_string(first + count) +
                       ": " + quoted_name(tensor->name) + " has " + std::to_string(tensor->rows)};
    }
    const auto length = count * tensor->row_bytes;
    const auto done = sluice_read(tensor->file, buffer, buffer_offset, length,
                                  tensor->file_offset + first * tensor->row_bytes, result);
    if (done < 0) return Error{static_cast<int>(-done), "read rows", sluice_error()};
    return done;
  });
}

SLUICE_API int sluice_layers_open(sluice_model* const* models, size_t count, sluice_buffer* buffer,
                                  size_t buffer_offset, size_t slots, uint32_t flags,
                                  sluice_layers** layers) {
  return static_cast<int>(barrier("stream layers", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(models != nullptr || count == 0, kNoModel));
    SLUICE_TRY(need(buffer != nullptr, kNoBuffer));
    SLUICE_TRY(need((flags & ~SLUICE_LAYERS_AGAIN) == 0, "unknown flag"));
    SLUICE_TRY(need(layers != nullptr, "layers must not be NULL"));
    std::vector<const Model*> all;
    for (size_t i = 0; i < count; ++i) {
      SLUICE_TRY(need(models[i] != nullptr, kNoModel));
      all.push_back(models[i]->model.get());
    }
    return hand_over<&sluice_layers::layers>(
        Layers::create(Library::get(), std::move(all), *buffer->buffer, buffer_offset, slots,
                       (flags & SLUICE_LAYERS_AGAIN) != 0),
        layers);
  }));
}

SLUICE_API int64_t sluice_layers_acquire(sluice_layers* layers, size_t layer) {
  return barrier("acquire a layer", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(layers != nullptr, kNoLayers));
    return static_cast<std::int64_t>(SLUICE_TRY(layers->layers->acquire(layer)));
  });
}

SLUICE_API int sluice_layers_release(sluice_layers* layers, size_t layer) {
  return static_cast<int>(barrier("release a layer", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(layers != nullptr, kNoLayers));
    SLUICE_TRY(layers->layers->release(layer));
    return 0;
  }));
}

SLUICE_API int sluice_layers_release_stream(sluice_layers* layers, size_t layer, void* stream) {
  return static_cast<int>(barrier("release a layer", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(layers != nullptr, kNoLayers));
    SLUICE_TRY(layers->layers->release(layer, stream));
    return 0;
  }));
}

SLUICE_API void sluice_layers_close(sluice_layers* layers) { delete layers; }
