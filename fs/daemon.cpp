// SPDX-License-Identifier: BSD-2-Clause
#include "fs/daemon.hpp"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stop_token>
#include <thread>

#include "base/crash.hpp"
#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/path.hpp"
#include "base/service_notice.hpp"
#include "fs/control/control_server.hpp"
#include "fs/control/reporter.hpp"
#include "fs/core/filesystem.hpp"
#include "fs/core/inodes/handover.hpp"
#include "fs/fuse/session.hpp"
#include "fs/gpu/gpu_service.hpp"
#include "fs/keeper/keeper_link.hpp"
#include "gpu/hbm.hpp"
#include "metadata/rocks_store.hpp"
#include "tiering/heat/file_lists.hpp"
#include "tiering/move/intent.hpp"
#include "tiering/pool/pool.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {
namespace {

using std::chrono::seconds;

constexpr const char* kDefaultState = "/var/lib/sluice";

std::vector<std::string> ignored_openers(const MountOptions& options) {
  if (!options.heat_ignore) return ScanDetector::Settings{}.ignored;
  std::vector<std::string> words;
  std::istringstream text(*options.heat_ignore);
  for (std::string word; text >> word;) words.push_back(std::move(word));
  return words;
}

Migration::Tuning migration_tuning(const MountOptions& options) {
  Migration::Tuning out;
  out.policy = make_policy(options);
  out.policy.half_life = options.half_life;
  out.interval = options.interval;
  out.automatic = options.migrate;
  out.windows = options.windows;
  out.mover.bandwidth = options.bandwidth;
  out.mover.verify = options.verify;
  return out;
}

Engine::Settings engine_settings(const MountOptions& options) {
  Engine::Settings out;
  out.enabled = options.gpu;
  out.threads = static_cast<unsigned>(options.gpu_threads);
  out.chunk = options.gpu_chunk;
  out.max_concurrent_ops = static_cast<unsigned>(options.gpu_max_concurrent_ops);
  // The engine takes 0 as "choose yourself"; one byte means practically none.
  out.mapped_bytes = std::max<std::uint64_t>(options.gpu_mapped_memory, 1);
  out.mapped_after = std::chrono::milliseconds(options.gpu_rest);
  out.cufile = options.gpu_cufile;
  out.hbm = {options.hbm, options.hbm_reserve};
  return out;
}

// Puts a tier that was added or replaced while mounted ("NAME=PATH,...") into the options. A new
// disk under an old name keeps the settings of the old one, unless it is given any.
Result<void> put_tier(const std::string& text, MountOptions& options) {
  MountOptions given;
  SLUICE_TRY(append_tier("NAME=PATH", text, given));
  TierOptions& tier = given.tiers[0];
  for (TierOptions& known : options.tiers) {
    if (known.name != tier.name) continue;
    if (text == tier.name + "=" + tier.path) {
      known.path = tier.path;
    } else {
      known = std::move(tier);
    }
    return {};
  }
  options.tiers.push_back(std::move(tier));
  return {};
}

// Everything a mount is made of, in the order in which it is built.
class Daemon {
 public:
  static Result<std::unique_ptr<Daemon>> start(const MountOptions& options,
                                               const LiveOptions::Read& read_again,
                                               KeeperLink* keeper) {
    auto daemon = std::unique_ptr<Daemon>(new Daemon(options, keeper));
    SLUICE_TRY(daemon->build());
    daemon->live_ = std::make_unique<LiveOptions>(
        daemon->options_, read_again,
        [&built = *daemon](const MountOptions& changed) { built.apply(changed); });
    return daemon;
  }

  // Returns the exit code.
  int serve() {
    start_twins();
    start_reports();
    if (("," + options_.mount_options + ",").find(",ro,") == std::string::npos) start_own_work();
    const std::jthread housekeeper([this](const std::stop_token& stop) { keep_house(stop); });
    tell_manager("READY=1\nSTATUS=mounted at " + log::escaped(options_.mountpoint));
    if (keeper_ != nullptr) keeper_->listen([this] { hand_over(); });
    // The first load would wait a second for contexts and pinned memory.
    if (Devices::are_there()) engine_->prepare_in_background();
    const Session::End end = session_->run();
    if (end == Session::End::HandedOver) {
      gpu_->end_rings(ESTALE);
      leave("handed over to a new daemon");
    }
    is_unmounting_ = true;
    if (keeper_ != nullptr) keeper_->stop_listening();
    tell_manager("STOPPING=1\nSTATUS=unmounted, writing what is left");
    gpu_->end_rings();
    metrics_.reset();
    control_.reset();
    log::get().info("unmounted: mountpoint={}", options_.mountpoint);
    return end == Session::End::Failed ? 1 : 0;
  }

