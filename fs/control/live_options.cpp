// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/live_options.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.hpp"
#include "fs/control/option_table.hpp"
#include "fs/control/option_values.hpp"

namespace sluice {
namespace {

using Group = OptionSpec::Group;
using Outcome = LiveOptions::Outcome;

bool is_of_whole_mount(const OptionSpec& spec) {
  return is_of_mount(spec) || spec.group == Group::Debug;
}

template <typename Tiers>
auto find_tier(Tiers& tiers, std::string_view name) {
  return std::find_if(tiers.begin(), tiers.end(),
                      [&](const TierOptions& each) { return each.name == name; });
}

// An option by its name: "bandwidth" or "nvme.high_watermark". spec is null if there is none.
struct Found {
  const OptionSpec* spec = nullptr;
  std::string_view tier;
};

Found find(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return {find_mount_option(name), {}};
  return {find_option(Group::Tier, name.substr(dot + 1)), name.substr(0, dot)};
}

Error no_such_option(std::string_view name) {
  std::vector<std::string_view> live;
  for (const OptionSpec& spec : option_table()) {
    if (spec.is_live && is_of_whole_mount(spec)) live.push_back(spec.name);
  }
  // ENODATA, as of an attribute that does not exist.
  std::string text = in_quotes(name) + ": there is no such option";
  if (const auto close = closest_word(name, live))
    text += "; did you mean '" + std::string(*close) + "'?";
  return {ENODATA, "find an option", std::move(text)};
}

Error no_such_tier(std::string_view name) {
  return {ENODATA, "find an option", in_quotes(name) + ": the mount has no such tier"};
}

// Copies one option, or notes that it needs another mount.
void take(const OptionSpec& spec, const std::string& prefix, OptionSource from, OptionSource now,
          OptionTarget to, Outcome& outcome) {
  const std::string before = spec.member.text(spec, now), after = spec.member.text(spec, from);
  const std::string name = prefix + std::string(spec.name);
  if (!spec.member.copy(from, to)) return;
  if (spec.is_live) {
    outcome.changed.push_back({name, before, after});
    return;
  }
  spec.member.copy(now, to);
  outcome.later.push_back(name + " = " + after + " (now " + before + ")");
}

void take_tiers(const MountOptions& fresh, MountOptions& to, Outcome& outcome) {
  const std::vector<TierOptions> now = to.tiers;
  std::vector<std::string_view> order, fresh_order;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto tier = find_tier(fresh.tiers, now[i].name);
    if (tier == fresh.tiers.end()) {
      outcome.later.push_back("tier " + now[i].name +
                              " is mounted, but it is not in the configuration");
      continue;
    }
    order.push_back(now[i].name);
    for (const OptionSpec& spec : options_in(Group::Tier))
      take(spec, tier->name + ".", &*tier, &now[i], &to.tiers[i], outcome);
  }
  for (const TierOptions& tier : fresh.tiers) {
    if (find_tier(now, tier.name) != now.end()) {
      fresh_order.push_back(tier.name);
    } else {
      outcome.later.push_back("tier " + tier.name +
                              " is not mounted; 'sluice tier add' adds it at once");
    }
  }
  if (order != fresh_order) outcome.later.push_back("the order of the tiers");
}

bool are_same(std::vector<RuleOptions> a, std::vector<RuleOptions> b) {
  for (auto* rules : {&a, &b}) {
    for (RuleOptions& rule : *rules) rule.place.clear();  // lines may have moved
  }
  return a == b;
}

// A rule may be right in the file and wrong for the mount.
Result<void> check_tiers_of_rules(const MountOptions& fresh, const MountOptions& merged) {
  for (const RuleOptions& rule : fresh.rules) {
    if (rule.tier.empty() || rule.tier == kStay ||
        find_tier(merged.tiers, rule.tier) != merged.tiers.end())
      continue;
    return bad_option(rule.place + ": rule " + in_quotes(rule.match) + ": tier " + rule.tier +
                      " is not mounted; add it with 'sluice tier add', or unmount and mount the "
                      "pool");
  }
  return {};
}

void log_outcome(const Outcome& outcome) {
  for (const auto& change : outcome.changed)
    log::get().info("an option has changed: name={} from={} to={}", change.name,
                    log::escaped(change.from), log::escaped(change.to));
  for (const std::string& each : outcome.later)
    log::get().warn("the next mount will differ: {}", log::escaped(each));
  log::get().info("the configuration was read again: changed={} later={}", outcome.changed.size(),
                  outcome.later.size());
}

}  // namespace

LiveOptions::LiveOptions(MountOptions options, Read read, Apply apply)
    : read_(std::move(read)),
      apply_(std::move(apply)),
      now_(std::move(options)),
      configured_(now_) {}

MountOptions LiveOptions::now() const {
  const MutexLock lock(mutex_);
  return now_;
}

std::map<std::string, std::string> LiveOptions::trials() const {
  const MutexLock lock(mutex_);
  return trials_;
}

