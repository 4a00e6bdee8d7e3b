// SPDX-License-Identifier: BSD-2-Clause
// What Sluice says of itself through the mount: the user.sluice.* xattrs, and the housekeeping
// behind them.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "fs/filesystem.hpp"
#include "metadata/decay.hpp"
#include "tiering/pin.hpp"

namespace sluice {
namespace {
constexpr unsigned kTicksPerFlush = 5;
constexpr std::size_t kBurst = 10'000;
// How far up a pin is looked for after pins have changed; beyond, what was known before holds. One
// user's deep tree and changing pins must not keep others waiting.
constexpr std::size_t kMostLevels = 4096;
}  // namespace

// Nothing if `name` is not one of ours. They are never listed, so that cp and rsync don't carry
// them along.
std::optional<Result<std::string>> Filesystem::virtual_xattr(const InodePtr& inode,
                                                             std::string_view name) {
  using Answer = Result<std::string>;
  if (!name.starts_with(kVirtualPrefix)) return std::nullopt;
  name.remove_prefix(kVirtualPrefix.size());

  std::vector<TierIndex> tiers;
  {
    MutexLock lock(inode->mutex);
    for (const Copy& copy : inode->copies) tiers.push_back(copy.tier);
  }
  if (name == "tier") {
    std::string names;
    for (const TierIndex tier : tiers) names += (names.empty() ? "" : ",") + pool_[tier].name();
    return Answer(names);
  }
  if (name == "location") {
    const std::string path = path_of(inode);
    if (path.empty()) return Answer(Error(ENODATA, "location"));
    const std::string& root = pool_[tiers[0]].path();
    return Answer(path == "/" ? root : root + path);
  }
  if (name == "pin") {
    const TierIndex pin = effective_pin(inode);
    if (pin == kNoTier) return Answer(Error(ENODATA, "pin"));
    return Answer(pool_[pin].name());
  }
  if (!S_ISREG(inode->type)) return Answer(Error(ENODATA, "getxattr"));
  if (name == "accesses") {
    const auto heat = heat_.heat(inode->id());
    if (!heat) return Answer(heat.error());
    return Answer(std::to_string(heat->opens + inode->new_opens.load()));
  }
  if (name == "heat") {
    const auto score = score_of(inode);
    if (!score) return Answer(score.error());
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.2f", *score);
    return Answer(text.data());
  }
  if (name == "gpu") return describe_route(inode);
  if (name == "explain" && migration_ != nullptr) return explain(inode);
  return Answer(Error(ENODATA, "getxattr"));
}

Result<void> Filesystem::set_virtual_xattr(const InodePtr& inode, std::string_view name,
                                           std::string_view value, uid_t user) {
  name.remove_prefix(kVirtualPrefix.size());
  if (name == "prefetch") return prefetch(inode, value, user);
  if (name != "tier" && name != "pin") return Error(EPERM, "setxattr");
  const Tier* tier = pool_.by_name(value);
  if (tier == nullptr) return Error(EINVAL, "the pool has no tier of that name");
  if (name == "tier") return request_move(inode, tier->index(), user);
  SLUICE_TRY(store_xattr(inode, kPinXattr, value, 0, Caller{}));
  pin_changed(inode);
  return {};
}

Result<void> Filesystem::remove_virtual_xattr(const InodePtr& inode, std::string_view name) {
  name.remove_prefix(kVirtualPrefix.size());
  if (name != "pin") return Error(EPERM, "removexattr");
  SLUICE_TRY(erase_xattr(inode, kPinXattr));
  pin_changed(inode);
  return {};
}

void Filesystem::pin_changed(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    ++inode->xattrs_set;  // who has just read the old one must not remember it
    inode->own_pin_epoch = 0;
  }
  if (inode->is_directory()) ++pin_epoch_;
  if (migration_ != nullptr) migration_->replan_soon();
}

Result<void> Filesystem::request_move(const InodePtr& inode, TierIndex to, uid_t user) {
  if (!S_ISREG(inode->type)) return Error(EISDIR, "move");
  if (migration_ == nullptr) return Error(EOPNOTSUPP, "move");
  if (!pool_[to].online()) return Error(EIO, "the tier is offline");
  if (pool_[to].is_draining()) return Error(EBUSY, "the tier is being emptied");
  Move move;
  move.id = inode->id();
  move.to = to;
  move.why = "asked for";
  move.user = user;
  move.bytes = static_cast<std::uint64_t>(SLUICE_TRY(stat_of(inode)).st_blocks) * 512;
  move.paths.push_back(path_of(inode));
  if (move.paths[0].empty()) return Error(ENOENT, "move");
  {
    MutexLock lock(inode->mutex);
    move.from = inode->copies[0].tier;
  }
  if (move.from == to) {
    migration_->mover().forget_pending(move.id);
    return {};
  }
  return migration_->request(std::move(move));
}