  ~Daemon() {
    if (!filesystem_) return;
    pool_->twins().stop();
    if (const auto flushed = filesystem_->close(); !flushed) {
      log::get().warn("the last access counts are lost: why={}", flushed.error().text());
    }
  }

 private:
  Daemon(const MountOptions& options, KeeperLink* keeper) : options_(options), keeper_(keeper) {
    if (keeper_ != nullptr) start_ = keeper_->take_start();
  }

  // Runs beside serve(), which ends the process unless requests take long, like spilling a large
  // file. The successor repeats those, as after a crash.
  void hand_over() {
    // Ending moves may take long, too, but requests are served meanwhile.
    filesystem_->migration()->mover().stop(seconds(2));
    session_->hand_over();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (!is_unmounting_) leave("leaves running requests to a new daemon");
  }

  // Without closing the database and the tiers: a new daemon is waiting, and a crash is no
  // different.
  [[noreturn]] void leave(const char* message) {
    const MutexLock lock(leaving_);  // never unlocked: one of two threads leaves
    if (const auto flushed = filesystem_->flush(); !flushed)
      log::get().warn("the last access counts are lost: why={}", flushed.error().text());
    log::get().info("{}: mountpoint={}", message, options_.mountpoint);
    ::_exit(kHandedOver);
  }

  bool takes_over() const { return start_.role != KeeperLink::Role::First; }

  // The memory that the predecessor left, checked before it ends.
  Result<void> prepare_to_take_over() {
    if (!start_.held.contains("fuse") || !start_.held.contains("state"))
      return Error{EPROTO, "take over", "the keeper has no mount to take over"};
    SLUICE_TRY(Handover::check(start_.held["state"].get()));
    const Handover::Mount mount = Handover::mount_of(start_.held["state"].get());
    for (const std::string& tier : mount.added) {
      MountOptions given;
      SLUICE_TRY(append_tier("tier add", tier, given));
      const TierOptions& added = given.tiers[0];
      // Since then, it may have come into the configuration.
      const bool is_configured =
          std::any_of(options_.tiers.begin(), options_.tiers.end(), [&](const TierOptions& each) {
            return each.name == added.name && each.path == added.path;
          });
      if (!is_configured) SLUICE_TRY(put_tier(tier, options_));
    }
    if (start_.role == KeeperLink::Role::Prepared) SLUICE_TRY(check_same_mount(mount));
    if (start_.role == KeeperLink::Role::Prepared) SLUICE_TRY(keeper_->prepared());
    return {};
  }

  // What cannot change while mounted. After a crash nobody could be told.
  Result<void> check_same_mount(const Handover::Mount& mount) const {
    constexpr const char* kRemount = "; to change that, unmount and mount the pool";
    if (mount.mountpoint != options_.mountpoint) {
      return Error{EINVAL, "take over",
                   "the pool is mounted at " + mount.mountpoint + ", but the configuration says " +
                       options_.mountpoint + kRemount};
    }
    for (const std::string& name : mount.tiers) {
      const bool is_given = std::any_of(options_.tiers.begin(), options_.tiers.end(),
                                        [&](const TierOptions& tier) { return tier.name == name; });
      if (is_given) continue;
      return Error{EINVAL, "take over",
                   "the mount has a tier " + name + ", but the configuration does not" + kRemount};
    }
    return {};
  }

  // Mounts, or continues the mount of the predecessor.
  Result<void> make_session() {
    const Session::Settings settings{options_.mountpoint, options_.source, options_.mount_options,
                                     options_.passthrough};
    if (takes_over()) {
      handover_ = SLUICE_TRY(Handover::open(std::move(start_.held["state"]), pool_->id()));
      session_ =
          SLUICE_TRY(Session::take_over(settings, *handover_, std::move(start_.held["fuse"])));
      return {};
    }
    handover_ = SLUICE_TRY(Handover::create(pool_->id()));
    handover_->set_mountpoint(options_.mountpoint);
    for (const TierOptions& tier : options_.tiers) handover_->add_tier(tier.name);
    session_ = SLUICE_TRY(Session::mount(settings, *handover_));
    // If the keeper does not hold the mount, it ends with its daemon. Otherwise requests that the
    // kernel cannot send again would never be answered.
    if (keeper_ == nullptr || !Session::kernel_resends()) return {};
    keeper_->hold("state", handover_->fd());
    keeper_->hold("fuse", session_->device());
    return {};
  }

