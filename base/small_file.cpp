// SPDX-License-Identifier: BSD-2-Clause
#include "base/small_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/unique_fd.hpp"

namespace sluice {

Result<std::string> read_to_end(int fd) {
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::last("read a file");
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

Result<std::string> read_small_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return Error::last("open a file");
  return read_to_end(fd.get());
}

std::string text_of_file(const std::string& path) {
  auto text = read_small_file(path);
  return text ? *std::move(text) : std::string();
}

}  // namespace sluice
