// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/files/xattrs.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "metadata/decay.hpp"
#include "tiering/choose/worth.hpp"
#include "tiering/pool/copier.hpp"
#include "tiering/pool/kept_times.hpp"
#include "tiering/pool/pin.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {

namespace {

bool is_ours(std::string_view name) {
  return name == kIdentityXattr || name == kTwinXattr || name == kPinXattr || name == kHbmXattr ||
         name == kBudgetXattr;
}

// Whether the mount hides the xattr. rsync -X would copy an alias of an ACL as if it were another
// xattr, and it would become the ACL of a file that moves to XFS later.
bool is_hidden(std::string_view name) { return is_ours(name) || is_acl_alias(name); }

bool is_virtual(std::string_view name) { return name.starts_with(kVirtualPrefix); }

// user.sluice.budget.SIZE.
constexpr std::string_view kBudgetPreview = "budget.";
// The kernel gives out values of at most 64 KiB.
constexpr std::size_t kMostPathBytes = 48UL << 10;

std::string_view without_prefix(std::string_view name) {
  return name.substr(kVirtualPrefix.size());
}

}  // namespace

bool Xattrs::is_slow(std::string_view name) {
  if (!is_virtual(name)) return false;
  name = without_prefix(name);
  return name == "explain" || name.starts_with(kBudgetPreview);
}

Result<std::string> Xattrs::get(InodeId id, const char* name) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (is_virtual(name)) return virtual_value(file, without_prefix(name));
  if (is_hidden(name)) return Error(ENODATA, "getxattr");
  return parts_.attributes.xattr(file, name);
}

Result<std::string> Xattrs::list(InodeId id, const Caller& caller) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  const std::string list = SLUICE_TRY(parts_.attributes.xattr_names(file));
  std::string visible;
  for (std::size_t at = 0; at < list.size();) {
    const std::string_view name = &list[at];
    const bool privileged = name.starts_with("trusted.");
    if (!is_hidden(name) && (!privileged || caller.uid == 0)) visible.append(name).push_back('\0');
    at += name.size() + 1;
  }
  return visible;
}

Result<void> Xattrs::set(InodeId id, const char* name, const char* value, std::size_t size,
                         int flags, const Caller& caller, const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (is_virtual(name))
    return set_virtual(file, without_prefix(name), {value, size}, caller.uid, request);
  if (is_ours(name)) return Error(EPERM, "setxattr");
  if (is_acl_alias(name)) return Error(EOPNOTSUPP, "setxattr");
  const auto set = [&] {
    return parts_.attributes.set_xattr(file, name, {value, size}, flags, caller, request);
  };
  const auto done = set();
  return failed_with(done, ENOSPC) && parts_.pool.twins().make_room_where_full() ? set() : done;
}

Result<void> Xattrs::remove(InodeId id, const char* name, const Caller& caller,
                            const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (is_hidden(name)) return Error(ENODATA, "removexattr");
  if (is_virtual(name)) return remove_virtual(file, without_prefix(name), caller.uid, request);
  return parts_.attributes.remove_xattr(file, name, request);
}

Result<std::string> Xattrs::virtual_value(const InodePtr& inode, std::string_view name) {
  std::vector<TierIndex> tiers;
  {
    Inode::Locked state(*inode);
    for (const Copy& copy : state->copies) tiers.push_back(copy.tier);
  }
  if (name == "tier") {
    std::string names;
    for (const TierIndex tier : tiers)
      names += (names.empty() ? "" : ",") + parts_.pool[tier].name();
    return names;
  }
  if (name == "location") {
    const std::string path = parts_.tree.path_of(inode);
    if (path.empty()) return Error(ENODATA, "location");
    const std::string& root = parts_.pool[tiers[0]].path();
    return path == "/" ? root : root + path;
  }
  if (name == "pin") {
    const TierIndex pin = parts_.pins.effective(inode);
    if (pin == kNoTier) return Error(ENODATA, "pin");
    return parts_.pool[pin].name();
  }
  if (name == "budget") return budget_of(inode);
  if (name.starts_with(kBudgetPreview))
    return preview_budget(inode, name.substr(kBudgetPreview.size()));
  if (!S_ISREG(inode->type)) return Error(ENODATA, "getxattr");
  if (name == "accesses") {
    return std::to_string(SLUICE_TRY(parts_.accesses.heat(inode)).opens);
  }
  if (name == "heat") {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.2f", SLUICE_TRY(parts_.accesses.score(inode)));
    return std::string(text.data());
  }
  if (name == "hbm") {
    if (!parts_.hbm.is_pinned(inode)) return Error(ENODATA, "hbm");
    return std::string("pinned");
  }
  if (name == "gpu") return parts_.gpu.describe_route(inode);
  if (name == "explain" && parts_.migration != nullptr) return explain(inode);
  return Error(ENODATA, "getxattr");
}

