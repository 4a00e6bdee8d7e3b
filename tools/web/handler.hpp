// SPDX-License-Identifier: BSD-2-Clause
// WebHandler answers what the page of `sluice web` asks: the page itself, and below /api/ what the
// daemon of one mount says of itself, as JSON. It only ever reads. docs/web.md lists the requests.
//
// Who may ask: the page's own files are no secret, all else needs the token. A page of another
// site, which the browser would let ask as well, does not have it; and it is refused, too, by its
// Origin, or by the name of the host if it has made that name mean this machine.
// Threads: answer() may be called from any thread at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/http_server.hpp"
#include "base/mutex.hpp"
#include "tools/common/control_client.hpp"
#include "tools/web/replay.hpp"

namespace sluice {

// 128 bits that nobody can guess, in hex.
std::string make_token();

class WebHandler {
 public:
  // Requests that may wait for the daemon. More are refused, so that a mount that hangs leaves room
  // for the page to say so.
  static constexpr int kMostAtOnce = 8;

  // `replay` outlives it.
  WebHandler(std::string mount, std::string token, const WebReplay& replay)
      : mount_(std::move(mount)), token_(std::move(token)), replay_(replay) {}

  HttpResponse answer(const HttpRequest& request);

 private:
  HttpResponse dispatch(const HttpRequest& request);
  HttpResponse api(const HttpRequest& request);
  HttpResponse activity() const;
  HttpResponse moves() const;
  HttpResponse explain(const std::string& path) const;
  HttpResponse tree(const std::string& path);
  ControlAnswer ask(const nlohmann::ordered_json& request,
                    std::function<bool(const nlohmann::ordered_json&)> line = nullptr) const;
  void look_at_files();

  const std::string mount_;
  const std::string token_;
  const WebReplay& replay_;
  std::atomic<int> at_work_{0};
  std::atomic<bool> is_looking_{false};  // the thread below, which sets it last
  Mutex mutex_;
  std::int64_t looked_ GUARDED_BY(mutex_) = 0;  // when look_at_files() last did
  std::jthread looking_ GUARDED_BY(mutex_);
};

}  // namespace sluice
