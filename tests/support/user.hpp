// SPDX-License-Identifier: BSD-2-Clause
// Runs code as another user, in a forked child because credentials belong to a whole process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice::test {

struct User {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups = {};  // supplementary groups
};

inline const User kNobody{65534, 65534};
inline const User kAlice{12001, 12001};
inline const User kBob{12002, 12002};

// Runs `work` in a child as `user` and returns its result. The child has copies of everything: only
// the string comes back. If the child dies, returns "died: ...". REQUIRES: root, and no other
// threads that hold locks.
std::string as_user(const User& user, const std::function<std::string()>& work);

// The same as the current user, in another process: for tests of locks and crashes.
std::string in_child(const std::function<std::string()>& work);

}  // namespace sluice::test