InodePtr Filesystem::parent_of(const InodePtr& inode) {
  InodeId up{};
  {
    MutexLock lock(inode->mutex);
    up = inode->parent;
  }
  return table_.find(up);
}

void Filesystem::pins_may_differ() {
  ++tier_epoch_;
  ++pin_epoch_;
}

TierIndex Filesystem::own_pin_of(const InodePtr& directory) {
  const std::uint32_t epoch = tier_epoch_.load();
  unsigned set_before = 0;
  {
    MutexLock lock(directory->mutex);
    if (directory->own_pin_epoch == epoch) return directory->own_pin;
    set_before = directory->xattrs_set;
  }
  const auto fd = any_fd(directory);
  if (!fd) return kNoTier;
  const TierIndex own = own_pin(pool_, (*fd)->get(), "").value_or(kNoTier);
  MutexLock lock(directory->mutex);
  if (directory->xattrs_set == set_before) {
    directory->own_pin = own;
    directory->own_pin_epoch = epoch;
  }
  return own;
}

TierIndex Filesystem::pin_inside(const InodePtr& directory) {
  const std::uint64_t epoch = pin_epoch_.load();
  std::vector<InodePtr> unsure;  // from `directory` up to where the answer is
  TierIndex pin = kNoTier;
  for (InodePtr at = directory; at;) {
    InodeId up{};
    {
      MutexLock lock(at->mutex);
      const bool is_too_far = unsure.size() == kMostLevels;
      if (at->pin_epoch == epoch || is_too_far) {
        pin = at->pin;
        // What is nearer to the top may still find it out.
        if (is_too_far) unsure.resize(1);
        break;
      }
      up = at->parent;
    }
    unsure.push_back(at);
    pin = own_pin_of(at);
    if (pin != kNoTier || at->id() == kRootId) break;
    at = table_.find(up);
  }
  for (const InodePtr& each : unsure) {
    MutexLock lock(each->mutex);
    each->pin = pin;
    each->pin_epoch = epoch;
  }
  return pin;
}

TierIndex Filesystem::effective_pin(const InodePtr& inode) {
  const auto fd = any_fd(inode);
  const auto own = fd ? own_pin(pool_, (*fd)->get(), "") : std::nullopt;
  if (own || inode->id() == kRootId) return own.value_or(kNoTier);
  SharedLock lock(namespace_);
  const InodePtr parent = parent_of(inode);
  return parent ? pin_inside(parent) : kNoTier;
}

InodePtr Filesystem::pin_bearer(const InodePtr& inode) {
  InodePtr at = inode;
  for (std::size_t levels = 0; at && levels < kMostLevels; ++levels) {
    if (own_pin_of(at) != kNoTier) return at;
    if (at->id() == kRootId) break;
    at = parent_of(at);
  }
  return nullptr;
}

bool Filesystem::is_deeper_than(const InodePtr& inode, std::size_t levels) {
  InodePtr at = inode;
  for (std::size_t level = 0; at && at->id() != kRootId; ++level) {
    if (level == levels) return true;
    at = parent_of(at);
  }
  return false;
}

TierIndex Filesystem::wanted_tier(const InodePtr& parent, const char* name) {
  const TierIndex pin = pin_inside(parent);
  if (pin != kNoTier || migration_ == nullptr || migration_->policy().rules.empty()) return pin;
  // A path that nobody can write down matches no rule: the census does not get there either.
  if (is_deeper_than(parent, PATH_MAX / 2)) return kNoTier;
  // It is empty, and as young as can be.
  const auto& rules = migration_->policy().rules;
  const std::string directory = path_of(parent);
  const auto rule = matching_rule(rules, (directory == "/" ? "" : directory) + "/" + name, 0, {});
  return rule ? rules[*rule].tier : kNoTier;
}

Result<double> Filesystem::score_of(const InodePtr& inode) {
  const Heat heat = SLUICE_TRY(heat_.heat(inode->id()));
  return decayed(heat.score, heat.last_access, std::time(nullptr), settings_.half_life) +
         inode->new_opens.load();
}

