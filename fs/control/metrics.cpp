// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/metrics.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "fs/fuse/request_times.hpp"
#include "tiering/pool/tier_state.hpp"

namespace sluice {
namespace {

using nlohmann::json;

using Label = std::pair<std::string_view, std::string>;

// File names are bytes, but a label must be UTF-8, with three characters escaped.
std::string label_value(const std::string& value) {
  const std::string text =
      json::parse(json(value).dump(-1, ' ', false, json::error_handler_t::replace));
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (value.is_number_unsigned()) return std::to_string(value.get<std::uint64_t>());
  if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value.get<double>());
  return text.data();
}

// Writes one metric: its description, then its lines.
class Metric {
 public:
  Metric(std::string& out, std::string_view name, std::string_view type, std::string_view help)
      : out_(out), name_(name) {
    out_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ");
    out_.append(name).append(" ").append(type).append("\n");
  }

  Metric& add(const json& value, std::initializer_list<Label> labels = {},
              std::string_view suffix = "") {
    out_.append(name_).append(suffix);
    char before = '{';
    for (const auto& [name, text] : labels) {
      out_.append(1, std::exchange(before, ',')).append(name).append("=\"");
      out_.append(label_value(text)).append("\"");
    }
    if (before == ',') out_ += '}';
    out_.append(" ").append(number(value)).append("\n");
    return *this;
  }

 private:
  std::string& out_;
  const std::string_view name_;
};

void add_tier_states(std::string& out, const json& tiers) {
  Metric metric(out, "sluice_tier_state", "gauge", "1 if the tier is in that state.");
  for (const json& tier : tiers) {
    const json& states = tier.at("states");
    for (const std::string_view name : kTierStates) {
      const bool is_in = std::any_of(states.begin(), states.end(),
                                     [&](const json& each) { return each.at("name") == name; });
      metric.add(is_in, {{"tier", tier.at("name")}, {"state", std::string(name)}});
    }
  }
}

void add_tiers(std::string& out, const json& tiers) {
  struct Figure {
    std::string_view name, type, help;
    const char* member;
    double scale = 0;  // 0: the value is not scaled
  };
  constexpr std::array kFigures{
      Figure{"sluice_tier_online", "gauge", "1 if the tier is online.", "online"},
      Figure{"sluice_tier_draining", "gauge", "1 while the tier is being emptied.", "draining"},
      Figure{"sluice_tier_size_bytes", "gauge", "Bytes that Sluice may use on the tier.", "total"},
      Figure{"sluice_tier_used_bytes", "gauge", "Bytes in use on the tier.", "used"},
      Figure{"sluice_tier_free_bytes", "gauge", "Bytes that can still be written to the tier.",
             "free"},
      Figure{"sluice_tier_twins", "gauge", "Twins on the tier.", "twins"},
      Figure{"sluice_tier_twin_bytes", "gauge", "Bytes of twins on the tier, which count as free.",
             "twin_bytes"},
      Figure{"sluice_tier_high_watermark_ratio", "gauge",
             "Fill above which new files go to the next tier.", "high_watermark", 0.01},
      Figure{"sluice_tier_low_watermark_ratio", "gauge",
             "Fill down to which migration empties the tier.", "low_watermark", 0.01},
      Figure{"sluice_tier_read_bytes_total", "counter",
             "Bytes read by the daemon: served requests and moves.", "read_bytes"},
      Figure{"sluice_tier_written_bytes_total", "counter", "Bytes written by the daemon.",
             "written_bytes"},
  };
  for (const Figure& figure : kFigures) {
    Metric metric(out, figure.name, figure.type, figure.help);
    for (const json& tier : tiers) {
      const json& value = tier.at(figure.member);
      metric.add(figure.scale > 0 ? json(value.get<double>() * figure.scale) : value,
                 {{"tier", tier.at("name")}});
    }
  }
  add_tier_states(out, tiers);
  constexpr std::array kSpeedFigures{
      Figure{"sluice_tier_read_latency_seconds", "gauge",
             "Time until the first byte of a read, as the planner assumes it.", "latency_us", 1e-6},
      Figure{"sluice_tier_read_bandwidth_bytes", "gauge",
             "Bytes per second of a large read, as the planner assumes it.", "bytes_per_s"},
  };
  for (const Figure& figure : kSpeedFigures) {
    Metric metric(out, figure.name, figure.type, figure.help);
    for (const json& tier : tiers) {
      const json& value = tier.at("speed").at(figure.member);
      metric.add(figure.scale > 0 ? json(value.get<double>() * figure.scale) : value,
                 {{"tier", tier.at("name")}});
    }
  }
  Metric price(out, "sluice_tier_price", "gauge",
               "What room on the tier is worth: seconds of waiting (or hits) per GB and day.");
  for (const json& tier : tiers) {
    if (tier.at("price").is_number()) price.add(tier.at("price"), {{"tier", tier.at("name")}});
  }
  constexpr std::array kDiskFigures{
      Figure{"sluice_tier_disk_reads_total", "counter",
             "Reads from the disk under the tier, by any program.", "reads"},
      Figure{"sluice_tier_disk_read_bytes_total", "counter",
             "Bytes read from the disk under the tier, including passthrough.", "read_bytes"},
      Figure{"sluice_tier_disk_writes_total", "counter",
             "Writes to the disk under the tier, by any program.", "writes"},
      Figure{"sluice_tier_disk_written_bytes_total", "counter",
             "Bytes written to the disk under the tier, including passthrough.", "written_bytes"},
      Figure{"sluice_tier_disk_busy_seconds_total", "counter", "Time in which the disk was busy.",
             "busy_ms", 0.001},
  };
  for (const Figure& figure : kDiskFigures) {
    Metric metric(out, figure.name, figure.type, figure.help);
    for (const json& tier : tiers) {
      const json& disk = tier.at("disk");
      if (!disk.is_object()) continue;
      const json& value = disk.at(figure.member);
      metric.add(figure.scale > 0 ? json(value.get<double>() * figure.scale) : value,
                 {{"tier", tier.at("name")}, {"disk", disk.at("name")}});
    }
  }
}

void add_moves(std::string& out, const json& migration) {
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help,
                       const char* member) {
    Metric(out, name, type, help).add(migration.at(member));
  };
  const auto between = [&](std::string_view name, std::string_view help, const char* member) {
    Metric metric(out, name, "counter", help);
    for (const json& each : migration.at("between"))
      metric.add(each.at(member), {{"from", each.at("from")}, {"to", each.at("to")}});
  };
  between("sluice_moves_total", "Files moved to another tier.", "moved");
  between("sluice_moved_bytes_total", "Bytes of the moved files.", "moved_bytes");
  one("sluice_move_failures_total", "counter",
      "Moves that failed; moves that yielded to a user do not count.", "failed");
  one("sluice_move_copied_bytes_total", "counter",
      "Bytes copied, including moves that did not succeed.", "copied_bytes");
  const auto twins = [&](std::string_view name, std::string_view help, const char* member) {
    Metric(out, name, "counter", help).add(migration.at("twins").at(member));
  };
  twins("sluice_twins_kept_total", "Promoted files whose old copy was kept.", "kept");
  twins("sluice_twins_used_total", "Moves in which a twin took its file's place.", "used");
  twins("sluice_twins_used_bytes_total", "Bytes that did not have to be copied.", "used_bytes");
  twins("sluice_twins_dropped_total", "Twins removed: changed files, or their room was needed.",
        "dropped");
  one("sluice_moves_active", "gauge", "Moves in progress.", "active");
  one("sluice_moves_queued", "gauge", "Moves that have not begun yet.", "queued");
  one("sluice_moves_queued_bytes", "gauge", "Bytes of the queued moves.", "queued_bytes");
  one("sluice_moves_waiting", "gauge", "Moves that wait for room, a tier or a file in use.",
      "pending");
  one("sluice_moves_share_ratio", "gauge",
      "Part of the time in which moves work; less than 1 while others use the disks.", "share");
  one("sluice_migration_paused", "gauge", "1 while automatic migration is paused.", "paused");
}

