// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/tree/pins.hpp"

#include <climits>

#include "tiering/pool/pin.hpp"

namespace sluice {

namespace {
// How many levels up a pin is searched for after pins have changed. Above that, the cached pin is
// used, so that deep trees and frequent changes of pins do not delay other users.
constexpr std::size_t kMostLevelsUp = 4096;
}  // namespace

void Pins::change_rules(std::vector<Rule> rules) {
  const MutexLock lock(rules_mutex_);
  rules_ = std::make_shared<const std::vector<Rule>>(std::move(rules));
}

void Pins::tiers_changed() {
  ++tier_epoch_;
  ++epoch_;
}

void Pins::changed(const InodePtr& inode) {
  {
    Inode::Locked state(*inode);
    ++state->xattrs.changes;  // a thread that has read the old pin must not cache it
    state->pins.own_epoch = 0;
  }
  if (inode->is_directory()) ++epoch_;
}

TierIndex Pins::own(const InodePtr& directory) {
  const std::uint32_t epoch = tier_epoch_.load();
  unsigned set_before = 0;
  {
    Inode::Locked state(*directory);
    if (state->pins.own_epoch == epoch) return state->pins.own;
    set_before = state->xattrs.changes;
  }
  const auto fd = descriptors_.any(directory);
  if (!fd) return kNoTier;
  const TierIndex own = own_pin(pool_, (*fd)->get(), "").value_or(kNoTier);
  Inode::Locked state(*directory);
  if (state->xattrs.changes == set_before) {
    state->pins.own = own;
    state->pins.own_epoch = epoch;
  }
  return own;
}

TierIndex Pins::inside(const InodePtr& directory) {
  names_lock_.mutex.assert_held_shared();
  const std::uint64_t epoch = epoch_.load();
  std::vector<InodePtr> unsure;  // from `directory` up to where the pin is known
  TierIndex pin = kNoTier;
  for (InodePtr at = directory; at;) {
    InodeId up{};
    {
      Inode::Locked state(*at);
      const bool is_too_far = unsure.size() == kMostLevelsUp;
      if (state->pins.inherited_epoch == epoch || is_too_far) {
        pin = state->pins.inherited;
        // Directories nearer to the root may still find their pin, so only this one is marked as
        // known.
        if (is_too_far) unsure.resize(1);
        break;
      }
      up = state->name.parent;
    }
    unsure.push_back(at);
    pin = own(at);
    if (pin != kNoTier || at->id() == kRootId) break;
    at = table_.find(up);
  }
  for (const InodePtr& each : unsure) {
    Inode::Locked state(*each);
    state->pins.inherited = pin;
    state->pins.inherited_epoch = epoch;
  }
  return pin;
}

TierIndex Pins::effective(const InodePtr& inode) {
  const auto fd = descriptors_.any(inode);
  const auto own = fd ? own_pin(pool_, (*fd)->get(), "") : std::nullopt;
  if (own || inode->id() == kRootId) return own.value_or(kNoTier);
  SharedLock lock(names_lock_.mutex);
  const InodePtr parent = tree_.parent_of(inode);
  return parent ? inside(parent) : kNoTier;
}

InodePtr Pins::pin_source(const InodePtr& inode) {
  InodePtr at = inode;
  for (std::size_t levels = 0; at && levels < kMostLevelsUp; ++levels) {
    if (own(at) != kNoTier) return at;
    if (at->id() == kRootId) break;
    at = tree_.parent_of(at);
  }
  return nullptr;
}

bool Pins::is_deeper_than(const InodePtr& inode, std::size_t levels) {
  InodePtr at = inode;
  for (std::size_t level = 0; at && at->id() != kRootId; ++level) {
    if (level == levels) return true;
    at = tree_.parent_of(at);
  }
  return false;
}

TierIndex Pins::wanted(const InodePtr& parent, const char* name) {
  const TierIndex pin = inside(parent);
  if (pin != kNoTier) return pin;
  std::shared_ptr<const std::vector<Rule>> rules;
  {
    const MutexLock lock(rules_mutex_);
    rules = rules_;
  }
  if (rules->empty()) return kNoTier;
  // A path longer than PATH_MAX matches no rule; the census does not reach it either.
  if (is_deeper_than(parent, PATH_MAX / 2)) return kNoTier;
  // A new file has size 0 and age 0.
  const std::string directory = tree_.path_of(parent);
  const auto rule = matching_rule(*rules, (directory == "/" ? "" : directory) + "/" + name, 0, {});
  return rule ? (*rules)[*rule].tier : kNoTier;
}

}  // namespace sluice
