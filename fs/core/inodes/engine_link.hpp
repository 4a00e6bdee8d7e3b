// SPDX-License-Identifier: BSD-2-Clause
// EngineLink gives the core access to the GPU engine, if there is one, and makes the engine release
// files. The engine keeps mappings and handles of files. They would keep a deleted file's blocks
// allocated and would prevent the lease that a move needs.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "base/check.hpp"
#include "gpu/engine.hpp"

namespace sluice {

class EngineLink {
 public:
  explicit EngineLink(Engine* engine) : engine_(engine) {}

  Engine* engine() const { return engine_; }
  // The engine, for a request after which it keeps a file. CHECKED: there is an engine.
  Engine& use() {
    SLUICE_CHECK(engine_ != nullptr, "there is an engine");
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
  std::atomic<bool> in_use_{false};  // the engine may keep files; never becomes false again
};

}  // namespace sluice
