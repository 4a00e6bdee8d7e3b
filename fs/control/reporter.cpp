// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/reporter.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/disk_counters.hpp"
#include "fs/control/metrics.hpp"
#include "gpu/hbm.hpp"
#include "gpu/warmer.hpp"
#include "tiering/choose/worth.hpp"
#include "tiering/pool/tier_state.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

// Limits, so that a line of the answer fits into the client's buffer even with long names.
constexpr std::size_t kMostShown = 16;
constexpr std::size_t kMostHotFiles = 20;

// Whether the mount outlives a crash of the daemon.
Feature keeper_feature(const KeeperLink* keeper) {
  if (!Session::kernel_resends()) {
    return {false,
            "this kernel can't send requests again (Linux 6.9 and later can): a crash of "
            "the daemon ends the mount"};
  }
  if (keeper == nullptr) return {false, "turned off by debug option keeper"};
  if (keeper->keeper() == 0)
    return {false, "the keeper has died: a crash of the daemon ends the mount"};
  return {true, ""};
}

json to_json(const Feature& feature) { return {{"on", feature.on}, {"why", feature.why}}; }

// The price of a tier per GB and day; null if there is none yet.
json price_of(const Market& market, TierIndex tier) {
  if (tier >= market.prices.size()) return nullptr;
  return market.prices[tier] * kPerGigabyteDay;
}

json to_json(const std::vector<TierState>& states) {
  json out = json::array();
  for (const TierState& state : states)
    out.push_back({{"name", state.name}, {"words", state.words}, {"serious", state.is_serious}});
  return out;
}

json to_json(const Pool& pool, const Tier& tier, const Migration& migration, const Market& market) {
  const Space space = tier.space();
  const SpeedMeter::Reading reading = migration.speeds().reading(tier.index());
  const Twins::Figures twins = pool.twins().figures(tier.index());
  const TierLimits s = tier.limits();
  const Relief relief = migration.relief(tier.index());
  return {{"name", tier.name()},
          {"path", tier.path()},
          {"online", tier.online()},
          {"why", tier.why_offline()},
          {"offline_since", tier.offline_since()},
          {"intake", name_of(tier.intake())},
          {"states", to_json(states_of(pool, tier, relief))},
          {"filesystem", tier.filesystem()},
          {"total", space.total},
          {"free", space.free},
          {"used", space.used()},
          {"kept", space.kept},
          {"twins", twins.files},
          {"twin_bytes", twins.bytes},
          {"capacity", s.capacity ? json(*s.capacity) : json(nullptr)},
          {"high_watermark", s.high_watermark},
          {"low_watermark", s.low_watermark},
          {"leaves_at", relief <= Relief::Waits ? json(watermark_of(tier.facts())) : json(nullptr)},
          {"reserve", tier.reserve()},
          {"threshold", s.threshold},
          {"speed",
           {{"latency_us", reading.speed.latency * 1e6},
            {"bytes_per_s", reading.speed.bandwidth},
            {"source", name_of(reading.source)}}},
          {"price", price_of(market, tier.index())},
          {"draining", tier.is_draining()}};
}

json disk_of(const Tier& tier) {
  const auto disk = tier.online() ? disk_counters(tier.device()) : std::nullopt;
  if (!disk) return nullptr;
  return {{"name", disk->name},
          {"reads", disk->reads},
          {"read_bytes", disk->read_bytes},
          {"writes", disk->writes},
          {"written_bytes", disk->written_bytes},
          {"busy_ms", disk->busy_ms}};
}

json to_json(const Stats::Figures& figures) {
  json out = json::object();
  for (std::uint32_t i = 0; i < kRoutes; ++i) {
    const RouteFigures& each = figures[i];
    if (i > 0 && each.operations + each.failures == 0) continue;
    const double busy = std::chrono::duration<double>(each.busy).count();
    const auto micros = [](std::chrono::nanoseconds t) {
      return static_cast<double>(t.count()) / 1e3;
    };
    out[i == 0 ? "all" : std::string(name_of(static_cast<Route>(i)))] = {
        {"operations", each.operations},
        {"failures", each.failures},
        {"bytes", each.bytes},
        {"busy_s", busy},
        {"bytes_per_s", busy > 0 ? static_cast<double>(each.bytes) / busy : 0},
        {"peak_bytes_per_s", each.peak},
        {"average_us",
         each.operations > 0 ? micros(each.latency_sum) / static_cast<double>(each.operations) : 0},
        {"p50_us", micros(each.p50)},
        {"p99_us", micros(each.p99)}};
  }
  return out;
}

}  // namespace

double Reporter::uptime() const {
  return std::chrono::duration<double>(steady_clock::now() - started_).count();
}

json Reporter::requests() const {
  json out = json::object();
  for (const auto& [name, count] : parts_.session.request_counts()) out[name] = count;
  return out;
}

