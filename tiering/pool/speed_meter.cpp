// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/speed_meter.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "tiering/pool/speed_probe.hpp"
#include "tiering/pool/storage_kind.hpp"

namespace sluice {
namespace {

using nlohmann::json;

// On disk: raise it when the meaning of a member changes. Another version is measured again.
constexpr int kVersion = 1;
constexpr const char* kFile = "../speed.json";  // from .sluice/tmp
constexpr std::chrono::seconds kBetweenLooks{1}, kBetweenCounters{10}, kBetweenSaves{600};
// A tier with less room than this many probes is not measured.
constexpr std::uint64_t kLeastProbes = 64;

// Changes with the filesystem, not with the mount; 0 if unknown.
std::uint64_t filesystem_id(int fd) {
  struct statfs fs {};
  std::uint64_t id = 0;
  if (::fstatfs(fd, &fs) < 0) return id;
  static_assert(sizeof fs.f_fsid == sizeof id);
  std::memcpy(&id, &fs.f_fsid, sizeof id);
  return id;
}

SpeedMeter::Reading usual(const Tier& tier) {
  return {usual_speed(storage_kind(tier.filesystem(), tier.device())), SpeedMeter::Source::Kind};
}

bool is_sane(const TierSpeed& speed) {
  return speed.latency > 0 && speed.latency < 60 && speed.bandwidth > 1e3 && speed.bandwidth < 1e13;
}

std::optional<SpeedMeter::Reading> load(const Tier& tier) {
  const auto temp = tier.temp_directory();
  if (!temp) return std::nullopt;
  const UniqueFd fd(::openat((*temp)->get(), kFile, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  std::array<char, 1024> text{};
  const ssize_t size = fd ? ::read(fd.get(), text.data(), text.size()) : -1;
  if (size <= 0) return std::nullopt;
  const json j = json::parse(text.data(), text.data() + size, nullptr, false);
  if (!j.is_object()) return std::nullopt;
  try {
    if (j.at("version") != kVersion || j.at("filesystem") != filesystem_id((*temp)->get()))
      return std::nullopt;
    SpeedMeter::Reading out;
    out.speed.latency = j.at("latency_us").get<double>() / 1e6;
    out.speed.bandwidth = j.at("bytes_per_s").get<double>();
    out.source = j.at("source") == name_of(SpeedMeter::Source::Disk) ? SpeedMeter::Source::Disk
                                                                     : SpeedMeter::Source::Probe;
    if (!is_sane(out.speed)) return std::nullopt;
    return out;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

// Not synced: after a power cut the tier may be measured again.
Result<void> store(const Tier& tier, const SpeedMeter::Reading& reading) {
  const SharedFd temp = SLUICE_TRY(tier.temp_directory());
  const json j = {{"version", kVersion},
                  {"filesystem", filesystem_id(temp->get())},
                  {"latency_us", reading.speed.latency * 1e6},
                  {"bytes_per_s", reading.speed.bandwidth},
                  {"source", name_of(reading.source)}};
  const std::string text = j.dump(2) + "\n";
  const std::string draft = Tier::new_temp_name();
  const UniqueFd fd(::openat(temp->get(), draft.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return Error::last("create .sluice/speed.json");
  const ssize_t wrote = ::write(fd.get(), text.data(), text.size());
  if (wrote == static_cast<ssize_t>(text.size()) &&
      ::renameat(temp->get(), draft.c_str(), temp->get(), kFile) == 0)
    return {};
  const Error error = wrote < 0 ? Error::last("write .sluice/speed.json")
                                : Error(ENOSPC, "write .sluice/speed.json");
  ::unlinkat(temp->get(), draft.c_str(), 0);
  return error;
}

// Whether there is room for a probe that nobody would miss.
bool has_room_for_probe(const Tier& tier) {
  return tier.intake() == Intake::Open && tier.room() >= kLeastProbes * kProbeBytes;
}

// Whether a probe tells anything: on these, memory answers what was just written.
bool can_be_probed(const Tier& tier) {
  const std::string filesystem = tier.filesystem();
  return filesystem != "tmpfs" && filesystem != "ramfs" && filesystem != "zfs";
}

// The memory of a hard disk still has what was just written, so the probe did not see its heads
// move.
TierSpeed without_cache(const TierSpeed& probed, StorageKind kind) {
  if (kind != StorageKind::Hdd) return probed;
  const TierSpeed disk = usual_speed(kind);
  return {std::max(probed.latency, disk.latency), std::min(probed.bandwidth, 2 * disk.bandwidth)};
}

double changed(double now, double sample, double weight) {
  constexpr double kMost = 2;  // one odd sample must not count more than this
  return now * std::pow(std::clamp(sample / now, 1 / kMost, kMost), weight);
}

bool is_far(double a, double b) { return a > b * 1.1 || b > a * 1.1; }

}  // namespace

const char* name_of(SpeedMeter::Source source) {
  switch (source) {
    case SpeedMeter::Source::Probe:
      return "probe";
    case SpeedMeter::Source::Disk:
      return "disk";
    case SpeedMeter::Source::Kind:
      break;
  }
  return "kind";
}

TierSpeed corrected(const TierSpeed& now, const DiskCounters& before, const DiskCounters& after) {
  constexpr std::uint64_t kFewest = 64, kShortest = 8;  // reads, ms: less is rounded too much
  constexpr double kSmallRead = 32 << 10, kLargeRead = 128 << 10;
  constexpr std::uint64_t kLeastBytes = std::uint64_t{32} << 20;
  constexpr double kDeepest = 2;  // requests at once; more wait for each other
  // Up fast, down slowly: large reads at random places look like a slow disk, but nothing makes a
  // disk look faster than it is.
  constexpr double kLatencyWeight = 0.1, kFasterWeight = 0.3, kSlowerWeight = 0.03;
  // Another disk, or one that was away.
  if (before.name != after.name || after.reads < before.reads || after.read_ms < before.read_ms ||
      after.busy_ms < before.busy_ms || after.write_ms < before.write_ms) {
    return now;
  }
  const std::uint64_t reads = after.reads - before.reads;
  const std::uint64_t bytes = after.read_bytes - before.read_bytes;
  const std::uint64_t read_ms = after.read_ms - before.read_ms;
  const std::uint64_t busy_ms = after.busy_ms - before.busy_ms;
  if (reads < kFewest || read_ms < kShortest || busy_ms == 0) return now;
  const double mean = static_cast<double>(bytes) / static_cast<double>(reads);
  TierSpeed out = now;
  if (mean <= kSmallRead) {
    const std::uint64_t all_ms = read_ms + after.write_ms - before.write_ms;
    if (static_cast<double>(all_ms) > kDeepest * static_cast<double>(busy_ms)) return now;
    const double each = static_cast<double>(read_ms) / 1e3 / static_cast<double>(reads);
    const double sample = std::max(each - mean / now.bandwidth, each / 4);
    out.latency = changed(now.latency, sample, kLatencyWeight);
  } else if (mean >= kLargeRead && bytes >= kLeastBytes) {
    // Writes would count as time of the reads.
    if ((after.written_bytes - before.written_bytes) * 10 > bytes) return now;
    // The kernel counts busy time in ticks of up to 10 ms, too long for a fast disk.
    const double spent = static_cast<double>(std::min(busy_ms, read_ms)) / 1e3;
    const double sample = static_cast<double>(bytes) / spent;
    out.bandwidth =
        changed(now.bandwidth, sample, sample > now.bandwidth ? kFasterWeight : kSlowerWeight);
  }
  return is_sane(out) ? out : now;
}

SpeedMeter::SpeedMeter(const Pool& pool, Mode mode) : pool_(pool) {
  {
    const MutexLock lock(mutex_);
    for (const auto& tier : pool_) {
      Known& each = known(tier->index());
      const auto loaded = load(*tier);
      if (!loaded) continue;
      each.now = each.stored = *loaded;
      each.is_settled = true;
    }
  }
  if (mode == Mode::Load) return;
  thread_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-speed");
    ::setpriority(PRIO_PROCESS, 0, 10);  // this thread only
    observe(stop);
  });
}

SpeedMeter::~SpeedMeter() {
  thread_.request_stop();
  wake_.notify_all();
}

SpeedMeter::Known& SpeedMeter::known(TierIndex tier) {
  while (known_.size() <= tier) {
    const Tier& next = pool_[static_cast<TierIndex>(known_.size())];
    Known each;
    each.slot = next.member().slot;
    each.now = each.stored = usual(next);
    known_.push_back(each);
  }
  return known_[tier];
}

SpeedMeter::Reading SpeedMeter::reading(TierIndex tier) const {
  {
    const MutexLock lock(mutex_);
    if (tier < known_.size()) return known_[tier].now;
  }
  return usual(pool_[tier]);  // it was added just now
}

std::vector<TierSpeed> SpeedMeter::speeds() const {
  std::vector<TierSpeed> out;
  for (const auto& tier : pool_) out.push_back(reading(tier->index()).speed);
  obey_order(out);
  return out;
}

void SpeedMeter::observe(const std::stop_token& stop) {
  auto counted = std::chrono::steady_clock::now() - kBetweenCounters;
  auto saved = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    for (const auto& tier : pool_) settle(tier->index(), stop);
    const auto now = std::chrono::steady_clock::now();
    if (now - counted >= kBetweenCounters) {
      counted = now;
      for (const auto& tier : pool_) correct(tier->index());
    }
    if (now - saved >= kBetweenSaves) {
      saved = now;
      for (const auto& tier : pool_) save(tier->index());
    }
    const MutexLock lock(mutex_);
    wake_.sleep(mutex_, stop, kBetweenLooks);
  }
}

// Measures a tier that was never measured, if it is there and has room.
void SpeedMeter::settle(TierIndex index, const std::stop_token& stop) {
  Tier& tier = pool_[index];
  {
    const MutexLock lock(mutex_);
    Known& each = known(index);
    if (each.slot != tier.member().slot) each.is_settled = false;  // another disk
    if (each.is_settled || !tier.online()) return;
  }
  // A tier that was offline until now.
  Reading found = usual(tier);
  if (const auto loaded = load(tier)) {
    found = *loaded;
  } else if (can_be_probed(tier)) {
    if (!has_room_for_probe(tier)) return;
    const auto temp = tier.temp_directory();
    if (!temp) return;
    tier.promise(kProbeBytes);
    const auto probed = probe_speed((*temp)->get(), stop);
    tier.take_back_promise(kProbeBytes);
    if (stop.stop_requested()) return;
    if (probed && is_sane(*probed)) {
      const StorageKind kind = storage_kind(tier.filesystem(), tier.device());
      found = {without_cache(*probed, kind), Source::Probe};
      log::get().info("measured a tier: tier={} disk=\"{}\" latency_us={:.0f} mb_per_s={:.0f}",
                      tier.name(), name_of(kind), found.speed.latency * 1e6,
                      found.speed.bandwidth / 1e6);
      if (const auto kept = store(tier, found); !kept)
        log::get().debug("cannot store the speed of a tier: tier={} why={}", tier.name(),
                         kept.error().text());
    } else if (!probed) {
      log::get().debug("cannot measure a tier, its usual speed is assumed: tier={} why={}",
                       tier.name(), probed.error().text());
    }
  }
  const MutexLock lock(mutex_);
  Known& each = known(index);
  each.slot = tier.member().slot;
  each.now = each.stored = found;
  each.is_settled = true;
  each.counters.reset();  // without what the probe read
}

void SpeedMeter::correct(TierIndex index) {
  const Tier& tier = pool_[index];
  const auto counters = tier.online() ? disk_counters(tier.device()) : std::nullopt;
  const MutexLock lock(mutex_);
  Known& each = known(index);
  if (each.counters && counters) {
    const TierSpeed speed = corrected(each.now.speed, *each.counters, *counters);
    if (speed != each.now.speed) each.now = {speed, Source::Disk};
  }
  each.counters = counters;
}

// Stores the corrected speeds, so that the next mount begins with them.
void SpeedMeter::save(TierIndex index) {
  Reading reading;
  {
    const MutexLock lock(mutex_);
    Known& each = known(index);
    if (!each.is_settled || (!is_far(each.now.speed.latency, each.stored.speed.latency) &&
                             !is_far(each.now.speed.bandwidth, each.stored.speed.bandwidth))) {
      return;
    }
    reading = each.stored = each.now;
  }
  if (const auto kept = store(pool_[index], reading); !kept)
    log::get().debug("cannot store the speed of a tier: tier={} why={}", pool_[index].name(),
                     kept.error().text());
}

}  // namespace sluice
