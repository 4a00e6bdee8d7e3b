// SPDX-License-Identifier: BSD-2-Clause
// A buffer of a GpuService; included only by its sources. Threads: immutable once it is registered.
#pragma once

#include <memory>
#include <utility>

#include "fs/gpu/gpu_service.hpp"

namespace sluice {

struct GpuService::Buffer {
  Buffer(GpuService& owner, std::shared_ptr<ClientProcess> of, uid_t who)
      : service(owner), client(std::move(of)), user(who) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (memory) {
      service.count_.fetch_sub(1);
      service.bytes_.fetch_sub(memory->length());
    }
    MutexLock lock(service.clients_mutex_);
    const auto mine = service.of_user_.find(user);
    if (--mine->second == 0) service.of_user_.erase(mine);
  }

  GpuService& service;
  const std::shared_ptr<ClientProcess> client;
  const uid_t user;
  MemfdLimit::Share share;  // of host memory
  std::unique_ptr<Memory> memory;
};

}  // namespace sluice
