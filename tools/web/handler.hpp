// SPDX-License-Identifier: BSD-2-Clause
// WebHandler answers requests of the page of `sluice web`: the page's own files, and below /api/
// the state of one mount as JSON. It changes nothing. The requests:
// - activity, tree?path=/a, prices: as the control socket answers (docs/control.md)
// - moves: `pending`, `receipts`, and `rows` (the same with bursts of small moves summed up)
// - explain?path=/a/b: `path` and `lines`, each with `label` and `text`
// Paths are percent-encoded. An error has an HTTP status and `error`, a sentence.
//
// Access: the page's own files are public, everything else needs the token. Pages of other sites,
// whose requests a browser would send as well, do not have the token; they are also refused by
// their Origin, or by the Host header if their name resolves to this machine (DNS rebinding).
// Threads: answer() may be called from several threads at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/http_server.hpp"
#include "base/mutex.hpp"
#include "tools/common/control_client.hpp"

namespace sluice::tools::web {

// 128 random bits, in hex.
std::string make_token();

class WebHandler {
 public:
  // How many requests may wait for the daemon. More are refused, so that the page can still report
  // that a mount hangs.
  static constexpr int kMostAtOnce = 8;

  WebHandler(std::string mount, std::string token)
      : mount_(std::move(mount)), token_(std::move(token)) {}

  HttpResponse answer(const HttpRequest& request);

 private:
  HttpResponse dispatch(const HttpRequest& request);
  HttpResponse api(const HttpRequest& request);
  HttpResponse activity() const;
  HttpResponse moves() const;
  HttpResponse prices() const;
  HttpResponse explain(const std::string& path) const;
  HttpResponse tree(const std::string& path);
  Result<ControlAnswer> ask(
      const nlohmann::ordered_json& request,
      std::function<bool(const nlohmann::ordered_json&)> line = nullptr) const;
  void scan_files();

  const std::string mount_;
  const std::string token_;
  std::atomic<int> at_work_{0};
  std::atomic<bool> is_scanning_{false};  // the thread below, which sets it last
  Mutex mutex_;
  std::int64_t last_scan_ GUARDED_BY(mutex_) = 0;  // when scan_files() last ran
  std::jthread looking_ GUARDED_BY(mutex_);
};

}  // namespace sluice::tools::web
