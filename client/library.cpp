// SPDX-License-Identifier: BSD-2-Clause
#include "client/library.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <chrono>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "client/file.hpp"

namespace sluice {

namespace {

// How long registered page cache outlives sluice_close(). It pins memory and keeps the filesystem
// busy, which the program may no longer want.
constexpr std::chrono::seconds kIdle{10};

Mutex g_mutex;                             // held while the library is created, and during fork()
std::atomic<Library*> g_library{nullptr};  // written under the lock, read without it
bool g_cuda_is_the_parents GUARDED_BY(g_mutex) = false;

void before_fork() ACQUIRE(g_mutex) { g_mutex.lock(); }
void in_parent() RELEASE(g_mutex) { g_mutex.unlock(); }

}  // namespace

// A child creates a new library: the parent's threads do not exist in it, and locks may be held.
// It unlocks g_mutex, which before_fork() locked.
void Library::in_child() NO_THREAD_SAFETY_ANALYSIS {
  const Library* const parents = g_library;
  if (parents != nullptr && parents->uses_cuda_) g_cuda_is_the_parents = true;
  g_library = nullptr;
  g_mutex.unlock();
}

Library& Library::get() {
  // The library is never destroyed. Static destructors may run after CUDA has shut down, while our
  // threads are still working. It also outlives the last file, so that a program that reads one
  // file after another does not pin and unpin memory each time. It is linked with -z nodelete, so
  // dlclose() leaves its code in place.
  if (Library* const library = g_library) return *library;
  const MutexLock lock(g_mutex);
  static const int s_watches_forks = ::pthread_atfork(before_fork, in_parent, in_child);
  static_cast<void>(s_watches_forks);
  if (g_library == nullptr) {
    Engine::Settings settings;
    settings.enabled = !g_cuda_is_the_parents;
    settings.mapped_idle = kIdle;
    g_library = new Library(settings);
  }
  return *g_library;
}

Library::Library(const Engine::Settings& settings) : engine_(settings), pool_(*new IoPool()) {
  log::start_in_library("SLUICE_LOG");
}

Devices* Library::devices_in_use() {
  if (!engine_.is_enabled()) return nullptr;
  // A program with GPU memory has loaded libcuda. Loading it in every program would take some
  // hundred milliseconds and start threads that do not survive a fork.
  if (cuda_ == nullptr && ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == nullptr) {
    return nullptr;
  }
  uses_cuda_ = true;
  return &engine_.devices();
}

Result<Devices*> Library::devices() {
  if (!engine_.is_enabled()) return Error{ENODEV, "CUDA does not work after fork()"};
  uses_cuda_ = true;
  if (engine_.devices().all().empty()) return Error{ENODEV, "there is no usable GPU"};
  return &engine_.devices();
}

void Library::add(File& file) {
  const MutexLock lock(mutex_);
  files_.insert(&file);
}

void Library::remove(File& file) {
  const MutexLock lock(mutex_);
  files_.erase(&file);
}

void Library::forget(const Buffer& buffer) {
  const MutexLock lock(mutex_);
  for (File* file : files_) file->forget(buffer);
}

ContextKeeper::ContextKeeper(const CudaApi* api) : api_(api) {
  if (api_ == nullptr) return;
  if (api_->cuCtxGetCurrent(&before_) != CUDA_SUCCESS) before_ = nullptr;
  exchange_mode();
}

ContextKeeper::~ContextKeeper() {
  if (api_ == nullptr) return;
  api_->cuCtxSetCurrent(before_);
  exchange_mode();
}

void ContextKeeper::exchange_mode() {
  if (api_->cuThreadExchangeStreamCaptureMode != nullptr) {
    api_->cuThreadExchangeStreamCaptureMode(&mode_);
  }
}

}  // namespace sluice
