// SPDX-License-Identifier: BSD-2-Clause
#include "client/layers.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <system_error>

#include "base/thread.hpp"
#include "client/signals_blocked.hpp"
#include "client/stream.hpp"

namespace sluice {
namespace {

// How often the GPU is checked while its stream has a release.
constexpr std::chrono::milliseconds kLookEvery{100};

using std::chrono::steady_clock;

// The GPU of the calling thread's context.
Device* current_device(Devices& devices, const CudaApi& api) {
  CUdevice ordinal = 0;
  if (api.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) return nullptr;
  for (const auto& device : devices.all()) {
    if (device->ordinal() == ordinal) return device.get();
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<Layers>> Layers::create(Library& library, std::vector<const Model*> models,
                                               Buffer& buffer, std::uint64_t offset,
                                               std::size_t slots, bool again) {
  if (models.empty()) return Error{EINVAL, "at least one layer is needed"};
  if (slots == 0) return Error{EINVAL, "at least one slot is needed"};
  std::uint64_t largest = 0;
  for (const Model* model : models) largest = std::max(largest, model->arena());
  const std::uint64_t length = buffer.length();
  if (offset > length || (largest != 0 && slots > (length - offset) / largest)) {
    return Error{ERANGE, "load a layer",
                 "stream layers: " + std::to_string(slots) + " slots of " +
                     std::to_string(largest) +
                     " bytes (the largest layer) do not fit into the buffer at this offset"};
  }
  SLUICE_TRY(wait_for_default_stream(library, buffer));
  slots = std::min(slots, models.size());
  std::unique_ptr<Layers> layers(new Layers(library, std::move(models), buffer, again));
  {
    const MutexLock lock(layers->mutex_);
    layers->slots_.resize(slots);
    for (std::size_t i = 0; i < slots; ++i) {
      layers->slots_[i].owner = layers.get();
      layers->slots_[i].offset = offset + i * largest;
    }
  }
  const SignalsBlocked blocked;
  try {
    layers->thread_ = std::thread([self = layers.get()] { self->work(); });
  } catch (const std::system_error&) {
    return Error{EAGAIN, "start a thread"};
  }
  return layers;
}

Layers::~Layers() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  const MutexLock lock(mutex_);
  wait([&]() REQUIRES(mutex_) { return !has_releasing(); });
}

bool Layers::has_releasing() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.state == State::Releasing; });
}

template <typename Condition>
void Layers::wait(const Condition& is_so) {
  auto look_at = steady_clock::now() + kLookEvery;
  while (!is_so()) {
    if (changed_.wait_until(mutex_, look_at)) continue;
    look_at = steady_clock::now() + kLookEvery;
    if (is_so() || !has_releasing()) continue;
    Device* const device = device_;
    mutex_.unlock();  // CUDA may be about to call on_released()
    const bool is_over = is_lost(device);
    mutex_.lock();
    if (!is_over) continue;
    for (Slot& slot : slots_) {
      if (slot.state == State::Releasing) slot.state = State::Empty;
    }
    changed_.notify_all();
  }
}

// After an error of a context, CUDA calls no more host functions in its streams, and every other
// call returns the error. The stream itself can't be queried: it may already be destroyed.
bool Layers::is_lost(Device* device) noexcept {
  if (device == nullptr) return false;
  try {
    const ContextKeeper keeper(&device->api());
    if (!device->enter()) return device->is_lost();
    std::size_t free = 0, total = 0;
    const CUresult code = device->api().cuMemGetInfo(&free, &total);
    if (code != CUDA_SUCCESS) static_cast<void>(device->failed(code, "watch a stream"));
    return device->is_lost();
  } catch (...) {  // out of memory; try again later
    return false;
  }
}

Layers::Slot* Layers::find(std::size_t layer) {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.state != State::Empty && slot.state != State::Releasing && slot.layer == layer;
  });
  return found != slots_.end() ? &*found : nullptr;
}

std::size_t Layers::distance(std::size_t layer) const {
  if (layer >= position_) return layer - position_;
  return again_ ? layer + models_.size() - position_ : SIZE_MAX;
}

Layers::Slot* Layers::room(std::size_t from_distance) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.state == State::Empty) return &slot;
    const bool is_free = slot.state == State::Ready || slot.state == State::Failed;
    if (!is_free || distance(slot.layer) < from_distance) continue;
    if (std::find(waited_for_.begin(), waited_for_.end(), slot.layer) != waited_for_.end()) {
      continue;
    }
    if (best == nullptr || distance(slot.layer) > distance(best->layer)) best = &slot;
  }
  return best;
}

