// SPDX-License-Identifier: BSD-2-Clause
// Partner is the other side of `sluice origin check --with`: a process of this machine, or of
// another one through ssh, that answers questions on its stdin and stdout. The destructor ends and
// reaps it. Threads: caller locks; start() forks, so call it before threads are started.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice::tools::cli {

// Where --with points: "DIR", or "HOST:DIR", as with rsync.
struct PartnerPlace {
  std::string host;  // empty: this machine
  std::string directory;
};
PartnerPlace parse_partner_place(const std::string& text);

// The command line of the partner. `self` is the path of this program.
std::vector<std::string> partner_command(const PartnerPlace& place, const std::string& self);

class Partner {
 public:
  static Result<Partner> start(const std::vector<std::string>& argv);
  ~Partner();
  Partner(Partner&& other) noexcept;
  Partner& operator=(Partner&&) = delete;

  int in() const { return in_.get(); }    // what it says
  int out() const { return out_.get(); }  // what it is asked

 private:
  Partner(pid_t pid, UniqueFd in, UniqueFd out)
      : pid_(pid), in_(std::move(in)), out_(std::move(out)) {}

  pid_t pid_;
  UniqueFd in_, out_;
};

}  // namespace sluice::tools::cli
