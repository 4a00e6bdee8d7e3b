// SPDX-License-Identifier: BSD-2-Clause
// RingOutstanding remembers the entries of a ring that the daemon has and has not completed, so
// that they can be given to another daemon if it dies. The daemon gets an entry's place here as the
// entry's user_data.
//
// Threads: caller locks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "client/include/sluice/ioctl.h"

namespace sluice {

class RingOutstanding {
 public:
  explicit RingOutstanding(std::uint32_t entries) : places_(entries) {
    for (std::uint32_t i = 0; i < entries; ++i) free_.push_back(entries - 1 - i);
  }

  // Returns its place. CHECKED: fewer entries are outstanding than the ring has.
  std::uint64_t add(const sluice_ring_entry& entry) {
    SLUICE_CHECK(!free_.empty(), "fewer entries are outstanding than the ring has");
    const std::uint32_t place = free_.back();
    free_.pop_back();
    places_[place] = {entry, true};
    return place;
  }
  // Gives a completion the user_data of its entry, which is no longer outstanding.
  void complete(sluice_ring_completion& completion) {
    const std::uint64_t place = completion.user_data;
    if (place >= places_.size() || !places_[place].is_used) return;  // the daemon is broken
    completion.user_data = places_[place].entry.user_data;
    places_[place].is_used = false;
    free_.push_back(static_cast<std::uint32_t>(place));
  }
  bool is_empty() const { return free_.size() == places_.size(); }
  std::vector<sluice_ring_entry> take_all() {
    std::vector<sluice_ring_entry> out;
    for (std::uint32_t i = 0; i < places_.size(); ++i) {
      if (!std::exchange(places_[i].is_used, false)) continue;
      out.push_back(places_[i].entry);
      free_.push_back(i);
    }
    return out;
  }

 private:
  struct Place {
    sluice_ring_entry entry;
    bool is_used = false;
  };
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;
};

}  // namespace sluice