// Returns a layer that a caller waits for, or else the nearest missing layer, counted from the last
// requested one. Acquired slots may leave room for fewer layers than are needed; the nearer one
// must then get the slot.
std::optional<Layers::Task> Layers::next_task() {
  for (const std::size_t layer : waited_for_) {
    if (find(layer) != nullptr) continue;
    if (Slot* const slot = room(0)) return Task{slot, layer};
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::size_t layer = (position_ + i) % models_.size();
    if (distance(layer) != i) break;  // no layer follows the last
    if (find(layer) != nullptr) continue;
    if (Slot* const slot = room(i + 1)) return Task{slot, layer};
    return std::nullopt;
  }
  return std::nullopt;
}

void Layers::work() noexcept {
  begin_thread("sluice-layers");
  MutexLock lock(mutex_);
  for (;;) {
    std::optional<Task> task;
    while (!stopped_ && !(task = next_task())) changed_.wait(mutex_);
    if (stopped_) return;
    task->slot->state = State::Loading;
    task->slot->layer = task->layer;
    lock.unlock();
    load(*task);
    lock.lock();
    changed_.notify_all();
  }
}

void Layers::load(const Task& task) noexcept {
  std::optional<Error> error;
  try {
    const auto done =
        models_[task.layer]->load(library_, buffer_, task.slot->offset, [this](std::uint64_t) {
          const MutexLock lock(mutex_);
          return !stopped_;
        });
    if (!done) error = done.error();
  } catch (...) {  // no memory for the error text
    error = Error{ENOMEM, "load a layer"};
  }
  const MutexLock lock(mutex_);
  task.slot->state = error ? State::Failed : State::Ready;
  task.slot->error = std::move(error);
}

Result<std::uint64_t> Layers::acquire(std::size_t layer) {
  if (layer >= models_.size()) return Error{EINVAL, "there is no such layer"};
  const MutexLock lock(mutex_);
  if (const Slot* slot = find(layer); slot != nullptr && slot->state == State::Acquired) {
    return Error{EBUSY, "the layer is already acquired"};
  }
  if (std::all_of(slots_.begin(), slots_.end(),
                  [](const Slot& slot) { return slot.state == State::Acquired; })) {
    return Error{EBUSY, "the layers in all slots are acquired; release one"};
  }
  position_ = layer;
  waited_for_.push_back(layer);
  changed_.notify_all();
  Slot* slot = nullptr;
  wait([&]() REQUIRES(mutex_) {
    slot = find(layer);
    return slot != nullptr && slot->state != State::Loading;
  });
  waited_for_.erase(std::find(waited_for_.begin(), waited_for_.end(), layer));
  if (slot->state == State::Acquired) {
    return Error{EBUSY, "another thread has acquired the layer"};
  }
  if (slot->state == State::Failed) {
    slot->state = State::Empty;
    changed_.notify_all();
    return *std::exchange(slot->error, std::nullopt);
  }
  slot->state = State::Acquired;
  return slot->offset;
}

Result<Layers::Slot*> Layers::acquired(std::size_t layer) {
  Slot* const slot = find(layer);
  if (slot == nullptr || slot->state != State::Acquired) {
    return Error{EINVAL, "the layer is not acquired"};
  }
  return slot;
}

Result<void> Layers::release(std::size_t layer) {
  SLUICE_TRY(wait_for_default_stream(library_, buffer_));
  const MutexLock lock(mutex_);
  SLUICE_TRY(acquired(layer))->state = State::Ready;
  changed_.notify_all();
  return {};
}

Result<void> Layers::release(std::size_t layer, void* stream) {
  Devices* devices = library_.devices_in_use();
  if (devices == nullptr || devices->all().empty()) {
    return Error{ENODEV, "this process does not use CUDA"};
  }
  Device& device = buffer_.device() != nullptr ? *buffer_.device() : *devices->all().front();
  library_.note(device);
  const CudaApi& api = device.api();
  const ContextKeeper keeper(&api);
  CUcontext current = nullptr;
  if (api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr) {
    SLUICE_TRY(device.enter());
  }
  SLUICE_TRY(check_stream(api, static_cast<CUstream>(stream)));
  Device* const in_use = current_device(*devices, api);
  Slot* slot = nullptr;
  {
    const MutexLock lock(mutex_);
    slot = SLUICE_TRY(acquired(layer));
    slot->state = State::Releasing;
    device_ = in_use != nullptr ? in_use : &device;
  }
  // Called without the lock, because the stream may reach the release before this returns.
  if (const auto code =
          api.cuLaunchHostFunc(static_cast<CUstream>(stream), &Layers::on_released, slot);
      code != CUDA_SUCCESS) {
    const MutexLock lock(mutex_);
    if (slot->state == State::Releasing) slot->state = State::Acquired;
    return device.failed(code, "put the release into the stream");
  }
  return {};
}

void Layers::on_released(void* user) noexcept {
  auto& slot = *static_cast<Slot*>(user);
  Layers& layers = *slot.owner;
  // Notified under the lock, because the thread that is woken may destroy this object.
  const MutexLock lock(layers.mutex_);
  if (slot.state != State::Releasing) return;
  slot.state = State::Empty;
  layers.changed_.notify_all();
}

}  // namespace sluice
