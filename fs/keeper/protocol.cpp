// SPDX-License-Identifier: BSD-2-Clause
#include "fs/keeper/protocol.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <sstream>

#include "base/check.hpp"
#include "base/unix_socket.hpp"

namespace sluice {
namespace {

constexpr std::size_t kLongestText = 8192;

}  // namespace

bool Packet::says(std::string_view word) const {
  return text.starts_with(word) && (text.size() == word.size() || text[word.size()] == ' ');
}

std::string Packet::rest(std::string_view word) const {
  SLUICE_CHECK(says(word), "the packet begins with this word");
  return text.size() > word.size() ? text.substr(word.size() + 1) : std::string();
}

Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds) {
  text = text.substr(0, kLongestText);
  SLUICE_TRY(send_with_fds(socket, std::as_bytes(std::span(text)), fds));
  return {};
}

Result<Packet> receive_packet(int socket, Wait wait) {
  Packet packet;
  packet.text.resize(kLongestText);
  const auto receive = [&] {
    return receive_with_fds(socket, std::as_writable_bytes(std::span(packet.text)), packet.fds,
                            wait == Wait::No ? MSG_DONTWAIT : 0);
  };
  auto got = receive();
  // The other side ended and had not read everything. The kernel says so once, before the packets
  // that it had sent.
  while (failed_with(got, ECONNRESET)) got = receive();
  if (!got) return got.error();
  if (*got == 0) return Error{EPIPE, "receive a packet"};
  packet.text.resize(*got);
  return packet;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(std::move(word));
  return words;
}

}  // namespace sluice
