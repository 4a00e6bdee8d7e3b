// SPDX-License-Identifier: BSD-2-Clause
// A Model is a list of named ranges of files, with a place for each in an arena. The ranges are the
// tensors of safetensors files, or were named by the caller.
//
// Ownership: a Model and its parts share the open files.
// Threads: immutable; several threads may load at once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "client/include/sluice/loader.h"
#include "client/library.hpp"
#include "client/request.hpp"
#include "client/safetensors.hpp"

namespace sluice {

class Model {
 public:
  // See loader.h. The text of an error is already set (client/sentence.hpp).
  static Result<std::unique_ptr<Model>> open(const std::string& path);
  static Result<std::unique_ptr<Model>> open(std::span<const struct sluice_range> ranges);
  Result<std::unique_ptr<Model>> select(std::span<const char* const> names) const;

  const std::vector<struct sluice_tensor>& tensors() const { return tensors_; }
  const struct sluice_tensor* find(std::string_view name) const;
  std::uint64_t arena() const { return arena_; }
  std::uint64_t bytes() const { return bytes_; }

  // Returns false to stop the load.
  using Progress = std::function<bool(std::uint64_t done)>;
  // Fills buffer[offset, +arena()) in reads of at most 64 MiB. The calling thread and threads of
  // the library execute several at a time. The text of an error is already set.
  Result<Outcome> load(Library& library, Buffer& buffer, std::uint64_t offset,
                       const Progress& progress) const;

 private:
  // The open files that a model and its parts share.
  struct Files;
  // A tensor and its file.
  struct Entry {
    std::size_t file;
    const TensorInfo* info;
  };

  Model(std::shared_ptr<const Files> files, std::vector<Entry> entries)
      : files_(std::move(files)), entries_(std::move(entries)) {}
  // Assigns a place in the arena to every entry. EOVERFLOW: the arena would be too large.
  Result<void> lay_out();

  const std::shared_ptr<const Files> files_;
  const std::vector<Entry> entries_;  // in the order of their bytes in the files
  std::vector<struct sluice_tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::uint64_t arena_ = 0, bytes_ = 0;
};

}  // namespace sluice

// The handle that C programs see.
struct sluice_model {
  std::unique_ptr<sluice::Model> model;
};