// Classes of Prometheus contain those below them.
void add_request_times(std::string& out, const json& times) {
  Metric metric(out, "sluice_request_seconds", "histogram",
                "Time from taking a request of the kernel to its answer.");
  for (const auto& [kind, each] : times.items()) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i <= RequestTimes::kBounds.size(); ++i) {
      sum += each.at("counts").at(i).get<std::uint64_t>();
      const std::string bound =
          i < RequestTimes::kBounds.size()
              ? number(std::chrono::duration<double>(RequestTimes::kBounds[i]).count())
              : "+Inf";
      metric.add(sum, {{"kind", kind}, {"le", bound}}, "_bucket");
    }
    metric.add(each.at("sum_s"), {{"kind", kind}}, "_sum");
    metric.add(sum, {{"kind", kind}}, "_count");
  }
}

void add_budgets(std::string& out, const json& budgets) {
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help,
                       const char* member) {
    Metric(out, name, type, help).add(budgets.at(member));
  };
  one("sluice_budget_trees", "gauge", "Directories that have a budget.", "trees");
  one("sluice_budget_bytes", "gauge", "The budgets of all of them.", "budget");
  one("sluice_budget_used_bytes", "gauge", "Bytes of the files in them.", "used");
  one("sluice_budget_trees_over", "gauge", "Directories that are above their budget.", "over");
  one("sluice_budget_trees_stuck", "gauge",
      "Directories that are full and in which nothing may be deleted.", "stuck");
  one("sluice_budget_deleted_total", "counter", "Files deleted for a budget.", "deleted");
  one("sluice_budget_deleted_bytes_total", "counter", "Bytes of the deleted files.",
      "deleted_bytes");
}

