// SPDX-License-Identifier: BSD-2-Clause
// Parses the headers of safetensors files, and the index of several. The JSON is not trusted. Only
// expected values are kept, so the size of the text bounds the memory in use.
//
// The format: eight bytes with the length of the header, little-endian; the header; the data, which
// the tensors cover without gaps. https://github.com/huggingface/safetensors#format
//
// A defect in the file is EUCLEAN, and the error's detail says where it is. Pure functions;
// thread-safe.
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
  std::string_view dtype;  // points to a static table
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
};

// The limit that the format defines.
constexpr std::uint64_t kHeaderLimit = 100'000'000;

// Returns the header's length, from the first eight bytes of a file of `file_size` bytes. `where`
// is the file's path, for error texts.
Result<std::uint64_t> parse_header_length(const std::string& where, std::string_view first,
                                          std::uint64_t file_size);
// Returns the tensors, in the order of their bytes.
Result<std::vector<TensorInfo>> parse_header(const std::string& where, std::string_view text,
                                             std::uint64_t file_size);

// Parses an index: the file of each tensor, as a name without a folder.
Result<std::map<std::string, std::string>> parse_index(const std::string& where,
                                                       std::string_view text);

// The name in quotes for error texts, without control characters and shortened.
std::string quoted_name(std::string_view name);

}  // namespace sluice
