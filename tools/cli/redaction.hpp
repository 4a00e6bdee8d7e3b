// SPDX-License-Identifier: BSD-2-Clause
// A Redactor removes the names of users' files from reports. A name is replaced by a keyed hash,
// the same for the same name. The key is random and never stored: names can't be guessed,
// and two reports can't be compared. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools::cli {

// SipHash-2-4: a keyed hash for short texts.
using SipKey = std::array<std::uint64_t, 2>;
std::uint64_t sip_hash(const SipKey& key, std::string_view text);

class Redactor {
 public:
  struct Pool {
    // Directories whose own names are kept and below which all names are redacted: the mount point
    // and the tiers.
    std::vector<std::string> roots;
    std::vector<std::string> tiers;  // names
  };
  Redactor(const SipKey& key, Pool pool) : key_(key), pool_(std::move(pool)) {}

  // "/models/llama.gguf" is "/<4f1d33a0c2be>/<09c1e7725d11>.gguf". Common extensions are
  // kept. A root is unchanged.
  std::string path(std::string_view path) const;
  // A text that may contain paths below a root; from the first path on, the rest of the line is
  // redacted.
  std::string text(std::string_view text) const;
  // A line of the log, in either format.
  std::string log_line(std::string_view line) const;
  // An answer of the daemon or of a verb.
  nlohmann::ordered_json json(nlohmann::ordered_json value) const;
  // A line of /proc/self/mountinfo: without the directory of the pool that a bind mount shows, the
  // server that a filesystem is on, and options that are not known to be harmless.
  std::string mount_line(std::string_view line) const;
  // A configuration file: without comments, patterns of rules, and lines that are not understood.
  std::string config(std::string_view toml) const;

 private:
  std::string component(std::string_view name) const;
  bool is_root(std::string_view path) const;
  std::string message(std::string_view message) const;
  std::string reason(std::string_view reason) const;

  const SipKey key_;
  const Pool pool_;
};

}  // namespace sluice::tools::cli
