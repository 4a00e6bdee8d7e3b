// SPDX-License-Identifier: BSD-2-Clause
// Shared by the tests of the loaders: safetensors files, and handles that close themselves.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/include/sluice/loader.h"
#include "tests/unit/client/client.hpp"

namespace sluice::test {

struct ModelCloser {
  void operator()(sluice_model* model) const { sluice_model_close(model); }
  void operator()(sluice_layers* layers) const { sluice_layers_close(layers); }
};
using ModelHandle = std::unique_ptr<sluice_model, ModelCloser>;
using LayersHandle = std::unique_ptr<sluice_layers, ModelCloser>;

inline std::string pack(const std::string& header, const std::string& data = "") {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + data;
}

// A safetensors file of byte tensors, in the given order.
inline std::string pack_tensors(const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
  for (const auto& [name, bytes] : tensors) {
    header += ",\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(bytes.size()) +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + bytes.size()) + "]}";
    data += bytes;
  }
  return pack(header + "}", data);
}

inline ModelHandle open_model(const std::string& path) {
  sluice_model* model = nullptr;
  EXPECT_EQ(sluice_model_open(path.c_str(), &model), 0) << sluice_error();
  return ModelHandle(model);
}

inline ModelHandle select(const ModelHandle& model, const std::vector<const char*>& names) {
  sluice_model* part = nullptr;
  EXPECT_EQ(sluice_model_select(model.get(), names.data(), names.size(), &part), 0)
      << sluice_error();
  return ModelHandle(part);
}

}  // namespace sluice::test