json Reporter::migration() const {
  Mover& mover = parts_.migration.mover();
  // Before the queue is counted: what comes out of the one must be seen in the other.
  const bool is_resuming = parts_.migration.is_resuming();
  const Mover::Progress now = mover.progress();
  const Twins::Totals twins = parts_.pool.twins().totals();
  json between = json::array();
  for (const auto& [tiers, moved] : now.between) {
    between.push_back({{"from", tiers.first},
                       {"to", tiers.second},
                       {"moved", moved.files},
                       {"moved_bytes", moved.bytes}});
  }
  const MountOptions options = parts_.options.now();
  return {{"automatic", options.migrate},
          {"policy", options.policy},
          {"optimize", options.optimize},
          {"paused", mover.is_paused()},
          {"resuming", is_resuming},
          {"next_pass", parts_.migration.next_pass()},
          {"passing", parts_.migration.is_passing()},
          {"moved", now.moved},
          {"moved_bytes", now.moved_bytes},
          {"failed", now.failed},
          {"copied_bytes", now.copied_bytes},
          {"share", now.share},
          {"between", std::move(between)},
          {"twins",
           {{"on", options.twins},
            {"kept", twins.kept},
            {"used", twins.used},
            {"used_bytes", twins.used_bytes},
            {"dropped", twins.dropped}}},
          {"queued", now.queued},
          {"queued_bytes", now.queued_bytes},
          {"bytes_left", now.bytes_left},
          {"time_left_s", now.time_left ? json(now.time_left->count()) : json()},
          {"active", now.active},
          {"pending", mover.pending_count()}};
}

// All trees together: their number is not limited, and a report is.
json Reporter::budgets() const {
  std::uint64_t trees = 0, budget = 0, used = 0, over = 0, stuck = 0, deleted = 0, bytes = 0;
  for (const BudgetTrees::Report& each : parts_.filesystem.budgets().trees().reports()) {
    ++trees;
    budget += each.budget.bytes;
    used += each.used;
    if (each.used > each.budget.bytes) ++over;
    if (each.is_stuck) ++stuck;
    deleted += each.deleted;
    bytes += each.deleted_bytes;
  }
  return {{"trees", trees}, {"budget", budget},   {"used", used},          {"over", over},
          {"stuck", stuck}, {"deleted", deleted}, {"deleted_bytes", bytes}};
}

json Reporter::gpu() const {
  Engine& engine = parts_.engine;
  json devices = json::array();
  // A report must not load CUDA.
  const bool loaded = engine.devices().is_loaded();
  if (loaded) {
    const MountOptions options = parts_.options.now();
    const auto figures = engine.hbm().figures();
    for (const auto& gpu : engine.devices().all()) {
      devices.push_back({{"uuid", to_string(gpu->uuid())},
                         {"name", gpu->name()},
                         {"pci", gpu->pci_address()},
                         {"memory", gpu->memory_bytes()},
                         {"lost", gpu->is_lost()},
                         {"routes", to_json(engine.stats().of(gpu->uuid()))}});
      if (!engine.hbm().is_on()) continue;
      HbmFigures hbm{.limit = options.hbm.of(gpu->memory_bytes()),
                     .reserve = options.hbm_reserve.of(gpu->memory_bytes())};
      for (const HbmFigures& each : figures) {
        if (each.device == gpu.get()) hbm = each;
      }
      devices.back()["hbm"] = {{"limit", hbm.limit},         {"reserve", hbm.reserve},
                               {"bytes", hbm.bytes},         {"files", hbm.files},
                               {"pinned", hbm.kept},         {"hits", hbm.hits},
                               {"hit_bytes", hbm.hit_bytes}, {"filled_bytes", hbm.filled_bytes},
                               {"evictions", hbm.evictions}};
    }
  }
  return {{"enabled", parts_.options.now().gpu},
          {"cuda", loaded ? json(engine.devices().driver_version()) : json()},
          {"why", loaded ? engine.devices().why_none() : ""},
          {"devices", devices},
          {"buffers", parts_.gpu.buffers()},
          {"buffer_bytes", parts_.gpu.buffer_bytes()},
          {"rings", parts_.gpu.rings()},
          {"host_bytes", parts_.gpu.host_memory().used()},
          {"host_bytes_limit", parts_.gpu.host_memory().most()},
          {"pinned_bytes", engine.pinned_bytes()},
          {"mapped_bytes", engine.mapped_bytes()},
          {"routes", to_json(engine.stats().all())}};
}

