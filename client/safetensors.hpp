// SPDX-License-Identifier: BSD-2-Clause
// The headers of safetensors files, and the index of several: JSON of unknown origin. Nothing is
// kept of it but what it should have, so its size bounds the memory it can cost.
//
// The format: eight bytes with the header's length, little-endian; the header; the data, which the
// tensors cover without holes. https://github.com/huggingface/safetensors#format
//
// What is wrong is EUCLEAN, and the error's detail says where. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace sluice {

struct TensorInfo {
  std::string name;
  std::string_view dtype;  // of a table: for ever
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
};

// The format's own limit.
constexpr std::uint64_t kHeaderLimit = 100'000'000;

// The header's length, from the first eight bytes of a file of `file_size`. `where` is the file's
// path, for messages.
Result<std::uint64_t> parse_header_length(const std::string& where, std::string_view first,
                                          std::uint64_t file_size);
// The tensors, in the order of their bytes.
Result<std::vector<TensorInfo>> parse_header(const std::string& where, std::string_view text,
                                             std::uint64_t file_size);

// An index: which tensor is in which file, a name without a folder.
Result<std::map<std::string, std::string>> parse_index(const std::string& where,
                                                       std::string_view text);

// 'name', for messages: without control characters, and not too long.
std::string quoted_name(std::string_view name);

}  // namespace sluice
