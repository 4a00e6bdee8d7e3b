// SPDX-License-Identifier: BSD-2-Clause
// A Mapping is the daemon's copy of a file in GPU memory, mapped into this process for reading. It
// is valid until it is destroyed, whatever happens to the file and to the daemon.
//
// Threads: caller locks wait(); the rest is immutable.
#pragma once

#include <memory>
#include <optional>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "client/file.hpp"
#include "client/library.hpp"
#include "gpu/memory.hpp"

namespace sluice {

class Mapping {
 public:
  // `gpu`: in the format of nvidia-smi; null: that of the current CUDA context, or the first one.
  // Every error has a text that tells why the file is not shared. Ready after wait() only.
  static Result<std::unique_ptr<Mapping>> begin(Library& library, File& file, const char* gpu);
  // The same, with wait(). Tries again if somebody wrote to the memory.
  static Result<std::unique_ptr<Mapping>> create(Library& library, File& file, const char* gpu);
  // Waits until the GPU has done the work that it was given.
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Waits until the daemon has checked that nobody wrote to the memory. EAGAIN: somebody did, or
  // the daemon ended; the memory must not be used.
  Result<void> wait();
  const Memory& memory() const { return *memory_; }

 private:
  Mapping(std::unique_ptr<Memory> memory, UniqueFd daemon)
      : memory_(std::move(memory)), daemon_(std::move(daemon)) {}

  std::unique_ptr<Memory> memory_;
  UniqueFd daemon_;  // the connection; closed by wait()
  std::optional<Error> refused_;
};

}  // namespace sluice

// The handle that C programs see.
struct sluice_mapping {
  std::unique_ptr<sluice::Mapping> mapping;
};