json Reporter::limits() const {
  std::vector<LimitUse> all = parts_.gpu.limits();
  const Warmer& warmer = parts_.engine.warmer();
  all.push_back({"prefetches", "user", warmer.most_of_user(), Warmer::kMostOfUser, "EAGAIN"});
  all.push_back({"prefetches", "all", warmer.jobs(), Warmer::kMostOfAll, "EAGAIN"});
  all.push_back({"requested moves", "user", parts_.migration.mover().most_requested(),
                 Mover::kMostOfUser, "EAGAIN"});
  const auto pins = parts_.filesystem.gpu().hbm_pins().count();
  all.push_back({"files pinned to GPU memory", "user", pins.most_of_user, HbmPins::kMostPinsOfUser,
                 "EDQUOT"});
  all.push_back({"files pinned to GPU memory", "all", pins.all, HbmPins::kMostPins, "ENOSPC"});
  all.push_back({"budgets", "user", parts_.filesystem.budgets().trees().most_of_user(),
                 BudgetTrees::kMostOfUser, "EDQUOT"});
  json out = json::array();
  for (const LimitUse& each : all) {
    out.push_back({{"what", each.what},
                   {"per", each.per},
                   {"used", each.used},
                   {"most", each.most},
                   {"bytes", each.is_in_bytes},
                   {"error", each.error}});
  }
  return out;
}

// The part that both kinds of report have.
json Reporter::common() const {
  return {{"version", SLUICE_VERSION},
          {"pool", parts_.pool.id()},
          {"mountpoint", parts_.options.now().mountpoint},
          {"migration", migration()},
          {"budgets", budgets()},
          {"gpu", gpu()},
          {"inodes", parts_.filesystem.known_inodes()},
          {"open_files", parts_.filesystem.files().open_files()},
          {"opens", parts_.filesystem.accesses().opens()},
          {"requests", requests()}};
}

json Reporter::status() const {
  json out = common();
  out["pid"] = ::getpid();
  const KeeperLink* const keeper = parts_.keeper;
  out["keeper"] = keeper != nullptr ? keeper->keeper() : 0;
  out["restarts"] = keeper != nullptr ? keeper->restarts() : 0;
  out["restart_reason"] = keeper != nullptr ? keeper->start_reason() : "";
  out["restart_failure"] = keeper != nullptr ? keeper->restart_failure() : "";
  if (const auto pause = parts_.session.handover_pause()) out["handover_ms"] = pause->count();
  out["state"] = parts_.state;
  // null: stderr; for a systemd unit that is the journal.
  const MountOptions options = parts_.options.now();
  if (!options.log_file.empty()) {
    out["log"] = options.log_file;
  } else {
    out["log"] = options.foreground ? json() : json(parts_.state + "/sluice.log");
  }
  out["uptime_s"] = static_cast<std::int64_t>(uptime());
  out["features"] = {{"passthrough", to_json(parts_.session.passthrough())},
                     {"keeper", to_json(keeper_feature(keeper))}};
  out["limits"] = limits();
  out["trials"] = parts_.options.trials();
  out["tiers"] = json::array();
  const Market market = parts_.migration.market();
  for (const auto& tier : parts_.pool) {
    out["tiers"].push_back(to_json(parts_.pool, *tier, parts_.migration, market));
  }
  return out;
}

json Reporter::activity() const {
  json out = figures();
  json moves = json::array();
  for (const Mover::Active& move : parts_.migration.mover().active(kMostShown)) {
    moves.push_back({{"path", move.path},
                     {"from", parts_.pool[move.from].name()},
                     {"to", parts_.pool[move.to].name()},
                     {"bytes", move.copied},
                     {"total", move.bytes},
                     {"since", move.since}});
  }
  json hottest = json::array();
  for (const AccessTracker::HotFile& file : parts_.filesystem.accesses().hottest(kMostHotFiles)) {
    hottest.push_back(
        {{"path", file.path}, {"tier", parts_.pool[file.tier].name()}, {"score", file.score}});
  }
  out["moves"] = std::move(moves);
  out["hottest"] = std::move(hottest);
  return out;
}

json Reporter::figures() const {
  json out = common();
  out["uptime_s"] = uptime();
  out["request_times"] = json::object();
  for (const auto& [kind, times] : parts_.session.request_times()) {
    out["request_times"][kind] = {{"sum_s", std::chrono::duration<double>(times.sum).count()},
                                  {"counts", times.counts}};
  }
  out["tiers"] = json::array();
  const Market market = parts_.migration.market();
  for (const auto& tier : parts_.pool) {
    const Tier::Traffic traffic = tier->traffic();
    json each = to_json(parts_.pool, *tier, parts_.migration, market);
    each["read_bytes"] = traffic.read;
    each["written_bytes"] = traffic.written;
    each["disk"] = disk_of(*tier);
    out["tiers"].push_back(std::move(each));
  }
  return out;
}

std::string Reporter::metrics() const { return metrics_text(figures()); }

}  // namespace sluice