Result<void> Xattrs::set_virtual(const InodePtr& inode, std::string_view name,
                                 std::string_view value, uid_t user, const KernelRequest& request) {
  if (name == "prefetch") return parts_.gpu.prefetch(inode, value, user);
  if (name == "budget") return set_budget(inode, value, user, request);
  // A file can be pinned to a tier and to GPU memory, so these are different attributes.
  if (name == "hbm" || (name == "pin" && value == kHbmName))
    return parts_.hbm.pin(inode, user, request);
  if (name != "tier" && name != "pin") return Error(EPERM, "setxattr");
  const Tier* tier = parts_.pool.by_name(value);
  if (tier == nullptr) return Error(EINVAL, "the pool has no tier with that name");
  if (name == "tier") return parts_.moves.request(inode, tier->index(), user);
  SLUICE_TRY(parts_.attributes.set_xattr(inode, kPinXattr, value, 0, Caller{}, request));
  pin_changed(inode);
  return {};
}

Result<void> Xattrs::remove_virtual(const InodePtr& inode, std::string_view name, uid_t user,
                                    const KernelRequest& request) {
  if (name == "budget") {
    SLUICE_TRY(check_budget(inode, user));
    SLUICE_TRY(parts_.attributes.remove_xattr(inode, kBudgetXattr, request));
    parts_.budget_trees.changed(inode);
    return {};
  }
  if (name == "hbm") return parts_.hbm.unpin(inode, request);
  if (name == "tier") return parts_.moves.withdraw(inode);
  if (name != "pin") return Error(EPERM, "removexattr");
  SLUICE_TRY(parts_.attributes.remove_xattr(inode, kPinXattr, request));
  pin_changed(inode);
  return {};
}

void Xattrs::pin_changed(const InodePtr& inode) {
  parts_.pins.changed(inode);
  const InodePtr directory = inode->is_directory() ? inode : parts_.tree.parent_of(inode);
  if (directory) parts_.budget_trees.changed(directory);
  if (parts_.migration != nullptr) parts_.migration->replan_soon();
}

Result<void> Xattrs::check_budget(const InodePtr& directory, uid_t user) {
  if (!directory->is_directory()) return Error(ENOTDIR, "only a directory can have a budget");
  if (directory->id() == kRootId) return Error(EINVAL, "the whole mount cannot have a budget");
  const struct statx st = SLUICE_TRY(parts_.attributes.statx_on_tier(directory));
  if (user != 0 && user != st.stx_uid)
    return Error(EPERM, "only the owner of the directory and root can set its budget");
  return {};
}

Result<void> Xattrs::set_budget(const InodePtr& directory, std::string_view value, uid_t user,
                                const KernelRequest& request) {
  if (value == "none") return remove_virtual(directory, "budget", user, request);
  SLUICE_TRY(check_budget(directory, user));
  const auto bytes = parse_size(value);
  if (!bytes || *bytes == 0) return Error(EINVAL, "not a size");
  SLUICE_TRY(parts_.budget_trees.count_budget(directory, user));
  const auto done = parts_.attributes.set_xattr(
      directory, kBudgetXattr, encode_budget({*bytes, user}), 0, Caller{}, request);
  parts_.budget_trees.changed(directory);
  return done;
}

namespace {

nlohmann::json to_json(const BudgetForecast::Sum& sum) {
  return {{"files", sum.files}, {"bytes", sum.bytes}};
}

}  // namespace