  Result<void> request_restart() {
    if (!Session::kernel_resends()) {
      return Error{ENOTSUP, "restart",
                   "this kernel ends a mount with its daemon (Linux 6.9 and later do not); unmount "
                   "it and mount it again"};
    }
    if (keeper_ != nullptr) return keeper_->request_restart();
    return Error{ENOTSUP, "restart",
                 "the mount has no keeper (debug option keeper); unmount it and mount it again"};
  }

  Result<void> build() {
    if (takes_over()) SLUICE_TRY(prepare_to_take_over());
    // The predecessor went on serving when a tier disappeared, and so does its successor.
    const auto missing =
        options_.degraded || takes_over() ? Pool::Missing::Tolerate : Pool::Missing::Refuse;
    pool_ = SLUICE_TRY(Pool::open(tier_settings(options_), missing, Pool::NewTiers::Adopt,
                                  "mounted at " + options_.mountpoint));
    state_ = SLUICE_TRY(state_directory(options_.state, pool_->id()));

    std::string log_file = options_.log_file;
    if (log_file.empty() && !options_.foreground) log_file = state_ + "/sluice.log";
    if (const auto started =
            log::start(log_file, spdlog::level::from_str(options_.log_level),
                       options_.log_format == "json" ? log::Format::Json : log::Format::Text);
        !started) {
      const int code = started.error().code;
      return Error{code, "open the log",
                   "can't write the log " + log_file + ": " + std::strerror(code)};
    }
    if (const auto unused = unused_thresholds(options_); !unused.empty())
      log::get().warn("{}", unused);
    SLUICE_TRY(open_store());
    lists_ = std::make_unique<FileLists>(state_ + "/files");

    SLUICE_TRY(settle_lost(*store_, *pool_));
    const auto replayed = replay_intents(*store_, *pool_);
    if (!replayed) return replayed.error().at("can't finish what an earlier mount left");
    if (*replayed > 0)
      log::get().info("finished operations that an earlier mount had begun: count={}", *replayed);
    pool_->clear_temporaries(SLUICE_TRY(names_in_intents(*store_)));
    pool_->take_back_tiers();

    SLUICE_TRY(make_session());
    engine_ = std::make_unique<Engine>(engine_settings(options_));
    filesystem_ = std::make_unique<Filesystem>(*pool_, *store_, *session_, filesystem_settings(),
                                               engine_.get());
    gpu_ = std::make_unique<GpuService>(
        *engine_, *filesystem_, options_.gpu_host_memory, [this] { return session_->is_ending(); },
        DaemonEpoch(handover_->epoch()), share_socket_path(pool_->id(), state_));
    session_->serve(*filesystem_, *gpu_);
    return {};
  }

  Result<void> open_store() {
    RocksStore::OpenReport report;
    auto store = RocksStore::open(state_ + "/db", options_.half_life, &report);
    if (store) {
      store_ = *std::move(store);
      return {};
    }
    std::string why = "the database " + state_ + "/db ";
    const int code = store.error().code;
    switch (code) {
      case EPROTONOSUPPORT:
        why += "is of version " + std::to_string(report.schema_found) + ", this Sluice reads " +
               std::to_string(RocksStore::kSchemaVersion) +
               "; use the Sluice that made it, or move the directory away (access counts "
               "and the log of moves are then lost, but no file is)";
        break;
      case EBUSY:
        why += "is in use by another mount; give each pool a --state directory of its own";
        break;
      default:
        why += std::string("can't be opened: ") + std::strerror(code) +
               (report.reason.empty() ? "" : " (" + report.reason + ")");
    }
    return Error{code, "open the database", std::move(why)};
  }

  static void tell_manager(const std::string& lines) {
    if (const auto told = tell_service_manager(lines); !told) {
      log::get().warn("cannot notify the service manager: why={}", told.error().text());
    }
  }