// What the planner would know of the file.
Result<FileFacts> Filesystem::facts_of(const InodePtr& inode, const struct statx& st) {
  const Heat heat = SLUICE_TRY(heat_.heat(inode->id()));
  FileFacts facts;
  facts.id = inode->id();
  facts.bytes = st.stx_blocks * 512;
  facts.last_use = heat.last_access;
  facts.arrived = st.stx_mask & STATX_BTIME ? st.stx_btime.tv_sec : st.stx_ctime.tv_sec;
  facts.score = static_cast<float>(SLUICE_TRY(score_of(inode)));
  facts.opens = static_cast<std::uint32_t>(heat.opens) + inode->new_opens.load();
  facts.pin = effective_pin(inode);
  {
    MutexLock lock(inode->mutex);
    facts.tier = inode->copies[0].tier;
  }
  const std::int64_t used = std::max<std::int64_t>(st.stx_mtime.tv_sec, facts.last_use);
  const std::int64_t age = std::max<std::int64_t>(std::time(nullptr) - used, 0);
  const auto rule = matching_rule(migration_->policy().rules, path_of(inode), st.stx_size,
                                  std::chrono::seconds(age));
  if (rule) facts.rule = static_cast<std::uint16_t>(*rule);
  return facts;
}

Result<std::string> Filesystem::explain(const InodePtr& inode) {
  using nlohmann::json;
  const struct statx st = SLUICE_TRY(statx_on_tier(inode));  // its birth is its arrival there
  const FileFacts facts = SLUICE_TRY(facts_of(inode, st));
  const Policy& policy = migration_->policy();
  const std::vector<TierFacts> tiers = migration_->tier_facts();
  const Verdict verdict = judge(facts, tiers, policy, std::time(nullptr));
  std::vector<std::string> names;
  for (const auto& tier : pool_) names.push_back(tier->name());

  const std::string path = path_of(inode);
  json j = {{"path", path},
            {"tier", names[facts.tier]},
            {"location", pool_[facts.tier].path() + path},
            {"bytes", st.stx_size},
            {"score", facts.score},
            {"opens", facts.opens},
            {"last_use", facts.last_use},
            {"arrived", facts.arrived},
            {"links", st.stx_nlink},
            {"wants", names[verdict.wants]},
            {"reason", name_of(verdict.reason)},
            {"why", explain_move(facts, verdict.reason, verdict.wants, tiers, names, policy)},
            {"hold", verdict.hold == Hold::None ? json() : json(name_of(verdict.hold))},
            {"pin", json()},
            {"rule", json()},
            {"promote", json()},
            {"demote", json()},
            {"stays_until", json()},
            {"moving", json()},
            {"pending", json()}};
  if (facts.pin != kNoTier) {
    const InodePtr bearer = pin_bearer(inode);
    j["pin"] = {{"tier", names[facts.pin]}, {"from", bearer ? path_of(bearer) : ""}};
  }
  if (facts.rule != kNoRule) {
    const Rule& rule = policy.rules[facts.rule];
    j["rule"] = {{"match", rule.match}, {"tier", rule.tier == kNoTier ? "stay" : names[rule.tier]}};
  }
  if (facts.tier > 0)
    j["promote"] = {{"tier", names[facts.tier - 1U]}, {"at", tiers[facts.tier - 1U].threshold}};
  if (facts.tier + 1U < names.size() && tiers[facts.tier].threshold > 0)
    j["demote"] = {{"tier", names[facts.tier + 1U]}, {"below", tiers[facts.tier].threshold / 2}};
  const std::int64_t stays_until = facts.arrived + policy.min_stay.count();
  if (stays_until > std::time(nullptr)) j["stays_until"] = stays_until;
  if (const auto to = migration_->mover().destination(inode->id()))
    j["moving"] = {{"to", names[*to]}};
  if (const auto pending = migration_->mover().pending(inode->id()))
    j["pending"] = {{"to", names[pending->move.to]}, {"why", pending->why}};
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

void Filesystem::trace_access(const InodePtr& inode) {
  constexpr std::size_t kMost = 100'000;  // somebody who does not come to fetch them gets no more
  TracedAccess access;
  access.time = static_cast<double>(std::chrono::system_clock::now().time_since_epoch() /
                                    std::chrono::microseconds(1)) /
                1e6;
  access.id = inode->id();
  access.path = path_of(inode);
  {
    MutexLock lock(inode->mutex);
    access.size = inode->size_hint;
  }
  MutexLock lock(trace_mutex_);
  if (traced_.size() < kMost) traced_.push_back(std::move(access));
}

void Filesystem::trace(bool on) {
  MutexLock lock(trace_mutex_);
  tracing_ = on;
  traced_.clear();
}

std::vector<TracedAccess> Filesystem::traced() {
  MutexLock lock(trace_mutex_);
  return std::exchange(traced_, {});
}

Result<void> Filesystem::flush_heat() {
  times_.flush();
  std::vector<InodePtr> opened;
  {
    MutexLock lock(opened_mutex_);
    opened.swap(opened_);
  }
  for (const InodePtr& inode : opened) {
    heat_.record(inode->id(), {.opens = inode->new_opens.exchange(0)});
  }
  const auto flushed = heat_.flush();
  offer_hot_files();
  // The C library keeps what a burst of a hundred thousand opens took; most daemons never see
  // another.
  if (opened.size() > kBurst) ::malloc_trim(0);
  return flushed;
}

void Filesystem::offer_hot_files() {
  const std::int64_t now = std::time(nullptr);
  std::vector<HotList::File> files;
  for (const InodeId id : heat_.busiest()) {
    const InodePtr inode = table_.find(id);
    const std::string path = inode ? path_of(inode) : "";
    const auto score = path.empty() ? Result<double>(0.0) : score_of(inode);
    if (score && *score > 0) files.push_back({id, path, *score, now});
  }
  hot_files_.offer(std::move(files));
}

std::vector<Filesystem::HotFile> Filesystem::hottest(std::size_t most) {
  std::vector<HotFile> out;
  for (const HotList::File& file : hot_files_.hottest(HotList::kMost, std::time(nullptr))) {
    if (out.size() == most) break;
    InodePtr inode = table_.find(file.id);
    std::string path = inode ? path_of(inode) : "";
    if (path.empty()) {
      // The kernel has forgotten it, and so have we: is it still where it was?
      std::vector<InodeId> references;
      const auto found = walk(file.path, references);
      for (const InodeId each : references) forget(each, 1);
      if (!found || (*found)->id() != file.id) {
        // A tier that is away may bring it back; otherwise it is gone, or the next pass finds it.
        const bool is_away = !found && found.error().code == EIO;
        if (!is_away) hot_files_.forget(file.id);
        continue;
      }
      inode = *found;
      path = file.path;
    }
    const auto score = score_of(inode);
    MutexLock lock(inode->mutex);
    out.push_back({std::move(path), inode->copies[0].tier, score ? *score : file.score});
  }
  // The last seconds' opens count, too.
  std::stable_sort(out.begin(), out.end(),
                   [](const HotFile& a, const HotFile& b) { return a.score > b.score; });
  return out;
}

// Use that no open tells of.
void Filesystem::sample_open_files() {
  if (sampler_) {
    for (const InodeId id : sampler_->used()) heat_.record(id, {.opens = 1});
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_sample_) return;
  next_sample_ = now + settings_.heat_sample;
  if (!sampler_) {
    auto created = AccessSampler::create();
    if (!created) {
      log::get().warn("files that stay open can't be watched; only opens count as use: why={}",
                      std::strerror(created.error().code));
      next_sample_ = std::chrono::steady_clock::time_point::max();
      return;
    }
    sampler_ = *std::move(created);
  }
  std::vector<std::pair<InodeId, SharedFd>> open;
  table_.for_each([&](Inode& inode) {
    MutexLock lock(inode.mutex);
    if (inode.open && inode.open->passthrough && inode.open->reader)
      open.emplace_back(inode.id(), inode.open->reader);
  });
  sampler_->watch(open);
}

void Filesystem::tick() {
  notice_mapped_changes();
  drop_written_pages();
  settle_moves();
  if (settings_.heat_sample.count() > 0) sample_open_files();
  for (const auto& tier : pool_) {
    if (tier->check_presence() && !tier->present()) tier_went(*tier);
    // Tried every second, if it can't be told at first what changed in its absence.
    if (tier->present() && !tier->online()) tier_returned(*tier);
  }
  if (migration_ != nullptr) migration_->tick();
  if (++ticks_ % kTicksPerFlush != 0) return;
  if (const auto flushed = flush_heat(); !flushed) {
    log::get().warn("access counts could not be stored and are kept in memory: why={}",
                    std::strerror(flushed.error().code));
  }
}

}  // namespace sluice
