// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/tar_file.hpp"

#include <array>
#include <cstdio>
#include <cstring>

namespace sluice::tools::cli {
namespace {

constexpr std::size_t kBlock = 512;

// POSIX.1-2017, pax: numbers are octal digits, the last byte of a field is 0.
struct Header {
  std::array<char, 100> name{};
  std::array<char, 8> mode{}, uid{}, gid{};
  std::array<char, 12> size{}, time{};
  std::array<char, 8> checksum{};
  char type = '0';
  std::array<char, 100> link{};
  std::array<char, 6> magic{'u', 's', 't', 'a', 'r', 0};
  std::array<char, 2> version{'0', '0'};
  std::array<char, 32> user{}, group{};
  std::array<char, 8> major{}, minor{};
  std::array<char, 155> prefix{};
  std::array<char, 12> padding{};
};
static_assert(sizeof(Header) == kBlock);

template <std::size_t size>
void put_octal(std::array<char, size>& field, std::uint64_t value) {
  std::snprintf(field.data(), size, "%0*llo", static_cast<int>(size - 1),
                static_cast<unsigned long long>(value));
}

}  // namespace

std::string tar_archive(const std::vector<std::pair<std::string, std::string>>& files,
                        std::int64_t time) {
  std::string out;
  for (const auto& [name, text] : files) {
    Header header;
    std::snprintf(header.name.data(), header.name.size(), "%s", name.c_str());
    put_octal(header.mode, 0600);
    put_octal(header.uid, 0);
    put_octal(header.gid, 0);
    put_octal(header.size, text.size());
    put_octal(header.time, static_cast<std::uint64_t>(time));
    header.checksum.fill(' ');  // the checksum counts its own field as spaces
    std::array<unsigned char, kBlock> bytes{};
    std::memcpy(bytes.data(), &header, kBlock);
    unsigned sum = 0;
    for (const unsigned char byte : bytes) sum += byte;
    std::snprintf(header.checksum.data(), header.checksum.size(), "%06o", sum);
    out.append(reinterpret_cast<const char*>(&header), kBlock);
    out.append(text);
    out.append((kBlock - text.size() % kBlock) % kBlock, '\0');
  }
  return out.append(2 * kBlock, '\0');
}

}  // namespace sluice::tools::cli
