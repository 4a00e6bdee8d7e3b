// SPDX-License-Identifier: BSD-2-Clause
// A Pool is the ordered set of tiers behind one mount, locked against a second daemon, and the
// choice of where new files go. Threads: immutable once open; the tiers look after themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tiering/tier.hpp"

namespace sluice {

class Pool {
 public:
  enum class Missing { Refuse, Tolerate };
  enum class NewTiers { Adopt, Refuse };

  // Opens and locks the tiers, making markers where a directory is new to the pool and that is
  // allowed. On failure returns nothing and says in `why` what, where and what to do. `user` is
  // told to whoever finds the pool locked: "mounted at /mnt".
  static std::unique_ptr<Pool> open(const std::vector<TierSettings>& settings, Missing missing,
                                    NewTiers new_tiers, const std::string& user, std::string& why);

  const std::string& id() const { return id_; }
  std::size_t size() const { return tiers_.size(); }
  Tier& operator[](TierIndex index) const { return *tiers_[index]; }
  auto begin() const { return tiers_.begin(); }
  auto end() const { return tiers_.end(); }
  // nullptr if no configured tier has this slot.
  Tier* by_slot(unsigned slot) const;

  // The tiers to try for a new file, best first: the fastest below its high watermark and above its
  // reserve, then those with room, then the rest. Empty if none is online.
  std::vector<TierIndex> placement() const;

  // Deletes what half-finished work left in .sluice/tmp of each tier. REQUIRES: intents have been
  // replayed.
  void clear_temporaries() const;

 private:
  Pool() = default;

  std::string id_;
  std::vector<std::unique_ptr<Tier>> tiers_;
};

}  // namespace sluice