  // Makes the mount use the live ones of these options.
  void apply(const MountOptions& options) {
    log::set_level(spdlog::level::from_str(options.log_level));
    auto limits = Migration::Limits::Same;
    for (const TierSettings& each : tier_settings(options)) {
      Tier* const tier = pool_->by_name(each.name);
      if (tier != nullptr && tier->change(limits_of(each))) limits = Migration::Limits::Changed;
    }
    filesystem_->change({migration_tuning(options), budget_rules(options), limits});
    if (options.gpu) engine_->hbm().set_limits({options.hbm, options.hbm_reserve});
  }

  Filesystem::Settings filesystem_settings() {
    Migration::Settings migration;
    static_cast<Migration::Tuning&>(migration) = migration_tuning(options_);
    migration.half_life = options_.half_life;
    migration.requests = [this] { return session_->user_requests(); };
    migration.speeds = SpeedMeter::Mode::Observe;
    migration.census_taken = [this](const Census& census, std::int64_t time) {
      heat_tree_.take(census, time);
    };
    return {.small_file = options_.small_file,
            .accesses = {.half_life = options_.half_life,
                         .ignored = ignored_openers(options_),
                         .sample_interval = options_.heat_sample},
            .migration = std::move(migration),
            .budgets = budget_rules(options_),
            .budget_rest = options_.budget_rest,
            .handover = handover_.get(),
            .lists = lists_.get(),
            .hbm_list = state_ + "/hbm-pins"};
  }

  // What changes the pool without being asked by a running program.
  void start_own_work() {
    filesystem_->keep_budgets();
    filesystem_->gpu().hbm_pins().start();
    filesystem_->migration()->resume_requests();
  }

  void start_twins() {
    pool_->twins().start(options_.twins ? Twins::Mode::Keep : Twins::Mode::DropAll,
                         [this](TierIndex tier, std::span<const Twins::Sized> files) {
                           return filesystem_->migration()->standing(tier, files);
                         });
  }

  void start_reports() {
    reporter_ = std::make_unique<Reporter>(Reporter::Parts{*live_, state_, *pool_, *session_,
                                                           *filesystem_, *engine_, *gpu_,
                                                           *filesystem_->migration(), keeper_});
    session_->status = [this] {
      return reporter_->status().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    };
    session_->hangup = [this] { [[maybe_unused]] const auto logged = live_->reload(); };
    session_->option = [this](const std::string& name) { return live_->value(name); };
    session_->try_option = [this](const std::string& name,
                                  const std::optional<std::string>& value) -> Result<void> {
      SLUICE_TRY(value ? live_->try_out(name, *value) : live_->end_trial(name));
      return {};
    };
    start_metrics();
    auto control = ControlServer::listen(
        state_ + "/" + kControlSocket,
        {*pool_, *store_, *filesystem_, *filesystem_->migration(), *live_, *lists_,
         [this](const std::string& tier) { return add_tier(tier); },
         [this](const std::string& tier) { return replace_tier(tier); },
         [this] { return reporter_->activity(); }, heat_tree_, [this] { return request_restart(); },
         [this] { return engine_->hbm().release(); }});
    if (!control) {
      log::get().error("no control socket, verbs like 'sluice plan' won't work: why={}",
                       control.error().text());
      return;
    }
    control_ = *std::move(control);
  }

  // Not fatal: the mount works without metrics.
  void start_metrics() {
    if (options_.metrics == "off") return;
    const auto address = loopback_address(options_.metrics);
    const auto answer =
        [this, is_port = address.has_value()](const HttpRequest& request) -> HttpResponse {
      if (is_port && !request.is_for_loopback()) return HttpResponse::error("403 Forbidden");
      if (request.path != "/metrics") return HttpResponse::error("404 Not Found");
      return {.type = "text/plain; version=0.0.4", .body = reporter_->metrics()};
    };
    auto server = address
                      ? HttpServer::listen_on(*address, "sluice-metrics", answer)
                      : HttpServer::listen_at(state_ + "/metrics.sock", "sluice-metrics", answer);
    if (!server) {
      log::get().error("cannot serve metrics: where={} why={}", options_.metrics,
                       server.error().text());
      return;
    }
    metrics_ = *std::move(server);
  }

