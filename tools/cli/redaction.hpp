// SPDX-License-Identifier: BSD-2-Clause
// A Redactor takes the names of users' files out of what is meant for others. A name becomes a hash
// of it, the same for the same name, under a key that is made here and kept nowhere: nobody can
// tell a name from its hash by trying, nor compare two reports. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// SipHash-2-4: a keyed hash for short texts.
using SipKey = std::array<std::uint64_t, 2>;
std::uint64_t sip_hash(const SipKey& key, std::string_view text);

class Redactor {
 public:
  struct Pool {
    // Directories whose own names are kept, and below which all names are hidden: the mount point
    // and the tiers.
    std::vector<std::string> roots;
    std::vector<std::string> tiers;  // names
  };
  Redactor(const SipKey& key, Pool pool) : key_(key), pool_(std::move(pool)) {}

  // "/models/llama.gguf" is "/<4f1d33a0c2be>/<09c1e7725d11>.gguf". Endings that many files have are
  // kept. A root stays as it is.
  std::string path(std::string_view path) const;
  // A text in which paths below a root may stand; from the first on, it is hidden to the end of the
  // line.
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

}  // namespace sluice
