// SPDX-License-Identifier: BSD-2-Clause
// Parses arbitrary bytes as a safetensors file and as an index. They are refused, or give tensors
// that cover the data. A libFuzzer target (SLUICE_FUZZ=ON, clang); client_test changes random bytes
// of a valid file.
#include <cstdlib>
#include <string_view>

#include "client/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static_cast<void>(parse_index("index", bytes));
  const auto length = parse_header_length("file", bytes.substr(0, 8), size);
  if (!length) return 0;
  const auto tensors = parse_header("file", bytes.substr(8, *length), size);
  if (!tensors) return 0;
  std::uint64_t at = 8 + *length;
  for (const auto& tensor : *tensors) {
    if (tensor.offset != at || tensor.bytes > size - at) std::abort();
    at += tensor.bytes;
  }
  if (at != size) std::abort();
  return 0;
}
