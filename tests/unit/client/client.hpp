// SPDX-License-Identifier: BSD-2-Clause
// Shared by the tests of libsluice: files with known content, and handles that close themselves.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/include/sluice/sluice.h"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {

struct Closer {
  void operator()(sluice_file* file) const { sluice_close(file); }
  void operator()(sluice_buffer* buffer) const { sluice_buffer_unregister(buffer); }
};
using FileHandle = std::unique_ptr<sluice_file, Closer>;
using BufferHandle = std::unique_ptr<sluice_buffer, Closer>;

inline FileHandle open_file(const std::string& path, int flags = O_RDONLY) {
  sluice_file* file = nullptr;
  EXPECT_EQ(sluice_open(path.c_str(), flags, 0600, &file), 0) << sluice_error();
  return FileHandle(file);
}

inline BufferHandle register_memory(void* memory, std::size_t length) {
  sluice_buffer* buffer = nullptr;
  EXPECT_EQ(sluice_buffer_register(memory, length, &buffer), 0) << sluice_error();
  return BufferHandle(buffer);
}

// Random bytes, so that no two parts are equal.
inline std::string random_bytes(std::size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size + 8, '\0');
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace sluice::test
