// SPDX-License-Identifier: BSD-2-Clause
// Layers brings the layers of a model through a few slots of a buffer, the next ones while one is
// worked with. A thread of its own loads them.
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
  // REQUIRES: models and buffer outlive it. EINVAL if there are none, or no slots; ERANGE if the
  // buffer has no room for the slots. `again`: after the last layer comes the first.
  static Result<std::unique_ptr<Layers>> create(Library& library, std::vector<const Model*> models,
                                                Buffer& buffer, std::uint64_t offset,
                                                std::size_t slots, bool again);
  // Waits for the load under way, and for releases that are still in streams, unless their GPU is
  // lost: then no stream comes to them.
  ~Layers();
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  // Waits for the layer; returns where it is in the buffer. EBUSY if it is acquired already, or if
  // all slots have layers that are; else why it could not be loaded. The next try loads it anew.
  // What somebody waits for is loaded first, and stays until he has it.
  Result<std::uint64_t> acquire(std::size_t layer);
  // EINVAL if it is not acquired; EOPNOTSUPP while the stream is being captured into a graph.
  Result<void> release(std::size_t layer);
  Result<void> release(std::size_t layer, void* stream);

 private:
  enum class State {
    Empty,
    Loading,
    Ready,
    Failed,   // the layer could not be loaded; nobody has been told yet
    Held,     // the caller works with it
    Leaving,  // as soon as a stream comes to it
  };
  struct Slot {
    Layers* owner = nullptr;
    std::uint64_t offset = 0;  // in the buffer
    State state = State::Empty;
    std::size_t layer = 0;
    std::optional<Error> error = {};  // why it failed
  };
  struct Task {
    Slot* slot;
    std::size_t layer;
  };

  Layers(Library& library, std::vector<const Model*> models, Buffer& buffer, bool again)
      : library_(library), models_(std::move(models)), buffer_(buffer), again_(again) {}

  void work() noexcept;
  void load(const Task& task) noexcept;          // without the lock
  static void left(void* slot) noexcept;         // the stream has come to the release
  static bool is_lost(Device* device) noexcept;  // without the lock

  // Until it is so.
  template <typename Condition>
  void wait(const Condition& is_so) REQUIRES(mutex_);

  bool has_leaving() const REQUIRES(mutex_);
  Slot* find(std::size_t layer) REQUIRES(mutex_);
  std::optional<Task> next_task() REQUIRES(mutex_);
  // For another layer: an empty one, or the one whose layer is wanted latest, if that is no nearer
  // than `from_distance` and nobody waits for it. Null if there is none.
  Slot* room(std::size_t from_distance) REQUIRES(mutex_);
  // From the layer that was asked for last to this one; SIZE_MAX if it does not come.
  std::size_t distance(std::size_t layer) const REQUIRES(mutex_);
  Result<Slot*> held(std::size_t layer) REQUIRES(mutex_);

  Library& library_;
  const std::vector<const Model*> models_;
  Buffer& buffer_;
  const bool again_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);  // as many as there are, from the start
  // The layer that was asked for last; those after it are wanted.
  std::size_t position_ GUARDED_BY(mutex_) = 0;
  // Layers, the first that was asked for first.
  std::vector<std::size_t> waited_for_ GUARDED_BY(mutex_);
  Device* device_ GUARDED_BY(mutex_) = nullptr;  // of the stream that got the last release
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice

// The C name of it.
struct sluice_layers {
  std::unique_ptr<sluice::Layers> layers;
};