// Who may set a budget may ask what it would delete.
Result<std::string> Xattrs::preview_budget(const InodePtr& directory, std::string_view size) {
  using nlohmann::json;
  const uid_t user = current_caller().uid;
  SLUICE_TRY(check_budget(directory, user));
  const auto bytes = parse_size(size);
  if (!bytes || *bytes == 0) return Error(EINVAL, "not a size");
  const auto preview = SLUICE_TRY(parts_.forecast.preview(directory, {*bytes, user}));
  json kept = json::object(), first = json::array();
  for (const auto& [why, sum] : preview.kept) kept[std::string(name_of(why))] = to_json(sum);
  std::size_t path_bytes = 0;
  for (const BudgetForecast::Going& file : preview.first) {
    const json path = file.path;
    path_bytes += path.dump(-1, ' ', false, json::error_handler_t::replace).size();
    if (path_bytes > kMostPathBytes) break;
    first.push_back({{"path", path},
                     {"bytes", file.bytes},
                     {"last_use", static_cast<std::int64_t>(file.last_use)},
                     {"waits", file.why ? json(name_of(*file.why)) : json()}});
  }
  const json out = {{"budget", preview.budget.bytes},
                    {"in_force", preview.in_force ? json(*preview.in_force) : json()},
                    {"used", preview.used},
                    {"files", preview.files},
                    {"now", to_json(preview.now)},
                    {"later", to_json(preview.later)},
                    {"first", first},
                    {"kept", kept},
                    {"over", preview.over},
                    {"complete", preview.is_complete}};
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

nlohmann::json Xattrs::hbm_of(const InodePtr& inode) {
  nlohmann::json copies = nlohmann::json::array();
  for (const auto& held : parts_.gpu.in_hbm(inode)) {
    copies.push_back({{"gpu", to_string(held.device->uuid())}, {"bytes", held.bytes}});
  }
  return {{"pinned", parts_.hbm.is_pinned(inode)}, {"copies", copies}};
}

Result<std::string> Xattrs::budget_of(const InodePtr& inode) {
  const auto budget =
      parts_.budget_trees.nearest(inode->is_directory() ? inode : parts_.tree.parent_of(inode));
  if (!budget) return Error(ENODATA, "budget");
  return std::to_string(budget->bytes);
}

// What the planner knows about the file.
Result<FileFacts> Xattrs::facts_of(const InodePtr& inode, const struct statx& st,
                                   const std::vector<Rule>& rules) {
  const Heat heat = SLUICE_TRY(parts_.accesses.heat(inode));
  FileFacts facts;
  facts.id = inode->id();
  facts.bytes = st.stx_blocks * 512;
  facts.last_use = heat.last_access;
  const auto times = parts_.store.times(inode->id());
  const unsigned slot = parts_.pool[inode->tier()].member().slot;
  facts.arrived = std::max(made_at(st), times ? moved_at(*times, slot) : 0);
  facts.score = static_cast<float>(SLUICE_TRY(parts_.accesses.score(inode)));
  facts.recent = static_cast<float>(
      decayed(heat.recent, heat.last_access, parts_.clock.seconds(), kRecentHalfLife));
  facts.since = heat.since;
  facts.opens = static_cast<std::uint32_t>(heat.opens);
  facts.pin = parts_.pins.effective(inode);
  facts.tier = inode->tier();
  const std::int64_t used = std::max<std::int64_t>(st.stx_mtime.tv_sec, facts.last_use);
  const std::int64_t age = std::max<std::int64_t>(parts_.clock.seconds() - used, 0);
  const auto rule =
      matching_rule(rules, parts_.tree.path_of(inode), st.stx_size, std::chrono::seconds(age));
  if (rule) facts.rule = static_cast<std::uint16_t>(*rule);
  return facts;
}

namespace {

// What the file is worth on each tier but the slowest, per day.
void add_worth(nlohmann::json& out, const Appraisal& file, const Market& market,
               const std::vector<TierFacts>& tiers, const std::vector<std::string>& names) {
  using nlohmann::json;
  out["uses_per_day"] = file.rate * kSecondsPerDay;
  for (std::size_t i = 0; i + 1 < names.size(); ++i) {
    const bool is_known = i < market.prices.size();
    out["worth"].push_back(
        {{"tier", names[i]},
         {"against", names[i + 1]},
         {"saves", (file.value[i] - file.value[i + 1]) * kSecondsPerDay},
         {"per_gb", file.per_byte[i] * kPerGigabyteDay},
         {"intake", name_of(intake_of(tiers[i]))},
         {"price", is_known ? json(market.prices[i] * kPerGigabyteDay) : json()}});
  }
}

// Whether heat or value decides: scores and min_stay do not matter to a pin, a rule or a drain.
bool is_by_heat(const Verdict& verdict, const FileFacts& facts) {
  return verdict.reason == Reason::Hot || verdict.reason == Reason::Returning ||
         verdict.reason == Reason::Cold ||
         (verdict.reason == Reason::Stays && facts.rule == kNoRule);
}

// The scores at which the file moves. A file that wants another tier has reached the threshold for
// it; what is next is the tier above that one.
void add_thresholds(nlohmann::json& out, const FileFacts& facts, const Verdict& verdict,
                    const std::vector<TierFacts>& tiers, const std::vector<std::string>& names) {
  const TierIndex best = std::min(facts.tier, verdict.wants);
  if (verdict.reason != Reason::Cold && best > 0 && facts.score < tiers[best - 1U].threshold)
    out["promote"] = {{"tier", names[best - 1U]}, {"at", tiers[best - 1U].threshold}};
  if (verdict.reason == Reason::Stays && facts.tier + 1U < names.size() &&
      tiers[facts.tier].threshold > 0)
    out["demote"] = {{"tier", names[facts.tier + 1U]}, {"below", tiers[facts.tier].threshold / 2}};
}

// What keeps the file from the tier that it wants.
nlohmann::json hold_of(const Verdict& verdict, const FileFacts& facts,
                       const std::vector<TierFacts>& tiers) {
  const TierFacts& wanted = tiers[verdict.wants];
  if (verdict.wants != facts.tier && is_usable(wanted) && facts.bytes > brim_of(wanted))
    return "too_large";
  return verdict.blocker == Blocker::None ? nlohmann::json() : name_of(verdict.blocker);
}

// What makes a file leave before min_stay: a tier that lacks room sends all down, if it can.
nlohmann::json stays_unless(TierIndex tier, const std::vector<TierFacts>& tiers) {
  const bool can_go =
      is_usable(tiers[tier]) && std::any_of(tiers.begin() + tier + 1, tiers.end(), is_usable);
  if (!can_go) return nullptr;
  return is_crowded(tiers[tier]) ? "crowded" : "filled";
}

}  // namespace

// The file's move, if it has one, and its last moves.
void Xattrs::add_moves(nlohmann::json& out, InodeId id, const std::vector<std::string>& names) {
  constexpr std::size_t kMostMoves = 5;
  Mover& mover = parts_.migration->mover();
  if (const auto running = mover.running(id); running && running->since > 0) {
    out["moving"] = {{"to", names[running->to]},
                     {"bytes", running->copied},
                     {"total", running->bytes},
                     {"since", running->since}};
  } else if (const auto to = mover.destination(id)) {
    out["queued"] = {{"to", names[*to]}};
  }
  if (const auto pending = mover.pending(id))
    out["pending"] = {{"to", names[pending->move.to]}, {"why", pending->why}};
  // Without them, the explanation is still of use.
  const auto moves = parts_.store.receipts_of(id, kMostMoves);
  if (!moves) return;
  for (const Receipt& each : *moves) {
    out["moves"].push_back({{"time", each.time},
                            {"from", each.from},
                            {"to", each.to},
                            {"bytes", each.bytes},
                            {"ms", each.milliseconds},
                            {"code", each.code},
                            {"result", result_of(each)},
                            {"reason", each.reason}});
  }
}

// All that can be said of a file whose tier is offline.
Result<std::string> Xattrs::explain_offline(const InodePtr& inode) {
  using nlohmann::json;
  const Tier& tier = parts_.pool[inode->tier()];
  const std::string path = parts_.tree.path_of(inode);
  std::vector<std::string> names;
  for (const auto& each : parts_.pool) names.push_back(each->name());
  json j = {{"path", path},
            {"tier", tier.name()},
            {"location", tier.path() + path},
            {"offline", tier.why_offline()},
            {"given_up", parts_.pool.is_retired(tier.index())},
            {"moving", json()},
            {"queued", json()},
            {"pending", json()},
            {"moves", json::array()}};
  add_moves(j, inode->id(), names);
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<std::string> Xattrs::explain(const InodePtr& inode) {
  using nlohmann::json;
  if (!parts_.pool[inode->tier()].online()) return explain_offline(inode);
  const struct statx st =
      SLUICE_TRY(parts_.attributes.statx_on_tier(inode));  // its birth is the arrival on this tier
  const Policy policy = parts_.migration->policy();
  const FileFacts facts = SLUICE_TRY(facts_of(inode, st, policy.rules));
  const std::vector<TierFacts> tiers = parts_.migration->tier_facts();
  const Market market = parts_.migration->market();
  const std::int64_t now = parts_.clock.seconds();
  const Verdict verdict = judge(facts, tiers, policy, market, now);
  std::vector<std::string> names;
  for (const auto& tier : parts_.pool) names.push_back(tier->name());

  const std::string path = parts_.tree.path_of(inode);
  json j = {{"path", path},
            {"tier", names[facts.tier]},
            {"location", parts_.pool[facts.tier].path() + path},
            {"bytes", st.stx_size},
            {"score", facts.score},
            {"opens", facts.opens},
            {"last_use", facts.last_use},
            {"arrived", facts.arrived},
            {"links", st.stx_nlink},
            {"wants", names[verdict.wants]},
            {"reason", name_of(verdict.reason)},
            {"why", explain_worth(facts, verdict.reason, verdict.wants, tiers, names, policy,
                                  market, now)},
            {"hold", hold_of(verdict, facts, tiers)},
            {"hold_tier", names[can_leave(tiers[facts.tier]) ? verdict.wants : facts.tier]},
            {"pin", json()},
            {"hbm", hbm_of(inode)},
            {"rule", json()},
            {"uses_per_day", json()},
            {"worth", json::array()},
            {"optimize", policy.objective == Objective::Hits ? "hits" : "time"},
            {"budgets", json::array()},
            {"promote", json()},
            {"demote", json()},
            {"stays_until", json()},
            {"stays_unless", json()},
            {"twin", json()},
            {"moving", json()},
            {"queued", json()},
            {"pending", json()},
            {"moves", json::array()}};
  if (facts.pin != kNoTier) {
    const InodePtr pin_source = parts_.pins.pin_source(inode);
    j["pin"] = {{"tier", names[facts.pin]},
                {"from", pin_source ? parts_.tree.path_of(pin_source) : ""}};
  }
  if (facts.rule != kNoRule) {
    const Rule& rule = policy.rules[facts.rule];
    j["rule"] = {{"match", rule.match}, {"tier", rule.tier == kNoTier ? "stay" : names[rule.tier]}};
  }
  for (const BudgetForecast::Standing& each : parts_.forecast.standing(inode)) {
    j["budgets"].push_back({{"directory", each.directory},
                            {"budget", each.budget.bytes},
                            {"used", each.used},
                            {"before", each.before},
                            {"kept", each.kept ? json(name_of(*each.kept)) : json()}});
  }
  const bool by_value = policy.method == Method::Value;
  if (by_value) add_worth(j, appraise(facts, tiers, policy, market, now), market, tiers, names);
  if (const auto twin = parts_.pool.twins().of(inode->identity)) {
    j["twin"] = {{"tier", names[twin->tier]},
                 {"state", twin->state == TwinState::Same ? "same" : "to be compared"}};
  }
  const std::int64_t stays_until = facts.arrived + policy.min_stay.count();
  if (is_by_heat(verdict, facts)) {
    if (!by_value) add_thresholds(j, facts, verdict, tiers, names);
    if (stays_until > now && can_leave(tiers[facts.tier])) {
      j["stays_until"] = stays_until;
      j["stays_unless"] = stays_unless(facts.tier, tiers);
    }
  }
  add_moves(j, inode->id(), names);
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace sluice
