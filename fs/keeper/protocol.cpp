// SPDX-License-Identifier: BSD-2-Clause
#include "fs/keeper/protocol.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

namespace sluice {
namespace {

constexpr std::size_t kLongestText = 8192;
constexpr std::size_t kMostDescriptors = 64;

}  // namespace

bool Packet::says(std::string_view word) const {
  return text.starts_with(word) && (text.size() == word.size() || text[word.size()] == ' ');
}

std::string Packet::rest(std::string_view word) const {
  return text.size() > word.size() ? text.substr(word.size() + 1) : std::string();
}

Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds) {
  if (fds.size() > kMostDescriptors) return Error{E2BIG, "send a packet"};
  text = text.substr(0, kLongestText);
  // The kernel does not write to what it sends.
  iovec data{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Error::last("send a packet");
  return {};
}

Result<Packet> receive_packet(int socket, Wait wait) {
  Packet packet;
  packet.text.resize(kLongestText);
  iovec data{packet.text.data(), packet.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | (wait == Wait::No ? MSG_DONTWAIT : 0));
    // ECONNRESET: the other side ended and had not read everything. The kernel says so once, before
    // the packets that it had sent.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) return Error::last("receive a packet");
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  if (got == 0) return Error{EPIPE, "receive a packet"};
  packet.text.resize(static_cast<std::size_t>(got));
  return packet;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(std::move(word));
  return words;
}

}  // namespace sluice