void LiveOptions::tier_put(const TierOptions& tier) {
  const auto put = [&](std::vector<TierOptions>& tiers) {
    const auto known =
        std::ranges::find_if(tiers, [&](const auto& each) { return each.name == tier.name; });
    if (known != tiers.end()) {
      *known = tier;
    } else {
      tiers.push_back(tier);
    }
  };
  const MutexLock changing(changing_);
  put(configured_.tiers);
  const MutexLock lock(mutex_);
  put(now_.tiers);
}

void LiveOptions::install(MountOptions options) {
  apply_(options);
  const MutexLock lock(mutex_);
  now_ = std::move(options);
}

Result<Outcome> LiveOptions::reload() {
  auto outcome = take_configuration();
  if (outcome) {
    log_outcome(*outcome);
  } else {
    log::get().error("cannot reload the configuration, nothing has changed: why={}",
                     log::escaped(outcome.error().text()));
  }
  return outcome;
}

Result<Outcome> LiveOptions::take_configuration() {
  if (!read_) {
    return Error{ENOTSUP, "reload",
                 "the mount has no configuration file; its options can change with the next mount "
                 "or on trial ('sluice set')"};
  }
  const MutexLock changing(changing_);
  const MountOptions fresh = SLUICE_TRY(read_());
  const MountOptions before = now();
  MountOptions merged = before;
  Outcome outcome;
  for (const OptionSpec& spec : option_table()) {
    if (is_of_whole_mount(spec)) take(spec, "", &fresh, &before, &merged, outcome);
  }
  take_tiers(fresh, merged, outcome);
  merged.rules = fresh.rules;
  if (!are_same(before.rules, fresh.rules)) {
    outcome.changed.push_back(
        {"rules", std::to_string(before.rules.size()), std::to_string(fresh.rules.size())});
  }
  SLUICE_TRY(check_tiers_of_rules(fresh, merged));
  SLUICE_TRY(check_options(merged));
  configured_ = merged;
  install(std::move(merged));
  const MutexLock lock(mutex_);
  trials_.clear();
  return outcome;
}

Result<std::string> LiveOptions::value(std::string_view name) const {
  const auto [spec, tier_name] = find(name);
  if (spec == nullptr) return no_such_option(name);
  const MutexLock lock(mutex_);
  if (tier_name.empty()) return spec->member.text(*spec, &now_);
  const auto tier = find_tier(now_.tiers, tier_name);
  if (tier == now_.tiers.end()) return no_such_tier(name);
  return spec->member.text(*spec, &*tier);
}

Result<LiveOptions::Change> LiveOptions::try_out(const std::string& name,
                                                 const std::string& value) {
  const MutexLock changing(changing_);
  const auto before = this->value(name);
  if (!before) return bad_option(before.error().text());
  const auto [spec, tier_name] = find(name);
  if (!spec->is_live) {
    return Error{EPERM, "set an option",
                 name +
                     " cannot change while the pool is mounted; set it in the configuration "
                     "for 'sluice restart' or the next mount"};
  }
  MountOptions options = now();
  if (tier_name.empty()) {
    SLUICE_TRY(spec->member.set(*spec, typed_value(*spec, value), {}, &options));
  } else {
    const auto tier = find_tier(options.tiers, tier_name);
    if (const auto done = spec->member.set(*spec, typed_value(*spec, value), {}, &*tier); !done)
      return done.error().at("tier " + tier->name);
    SLUICE_TRY(finish_tier(*tier, true));
  }
  SLUICE_TRY(check_options(options));
  install(std::move(options));
  std::string now_value = SLUICE_TRY(this->value(name));  // "50MB" is 50MiB
  log::get().info("an option is set until the next reload: name={} value={}", name,
                  log::escaped(now_value));
  {
    const MutexLock lock(mutex_);
    trials_[name] = now_value;
  }
  return Change{name, *before, std::move(now_value)};
}

Result<LiveOptions::Change> LiveOptions::end_trial(const std::string& name) {
  const MutexLock changing(changing_);
  if (!trials().contains(name)) {
    return Error{ENODATA, "set an option", in_quotes(name) + " was not set on trial"};
  }
  const std::string before = SLUICE_TRY(value(name));
  const auto [spec, tier_name] = find(name);
  MountOptions options = now();
  if (tier_name.empty()) {
    spec->member.copy(&configured_, &options);
  } else {
    const auto tier = find_tier(options.tiers, tier_name);
    const auto configured = find_tier(configured_.tiers, tier_name);
    spec->member.copy(&*configured, &*tier);
    SLUICE_TRY(finish_tier(*tier, true));
  }
  SLUICE_TRY(check_options(options));
  install(std::move(options));
  log::get().info("the trial of an option has ended: name={}", name);
  {
    const MutexLock lock(mutex_);
    trials_.erase(name);
  }
  return Change{name, before, SLUICE_TRY(value(name))};
}

}  // namespace sluice