void add_gpu(std::string& out, const json& gpu) {
  const json& routes = gpu.at("routes");
  const auto each = [&](Metric metric, const char* member) {
    std::uint64_t sum = 0;
    for (const auto& [name, route] : routes.items()) {
      if (name == "all") continue;
      metric.add(route.at(member), {{"route", name}});
      if (route.at(member).is_number_integer()) sum += route.at(member).get<std::uint64_t>();
    }
    return std::pair(metric, sum);
  };
  each(Metric(out, "sluice_gpu_requests_total", "counter",
              "Transfers between files and buffers that succeeded."),
       "operations");
  {
    auto [metric, sum] =
        each(Metric(out, "sluice_gpu_failures_total", "counter",
                    "Transfers that failed; route none: before a route was chosen."),
             "failures");
    const auto all = routes.at("all").at("failures").get<std::uint64_t>();
    metric.add(all > sum ? all - sum : 0, {{"route", "none"}});
  }
  each(Metric(out, "sluice_gpu_bytes_total", "counter", "Bytes of the successful transfers."),
       "bytes");
  each(Metric(out, "sluice_gpu_busy_seconds_total", "counter",
              "Time in which at least one transfer was running."),
       "busy_s");
  Metric latency(out, "sluice_gpu_request_seconds", "summary",
                 "Duration of a transfer, since the daemon started.");
  for (const auto& [name, route] : routes.items()) {
    if (name == "all") continue;
    const auto count = route.at("operations").get<double>();
    latency.add(route.at("p50_us").get<double>() / 1e6, {{"route", name}, {"quantile", "0.5"}});
    latency.add(route.at("p99_us").get<double>() / 1e6, {{"route", name}, {"quantile", "0.99"}});
    latency.add(route.at("average_us").get<double>() * count / 1e6, {{"route", name}}, "_sum");
    latency.add(route.at("operations"), {{"route", name}}, "_count");
  }
  const auto one = [&](std::string_view name, std::string_view help, const char* member) {
    Metric(out, name, "gauge", help).add(gpu.at(member));
  };
  one("sluice_gpu_buffers", "Buffers that clients have registered.", "buffers");
  one("sluice_gpu_buffer_bytes", "Bytes of the registered buffers.", "buffer_bytes");
  one("sluice_gpu_host_bytes", "Bytes of registered buffers in host memory.", "host_bytes");
  one("sluice_gpu_host_limit_bytes", "The limit gpu_host_memory.", "host_bytes_limit");
  one("sluice_gpu_pinned_bytes", "Bytes pinned by the engine for staging.", "pinned_bytes");
  one("sluice_gpu_mapped_bytes", "Bytes of page cache that GPUs can read.", "mapped_bytes");
  Metric lost(out, "sluice_gpu_lost", "gauge",
              "1 if the GPU failed and cannot be used until a remount.");
  for (const json& device : gpu.at("devices"))
    lost.add(device.at("lost"), {{"gpu", device.at("uuid")}, {"name", device.at("name")}});
  const auto hbm = [&](std::string_view name, std::string_view type, std::string_view help,
                       const char* member) {
    Metric metric(out, name, type, help);
    for (const json& device : gpu.at("devices")) {
      if (device.contains("hbm"))
        metric.add(device.at("hbm").at(member), {{"gpu", device.at("uuid")}});
    }
  };
  hbm("sluice_hbm_bytes", "gauge", "GPU memory used for copies of files.", "bytes");
  hbm("sluice_hbm_limit_bytes", "gauge", "The limit hbm.", "limit");
  hbm("sluice_hbm_files", "gauge", "Files with a copy in GPU memory.", "files");
  hbm("sluice_hbm_hits_total", "counter", "Requests served from copies in GPU memory.", "hits");
  hbm("sluice_hbm_hit_bytes_total", "counter", "Bytes of these requests.", "hit_bytes");
  hbm("sluice_hbm_filled_bytes_total", "counter", "Bytes copied from files into GPU memory.",
      "filled_bytes");
  hbm("sluice_hbm_evictions_total", "counter", "Copies that made room for others or for programs.",
      "evictions");
}

}  // namespace

std::string metrics_text(const json& activity) {
  std::string out;
  Metric(out, "sluice_info", "gauge", "Always 1; its labels say what is mounted.")
      .add(1, {{"version", activity.at("version")},
               {"pool", activity.at("pool")},
               {"mountpoint", activity.at("mountpoint")}});
  Metric(out, "sluice_uptime_seconds", "gauge", "Seconds since the daemon started.")
      .add(activity.at("uptime_s"));
  Metric(out, "sluice_inodes", "gauge", "Files and directories that the kernel knows.")
      .add(activity.at("inodes"));
  Metric(out, "sluice_open_files", "gauge", "Open files.").add(activity.at("open_files"));
  Metric(out, "sluice_opens_total", "counter", "Files opened.").add(activity.at("opens"));
  Metric requests(
      out, "sluice_requests_total", "counter",
      "Requests of the kernel, by the kernel's name; passthrough reads and writes cause "
      "none.");
  for (const auto& [kind, count] : activity.at("requests").items())
    requests.add(count, {{"kind", kind}});
  add_request_times(out, activity.at("request_times"));
  add_tiers(out, activity.at("tiers"));
  add_moves(out, activity.at("migration"));
  add_budgets(out, activity.at("budgets"));
  add_gpu(out, activity.at("gpu"));
  return out;
}

}  // namespace sluice