  Result<void> add_tier(const std::string& text) {
    MountOptions probe;
    probe.tiers = live_->now().tiers;
    SLUICE_TRY(append_tier("tier add", text, probe));
    const std::string& name = probe.tiers.back().name;
    if (pool_->by_name(name) != nullptr) {
      return Error{EEXIST, "add a tier",
                   "the pool has a tier " + name +
                       " already; give the new one another name, or, if the disk of " + name +
                       " is dead, 'sluice tier replace " + text + "' puts this one in its place"};
    }
    SLUICE_TRY(check_new_tier(probe, name, options_.mountpoint, state_));
    const auto added = filesystem_->add_tier(tier_settings(probe).back());
    if (pool_->by_name(name) != nullptr) {
      handover_->add_tier(name, text);
      live_->tier_put(probe.tiers.back());
    }
    return added;
  }

  Result<void> replace_tier(const std::string& text) {
    MountOptions probe;
    probe.tiers = live_->now().tiers;
    SLUICE_TRY(put_tier(text, probe));
    const std::string name = text.substr(0, text.find('='));
    const auto given = std::find_if(probe.tiers.begin(), probe.tiers.end(),
                                    [&](const TierOptions& tier) { return tier.name == name; });
    SLUICE_TRY(check_new_tier(probe, name, options_.mountpoint, state_));
    const auto replaced = filesystem_->replace_tier(
        tier_settings(probe)[static_cast<std::size_t>(given - probe.tiers.begin())]);
    const Tier* const tier = pool_->by_name(name);
    if (tier != nullptr && tier->path() == given->path) {
      handover_->add_tier(name, text);
      live_->tier_put(*given);
    }
    return replaced;
  }

  void keep_house(const std::stop_token& stop) {
    Mutex mutex;
    StopCondVar wake;
    MutexLock lock(mutex);
    for (;;) {
      wake.sleep(mutex, stop, seconds(1));
      if (stop.stop_requested()) return;
      filesystem_->tick();
    }
  }

  Mutex leaving_;
  std::atomic<bool> is_unmounting_{false};  // an unmount came before the handover
  MountOptions options_;                    // at the start; see live_
  KeeperLink* const keeper_;                // may be null
  KeeperLink::Start start_;
  std::unique_ptr<Pool> pool_;
  std::string state_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FileLists> lists_;
  std::unique_ptr<Handover> handover_;
  std::unique_ptr<Session> session_;
  HeatTree heat_tree_;              // told of each census by the filesystem's migration
  std::unique_ptr<Engine> engine_;  // before whom it serves: moves tell it of files that go
  std::unique_ptr<Filesystem> filesystem_;
  std::unique_ptr<GpuService> gpu_;
  std::unique_ptr<LiveOptions> live_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<HttpServer> metrics_;
};

}  // namespace

std::vector<TierSettings> tier_settings(const MountOptions& options) {
  const bool noatime = ("," + options.mount_options + ",").find(",noatime,") != std::string::npos;
  std::vector<TierSettings> out;
  for (std::size_t i = 0; i < options.tiers.size(); ++i) {
    const TierOptions& o = options.tiers[i];
    out.push_back({o.name, o.path, o.capacity, o.high_watermark, o.low_watermark, o.reserve,
                   noatime, tier_threshold(options.tiers, i), o.moves});
  }
  return out;
}

Result<std::string> state_directory(const std::string& configured, const std::string& id) {
  const std::string path = configured.empty() ? std::string(kDefaultState) + "/" + id : configured;
  if (const auto made = make_directories(path); !made) {
    const int code = made.error().code;
    return Error{code, "create the state directory",
                 "can't create the state directory " + path + ": " + std::strerror(code)};
  }
  return path;
}

int run_daemon(const MountOptions& options, const LiveOptions::Read& read_again,
               const std::function<void(const Result<void>& mounted)>& ready, KeeperLink* keeper) {
  // With an arena per thread, malloc would keep several times the memory in use.
  ::mallopt(M_ARENA_MAX, 2);
  // The kernel sends SIGIO when a process breaks one of our leases, and its default is to end the
  // process. FileMove polls the lease instead.
  std::signal(SIGIO, SIG_IGN);
  Session::block_hangup();
  report_crashes();
  // The default soft limit of 1024 exists for programs that use select().
  if (rlimit files{}; ::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  const auto daemon = Daemon::start(options, read_again, keeper);
  if (!daemon) {
    ready(daemon.error());
    return 1;
  }
  ready({});
  return (*daemon)->serve();
}

}  // namespace sluice
