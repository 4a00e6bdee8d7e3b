// SPDX-License-Identifier: BSD-2-Clause
// ControlServer answers the verbs that are about the mount as a whole, on a socket that only root
// and the user who mounted can use. docs/control.md is the protocol.
// Threads: one of its own that accepts ("sluice-control"), one for each conversation.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "fs/core/filesystem.hpp"
#include "tiering/heat_tree.hpp"
#include "tiering/migration.hpp"

namespace sluice {

inline constexpr const char* kControlSocket = "control.sock";  // in the state directory

class ControlServer {
 public:
  // What the verbs work on, and what only the daemon can do.
  struct Parts {
    Pool& pool;
    Store& store;
    Filesystem& filesystem;
    Migration& migration;
    // Makes a new tier part of the pool ("NAME=PATH,...").
    std::function<Result<void>(const std::string& tier)> add_tier;
    std::function<nlohmann::json()> activity;
    const HeatTree& heat_tree;
  };

  // Listens at `path`, in the place of a socket that an earlier daemon left.
  static Result<std::unique_ptr<ControlServer>> listen(const std::string& path, Parts parts);
  ~ControlServer();

 private:
  class Conversation;

  ControlServer(UniqueFd socket, UniqueFd wake, std::string path, Parts parts);
  void accept_all(const std::stop_token& stop);
  bool make_room();

  const UniqueFd socket_;
  const UniqueFd wake_;  // an eventfd: readable once we are to end
  const std::string path_;
  const Parts parts_;
  struct Talk;
  std::list<std::unique_ptr<Talk>> talks_;  // only the accepting thread touches it
  std::jthread acceptor_;
};

}  // namespace sluice
