// SPDX-License-Identifier: BSD-2-Clause
// A Model is a list of named pieces of files, with a place for each in an arena: the tensors of
// safetensors files, or ranges that the caller named.
//
// Ownership: a Model and its parts share the open files.
// Threads: immutable; loading may go on in several threads at once.
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
  // See loader.h. Errors have been said.
  static Result<std::unique_ptr<Model>> open(const std::string& path);
  static Result<std::unique_ptr<Model>> open(std::span<const struct sluice_range> ranges);
  Result<std::unique_ptr<Model>> select(std::span<const char* const> names) const;

  const std::vector<struct sluice_tensor>& tensors() const { return tensors_; }
  const struct sluice_tensor* find(std::string_view name) const;
  std::uint64_t arena() const { return arena_; }
  std::uint64_t bytes() const { return bytes_; }

  // False: stop.
  using Progress = std::function<bool(std::uint64_t done)>;
  // Fills buffer[offset, +arena()) in reads of at most 64 MiB, several at a time: those of threads
  // of the library's and of the calling one. Errors have been said.
  Result<Outcome> load(Library& library, Buffer& buffer, std::uint64_t offset,
                       const Progress& progress) const;

 private:
  // What a model and its parts have in common.
  struct Files;
  // One of a file's tensors.
  struct Entry {
    std::size_t file;
    const TensorInfo* info;
  };

  Model(std::shared_ptr<const Files> files, std::vector<Entry> entries)
      : files_(std::move(files)), entries_(std::move(entries)) {}
  // Finds a place for every entry. EOVERFLOW if there are none for all.
  Result<void> lay_out();

  const std::shared_ptr<const Files> files_;
  const std::vector<Entry> entries_;  // in the order of their bytes in the files
  std::vector<struct sluice_tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::uint64_t arena_ = 0, bytes_ = 0;
};

}  // namespace sluice

// The C name of it.
struct sluice_model {
  std::unique_ptr<sluice::Model> model;
};
