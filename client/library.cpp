// SPDX-License-Identifier: BSD-2-Clause
#include "client/library.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include "base/log.hpp"
#include "client/file.hpp"

namespace sluice {

Library& Library::get() {
  // Never destroyed: when static destructors run, CUDA may be gone already, and threads of ours may
  // still be at work. Nor with the last file: a program that reads one file after the other would
  // pin and unpin memory each time. The process's end frees it all, and the library is linked so
  // that dlclose() leaves its code in place (-z nodelete).
  static std::atomic<Library*> library = [] {
    ::pthread_atfork(nullptr, nullptr, [] { library = new Library(); });
    return new Library();
  }();
  return *library;
}

Library::Library() : engine_(Engine::Settings{}), pool_(*new IoPool()) {
  log::start_in_library("SLUICE_LOG");
}

Devices* Library::devices_in_use() {
  // Whoever has GPU memory has loaded libcuda; to load it for everybody would cost the others some
  // hundred milliseconds, and threads that don't survive a fork.
  if (cuda_ == nullptr && ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == nullptr) {
    return nullptr;
  }
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
  if (api_ != nullptr && api_->cuCtxGetCurrent(&before_) != CUDA_SUCCESS) before_ = nullptr;
}

ContextKeeper::~ContextKeeper() {
  if (api_ != nullptr) api_->cuCtxSetCurrent(before_);
}

}  // namespace sluice
