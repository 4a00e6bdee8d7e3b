// SPDX-License-Identifier: BSD-2-Clause
// Layers streams the layers of a model through a few slots of a buffer. Its own thread loads the
// next layers while the caller uses one.
//
// Threads: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "client/library.hpp"
#include "client/model.hpp"

namespace sluice {

class Layers {
 public:
  // REQUIRES: models and buffer outlive it. EINVAL: no models or no slots. ERANGE: the buffer is
  // too small for the slots. With `again`, the first layer follows the last.
  static Result<std::unique_ptr<Layers>> create(Library& library, std::vector<const Model*> models,
                                                Buffer& buffer, std::uint64_t offset,
                                                std::size_t slots, bool again);
  // Waits for a load in progress, and for releases that are still in streams. If their GPU is lost,
  // it does not wait: the stream will never reach them.
  ~Layers();
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  // Waits until the layer is loaded and returns its offset in the buffer. EBUSY: it is already
  // acquired, or the layers in all slots are. Other errors tell why it could not be loaded; the
  // next call loads it again. A layer that a caller waits for is loaded first, and stays until that
  // caller has it.
  Result<std::uint64_t> acquire(std::size_t layer);
  // EINVAL: the layer is not acquired. EOPNOTSUPP: the stream is being captured into a graph.
  Result<void> release(std::size_t layer);
  Result<void> release(std::size_t layer, void* stream);

 private:
  enum class State {
    Empty,
    Loading,
    Ready,
    Failed,     // the layer could not be loaded; no caller knows yet
    Acquired,   // a caller uses it
    Releasing,  // free when the stream reaches the release
  };
  struct Slot {
    Layers* owner = nullptr;
    std::uint64_t offset = 0;  // in the buffer
    State state = State::Empty;
    std::size_t layer = 0;
    std::optional<Error> error = {};  // of the failure
  };
  struct Task {
    Slot* slot;
    std::size_t layer;
  };

  Layers(Library& library, std::vector<const Model*> models, Buffer& buffer, bool again)
      : library_(library), models_(std::move(models)), buffer_(buffer), again_(again) {}

  void work() noexcept;
  void load(const Task& task) noexcept;          // without the lock
  static void on_released(void* slot) noexcept;  // called when the stream reaches the release
  static bool is_lost(Device* device) noexcept;  // without the lock

  // Waits until `is_so()` returns true.
  template <typename Condition>
  void wait(const Condition& is_so) REQUIRES(mutex_);

  bool has_releasing() const REQUIRES(mutex_);
  Slot* find(std::size_t layer) REQUIRES(mutex_);
  std::optional<Task> next_task() REQUIRES(mutex_);
  // Finds a slot for another layer: an empty one, or the one whose layer is needed last. That layer
  // must be at least `from_distance` away, and no caller may wait for it. Null if there is no such
  // slot.
  Slot* room(std::size_t from_distance) REQUIRES(mutex_);
  // The number of layers from the last requested one to this one; SIZE_MAX if it will not be
  // needed.
  std::size_t distance(std::size_t layer) const REQUIRES(mutex_);
  Result<Slot*> acquired(std::size_t layer) REQUIRES(mutex_);

  Library& library_;
  const std::vector<const Model*> models_;
  Buffer& buffer_;
  const bool again_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);  // the size never changes
  // The last requested layer; the layers after it are needed next.
  std::size_t position_ GUARDED_BY(mutex_) = 0;
  // Layers that callers wait for, in the order of the requests.
  std::vector<std::size_t> waited_for_ GUARDED_BY(mutex_);
  Device* device_ GUARDED_BY(mutex_) = nullptr;  // of the stream with the last release
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice

// The handle that C programs see.
struct sluice_layers {
  std::unique_ptr<sluice::Layers> layers;
};
