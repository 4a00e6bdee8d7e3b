// SPDX-License-Identifier: BSD-2-Clause
// ControlServer answers requests about the mount as a whole, on a Unix socket. It accepts only
// root. docs/control.md describes the protocol.
//
// Threads: it owns one thread that accepts connections ("sluice-control") and one per connection.
// The functions in Parts are called from any of them.
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
#include "fs/control/live_options.hpp"
#include "fs/core/filesystem.hpp"
#include "tiering/heat/file_lists.hpp"
#include "tiering/heat/heat_tree.hpp"
#include "tiering/move/migration.hpp"

namespace sluice {

inline constexpr const char* kControlSocket = "control.sock";  // in the state directory

class ControlServer {
 public:
  // What the requests need.
  struct Parts {
    Pool& pool;
    Store& store;
    Filesystem& filesystem;
    Migration& migration;
    LiveOptions& options;
    const FileLists& lists;
    // Adds a tier ("NAME=PATH,...") to the pool.
    std::function<Result<void>(const std::string& tier)> add_tier;
    // Puts a new disk in the place of a dead one.
    std::function<Result<void>(const std::string& tier)> replace_tier;
    std::function<nlohmann::json()> activity;
    const HeatTree& heat_tree;
    // Asks for a successor of this daemon; returns when it is about to hand over.
    std::function<Result<void>()> restart;
    // Ends all copies of files in GPU memory; returns their bytes.
    std::function<std::uint64_t()> release_gpu;
  };

  // Listens at `path`; replaces a socket that an earlier daemon left there.
  static Result<std::unique_ptr<ControlServer>> listen(const std::string& path, Parts parts);
  ~ControlServer();

 private:
  class Handler;

  ControlServer(UniqueFd socket, UniqueFd wake, std::string path, Parts parts);
  void accept_all(const std::stop_token& stop);
  bool make_room();

  const UniqueFd socket_;
  const UniqueFd wake_;  // an eventfd; readable once the server must stop
  const std::string path_;
  const Parts parts_;
  // Held from the search for a tier that takes a tier's files until the tier is marked: of two
  // drains at once, neither may count on the other's tier.
  Mutex marking_;
  struct Connection;
  std::list<std::unique_ptr<Connection>> connections_;  // used only by the accepting thread
  std::jthread acceptor_;
};

}  // namespace sluice
