// SPDX-License-Identifier: BSD-2-Clause
// Queues of objects with constant-time lookup: an object is in at most one of the lists that share
// their Links. Threads: caller locks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "tools/lab/simulator/trace.hpp"

namespace sluice::tools::lab {

inline constexpr std::uint32_t kNoObject = 0xffffffff;

class ObjectList {
 public:
  struct Links {
    explicit Links(std::size_t objects) : newer(objects, kNoObject), older(objects, kNoObject) {}
    std::vector<std::uint32_t> newer, older;
  };

  ObjectList(Links& links, const Trace& trace) : links_(links), trace_(trace) {}

  bool empty() const { return oldest_ == kNoObject; }
  std::uint64_t bytes() const { return bytes_; }
  // CHECKED: not empty.
  std::uint32_t oldest() const {
    SLUICE_CHECK(!empty(), "a list with an oldest object is not empty");
    return oldest_;
  }

  // REQUIRES: `object` is in no list of these links.
  void add_newest(std::uint32_t object) {
    links_.older[object] = newest_;
    links_.newer[object] = kNoObject;
    (newest_ == kNoObject ? oldest_ : links_.newer[newest_]) = object;
    newest_ = object;
    bytes_ += trace_.sizes[object];
  }

  // REQUIRES: `object` is in this list.
  void remove(std::uint32_t object) {
    const auto newer = links_.newer[object];
    const auto older = links_.older[object];
    (newer == kNoObject ? newest_ : links_.older[newer]) = older;
    (older == kNoObject ? oldest_ : links_.newer[older]) = newer;
    bytes_ -= trace_.sizes[object];
  }

  // CHECKED: not empty.
  std::uint32_t remove_oldest() {
    const auto object = oldest();
    remove(object);
    return object;
  }

 private:
  Links& links_;
  const Trace& trace_;
  std::uint32_t newest_ = kNoObject;
  std::uint32_t oldest_ = kNoObject;
  std::uint64_t bytes_ = 0;
};

}  // namespace sluice::tools::lab
