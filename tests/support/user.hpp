// SPDX-License-Identifier: BSD-2-Clause
// Doing something as somebody else: in a forked child, because credentials belong to a whole
// process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice::test {

struct User {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups = {};  // supplementary
};

inline const User kNobody{65534, 65534};
inline const User kAlice{12001, 12001};
inline const User kBob{12002, 12002};

// Runs `work` in a child that is `user`, and returns what it returned. The child has copies of
// everything: only the string comes back. A child that dies returns "died: ...". REQUIRES: root,
// and no other threads that hold locks.
std::string as_user(const User& user, const std::function<std::string()>& work);

// The same in a child that stays who we are: another process, for locks and crashes.
std::string in_child(const std::function<std::string()>& work);

}  // namespace sluice::test
