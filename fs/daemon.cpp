// SPDX-License-Identifier: BSD-2-Clause
#include "fs/daemon.hpp"

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>

#include "base/log.hpp"
#include "base/path.hpp"
#include "fs/filesystem.hpp"
#include "fs/session.hpp"
#include "metadata/rocks_store.hpp"
#include "tiering/intent.hpp"
#include "tiering/pool.hpp"

namespace sluice {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kHalfLife = std::chrono::hours(7 * 24);
constexpr const char* kDefaultState = "/var/lib/sluice";

std::string explain(const Error& error) {
  return std::string(error.operation) + ": " + std::strerror(error.code);
}

nlohmann::json to_json(const Feature& feature) {
  return {{"on", feature.on}, {"why", feature.why}};
}

nlohmann::json to_json(const Tier& tier) {
  const Space space = tier.space();
  const TierSettings& s = tier.settings();
  return {{"name", tier.name()},
          {"path", tier.path()},
          {"online", tier.online()},
          {"why", tier.why_offline()},
          {"filesystem", tier.filesystem()},
          {"total", space.total},
          {"free", space.free},
          {"used", space.used()},
          {"capacity", s.capacity ? nlohmann::json(*s.capacity) : nlohmann::json(nullptr)},
          {"high_watermark", s.high_watermark},
          {"low_watermark", s.low_watermark},
          {"reserve", tier.reserve()}};
}

// Everything a mount is made of, in the order in which it is built.
class Daemon {
 public:
  // Nothing, and the reason in `why`, if the mount can't be made.
  static std::unique_ptr<Daemon> start(const MountOptions& options, std::string& why) {
    auto daemon = std::unique_ptr<Daemon>(new Daemon(options));
    return daemon->build(why) ? std::move(daemon) : nullptr;
  }

  bool serve() {
    const std::jthread housekeeper([this](const std::stop_token& stop) { keep_house(stop); });
    const bool ok = session_->run(*filesystem_);
    log::get().info("unmounted: mountpoint={}", options_.mountpoint);
    return ok;
  }

  ~Daemon() {
    if (!filesystem_) return;
    if (const auto flushed = filesystem_->flush_heat(); !flushed) {
      log::get().warn("the last access counts are lost: why={}", explain(flushed.error()));
    }
  }

 private:
  explicit Daemon(const MountOptions& options) : options_(options) {}

  bool build(std::string& why) {
    const auto missing = options_.degraded ? Pool::Missing::Tolerate : Pool::Missing::Refuse;
    pool_ = Pool::open(tier_settings(options_), missing, Pool::NewTiers::Adopt,
                       "mounted at " + options_.mountpoint, why);
    if (!pool_) return false;
    state_ = state_directory(options_.state, pool_->id(), why);
    if (state_.empty()) return false;

    std::string log_file = options_.log_file;
    if (log_file.empty() && !options_.foreground) log_file = state_ + "/sluice.log";
    if (const auto started = log::start(log_file, spdlog::level::from_str(options_.log_level));
        !started) {
      why = "can't write the log " + log_file + ": " + std::strerror(started.error().code);
      return false;
    }
    if (!open_store(why)) return false;

    const auto replayed = replay_intents(*store_, *pool_);
    if (!replayed) {
      why = "can't finish what an earlier mount left: " + explain(replayed.error());
      return false;
    }
    if (*replayed > 0)
      log::get().info("finished operations that an earlier mount had begun: count={}", *replayed);
    pool_->clear_temporaries();

    const Session::Settings settings{options_.mountpoint, "sluice", options_.mount_options,
                                     options_.passthrough, options_.io_uring};
    session_ = Session::mount(settings, why);
    if (!session_) return false;
    filesystem_ = std::make_unique<Filesystem>(
        *pool_, *store_, *session_, Filesystem::Settings{.small_file = options_.small_file});
    session_->status = [this] { return status(); };
    return true;
  }

  bool open_store(std::string& why) {
    RocksStore::OpenReport report;
    auto store = RocksStore::open(state_ + "/db", kHalfLife, &report);
    if (store) {
      store_ = *std::move(store);
      return true;
    }
    why = "the database " + state_ + "/db ";
    switch (store.error().code) {
      case EPROTONOSUPPORT:
        why +=
            "is of version " + std::to_string(report.schema_found) + ", this Sluice reads up to " +
            std::to_string(RocksStore::kSchemaVersion) +
            "; upgrade Sluice, or move the directory away (it costs access counts, nothing else)";
        break;
      case EBUSY:
        why += "is in use by another mount; give each pool a --state directory of its own";
        break;
      default:
        why += std::string("can't be opened: ") + std::strerror(store.error().code) +
               (report.reason.empty() ? "" : " (" + report.reason + ")");
    }
    return false;
  }

  void keep_house(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, seconds(1), [&] { return stop.stop_requested(); }))
      filesystem_->tick();
  }

  std::string status() const {
    nlohmann::json tiers = nlohmann::json::array();
    for (const auto& tier : *pool_) tiers.push_back(to_json(*tier));
    nlohmann::json requests = nlohmann::json::object();
    for (const auto& [name, count] : session_->request_counts()) requests[name] = count;
    const auto uptime = std::chrono::duration_cast<seconds>(steady_clock::now() - started_).count();
    const nlohmann::json j = {{"version", SLUICE_VERSION},
                              {"pid", ::getpid()},
                              {"pool", pool_->id()},
                              {"state", state_},
                              {"mountpoint", options_.mountpoint},
                              {"uptime_s", uptime},
                              {"features",
                               {{"passthrough", to_json(session_->passthrough())},
                                {"io_uring", to_json(session_->io_uring())}}},
                              {"tiers", tiers},
                              {"inodes", filesystem_->known_inodes()},
                              {"open_files", filesystem_->open_files()},
                              {"opens", filesystem_->opens()},
                              {"requests", requests}};
    return j.dump();
  }

  const MountOptions& options_;
  const steady_clock::time_point started_ = steady_clock::now();
  std::unique_ptr<Pool> pool_;
  std::string state_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Filesystem> filesystem_;
};

}  // namespace

std::vector<TierSettings> tier_settings(const MountOptions& options) {
  const bool noatime = ("," + options.mount_options + ",").find(",noatime,") != std::string::npos;
  std::vector<TierSettings> out;
  for (const TierOptions& o : options.tiers) {
    out.push_back(
        {o.name, o.path, o.capacity, o.high_watermark, o.low_watermark, o.reserve, noatime});
  }
  return out;
}

std::string state_directory(const std::string& configured, const std::string& id,
                            std::string& why) {
  const std::string path = configured.empty() ? std::string(kDefaultState) + "/" + id : configured;
  if (const auto made = make_directories(path); !made) {
    why = "can't make the state directory " + path + ": " + std::strerror(made.error().code);
    return {};
  }
  return path;
}

int run_daemon(const MountOptions& options,
               const std::function<void(const std::string& failure)>& ready) {
  // An arena for each of dozens of threads would hold on to several times the memory in use.
  ::mallopt(M_ARENA_MAX, 4);
  std::string why;
  const auto daemon = Daemon::start(options, why);
  ready(daemon ? "" : why);
  if (!daemon) return 1;
  return daemon->serve() ? 0 : 1;
}

}  // namespace sluice
