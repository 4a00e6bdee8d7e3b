// SPDX-License-Identifier: BSD-2-Clause
// EngineLink gives the core the GPU engine, if there is one, and tells the engine to let go of
// files: what it keeps of a file (mappings, handles) would keep the file's blocks after a deletion
// and would refuse a move its lease.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "gpu/engine.hpp"

namespace sluice {

class EngineLink {
 public:
  explicit EngineLink(Engine* engine) : engine_(engine) {}

  Engine* engine() const { return engine_; }
  // The engine, for a request that makes it remember a file. REQUIRES: there is one.
  Engine& use() {
    in_use_ = true;
    return *engine_;
  }
  bool is_in_use() const { return in_use_; }

  void forget(int fd) {
    if (in_use_) engine_->forget({.fd = fd});
  }
  void forget(const FileId& file) {
    if (in_use_) engine_->forget_file(file);
  }
  void forget_filesystem(dev_t device) {
    if (in_use_) engine_->forget_filesystem(device);
  }

 private:
  Engine* const engine_;
  std::atomic<bool> in_use_{false};  // a file was read through it; only ever turns true
};

}  // namespace sluice
