// SPDX-License-Identifier: BSD-2-Clause
// What the keeper and the daemon say to each other: short texts over a SOCK_SEQPACKET socket, one
// per packet, some with descriptors. A keeper outlives upgrades, so it must understand newer
// daemons and they must understand it: unknown texts are ignored, and none changes its meaning.
//
// keeper -> daemon, first:
//   "start"            no daemon has served this mount yet
//   "take NAME..."     the daemon has ended; the descriptors by these names come with the packet
//   "prepare NAME..."  likewise, but the daemon still serves: check everything, then wait for "go"
// keeper -> daemon, later:
//   "go"                   to a prepared successor: the daemon before it has ended
//   "hand over"            to the serving daemon: a successor is prepared
//   "restart failed TEXT"  the daemon that was started last could not take over. After "take" it
//                          may be the second packet.
//   "because TEXT"         after "take": why the daemon before it has ended
// daemon -> keeper:
//   "hold NAME"        with one descriptor, which replaces one of that name
//   "ready"            it serves
//   "failed TEXT"      it cannot serve and exits
//   "prepared"         it waits for "go"
//   "restart"          somebody asks for an upgrade
//   "stay TEXT"        the answer to "hand over" if it goes on serving
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// In the environment of the daemon: the number of its socket, and how many successors the keeper
// has started: "5,2".
inline constexpr const char* kKeeperVariable = "SLUICE_KEEPER";

// The exit code of a daemon that has handed over.
inline constexpr int kHandedOver = 75;

struct Packet {
  std::string text;
  std::vector<UniqueFd> fds;

  // What follows `word` and a space; empty if there is nothing. CHECKED: says(word).
  std::string rest(std::string_view word) const;
  // Whether the text is `word`, or begins with it and a space.
  bool says(std::string_view word) const;
};

enum class Wait { No, Yes };

Result<void> send_packet(int socket, std::string_view text, std::span<const int> fds = {});

// Fails with EAGAIN if nothing waits and `wait` is No, and with EPIPE if the other side is gone.
Result<Packet> receive_packet(int socket, Wait wait);

std::vector<std::string> words_of(const std::string& text);

}  // namespace sluice
