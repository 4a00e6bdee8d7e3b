// SPDX-License-Identifier: BSD-2-Clause
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/log.hpp"
#include "base/units.hpp"
#include "tools/lab/commands.hpp"
#include "tools/lab/gpu_bench/bench.hpp"
#include "tools/lab/gpu_bench/report.hpp"
#include "tools/lab/gpu_bench/runner.hpp"

namespace sluice::tools::lab {
namespace {

using namespace gpu_bench;

constexpr std::string_view kVerb = "gpu-bench";

constexpr HelpText kHelp{
    .usage = "sluice-lab gpu-bench [options] FILE|DIRECTORY",
    .options = R"(      --size SIZE     size of the test file and of the largest read; default: 4GiB
      --gpu GPU       the GPU's UUID or number, as nvidia-smi -L lists it; default: 0
      --host          read into host memory; without a GPU this option is required
      --routes NAMES  routes to measure, separated by commas; default: auto,staged,mapped,pageable,cufile,gds
      --phases NAMES  what to measure, separated by commas; default: all, which are
                      cold,loads,warm,sizes,beside
      --rounds N      number of measurements of each; default: 5
      --quick         512MiB and 2 rounds, unless given; fewer sizes
      --json FILE     write every sample, and percentiles of small reads; - is standard output
                      and suppresses the tables
      --color WHEN    auto (default), always, never
  -h, --help          short help (-h) or full help (--help)
)",
    .details = R"(
Measures in one run, taking turns, how fast a file is read into GPU memory: by the
daemon (ioctl on the mount) and by the engine in this process, route by route; by cuFile
with its best settings; and by mmap and cuMemcpyHtoD. Two upper bounds are measured
beside them: the copy from pinned memory and the disk's O_DIRECT rate. The phases cover
a warm and a cold page cache, loads one after another, reads from 4 KiB to the whole file
by 1 to 16 threads, the latency of small reads, also beside large ones, and CPU time
(the daemon's included).

A kernel on the GPU compares every word with the content of the file; of small reads,
the last 64 of each thread. The test file has a known pattern. It is created as
sluice-gpu-bench.dat in DIRECTORY, or as FILE, and kept for the next run. No other file
may exist at that path.

Before cold reads the file is dropped from the page cache; as root, the whole page cache
is dropped. Figures marked '*' were not cold: part of the file stayed cached.

Examples:
  sudo sluice-lab gpu-bench /mnt/pool
  sluice-lab gpu-bench --quick --json - /mnt/pool | jq '.rows[] | {phase, way, median}'

Exit status: 0 measured; 1 failed, or bytes were wrong; 2 wrong usage.
)"};

struct Request {
  std::string path, gpu = "0", routes = "auto,staged,mapped,pageable,cufile,gds", json,
                    color = "auto";
  std::string size, phases = "cold,loads,warm,sizes,beside";
  unsigned rounds = 0;
  bool quick = false, host = false;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream from(text);
  for (std::string word; std::getline(from, word, ',');) words.push_back(word);
  return words;
}

std::optional<std::vector<Route>> parse_routes(const std::string& text) {
  std::vector<Route> routes;
  for (const std::string& word : split(text)) {
    const auto route = route_by_name(word);
    if (!route) return std::nullopt;
    routes.push_back(*route);
  }
  return routes;
}

// Finds a GPU by number or UUID, with or without "GPU-"; null if there is none.
Device* find_device(Devices& devices, const std::string& wanted) {
  std::size_t number = 0;
  for (const auto& device : devices.all()) {
    const std::string uuid = to_string(device->uuid());
    if (wanted == std::to_string(number++) || wanted == uuid || "GPU-" + wanted == uuid) {
      return device.get();
    }
  }
  return nullptr;
}

std::string describe(const Error& error, const std::string& path) {
  if (error.code == EEXIST) {
    return log::escaped(path) +
           " exists and is not a test file of this size; pass another file or a directory";
  }
  return log::escaped(path) + ": " + error.text();
}

// Prints the report as text and as JSON, as requested. Returns the exit status.
int show(const Request& request, const Style& style, const Report& report) {
  if (request.json != "-") std::fputs(report_text(style, report).c_str(), stdout);
  if (!request.json.empty()) {
    const std::string text =
        report_json(report).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    if (request.json == "-") {
      std::puts(text.c_str());
    } else {
      std::ofstream out(request.json);
      out << text << "\n";
      out.close();
      if (!out) return fail(kVerb, "can't write " + log::escaped(request.json));
    }
  }
  const bool wrong = std::any_of(report.rows.begin(), report.rows.end(),
                                 [](const Row& r) { return r.wrong_words > 0; });
  if (wrong) return fail(kVerb, "some bytes are wrong; see the rows with WRONG");
  return kDone;
}

bool are_phases(const std::vector<std::string>& names) {
  const auto is_known = [](const std::string& name) {
    return std::find(std::begin(kPhases), std::end(kPhases), name) != std::end(kPhases);
  };
  return !names.empty() && std::all_of(names.begin(), names.end(), is_known);
}

}  // namespace

int command_gpu_bench(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.option("--size", request.size);
  arguments.option("--gpu", request.gpu);
  arguments.flag("--host", request.host);
  arguments.option("--routes", request.routes);
  arguments.option("--phases", request.phases);
  arguments.option("--rounds", request.rounds);
  arguments.flag("--quick", request.quick);
  arguments.option("--json", request.json);
  arguments.option("--color", request.color);
  arguments.option("PATH", request.path, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for(kVerb, request.color);
  if (!style) return kUsage;
  const auto size =
      request.size.empty() ? (request.quick ? kGiB / 2 : 4 * kGiB) : parse_size(request.size);
  if (!size || *size < kMiB || *size % kMiB != 0) {
    return misuse(kVerb, "--size must be a multiple of 1MiB, like 4GiB");
  }
  const auto routes = parse_routes(request.routes);
  if (!routes)
    return misuse(kVerb,
                  "--routes must be a list of auto, gds, cufile, mapped, staged, pageable, host");
  const std::vector<std::string> phases = split(request.phases);
  if (!are_phases(phases))
    return misuse(kVerb, "--phases must be a list of cold, loads, warm, sizes, beside");
  const unsigned rounds = request.rounds > 0 ? request.rounds : request.quick ? 2 : 5;

  Bench bench;
  bench.engine = std::make_unique<Engine>(Engine::Settings{});
  bench.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  if (!request.host) {
    if (bench.engine->devices().all().empty()) {
      return fail(kVerb, "there is no GPU (" + bench.engine->devices().why_none() +
                             "); --host measures reads into host memory");
    }
    bench.device = find_device(bench.engine->devices(), request.gpu);
    if (bench.device == nullptr) return fail(kVerb, "there is no GPU " + log::escaped(request.gpu));
  }
  bench.why_no_cufile = "no GPU";
  if (bench.device != nullptr) {
    if (const auto entered = bench.device->enter(); !entered) {
      return fail(kVerb, describe(entered.error(), bench.device->name()));
    }
    if (auto cufile = CuFile::open()) {
      bench.cufile = *std::move(cufile);
    } else {
      bench.why_no_cufile = cufile.error().text();
    }
  }
  auto file = prepare_file(request.path, *size);
  if (!file) return fail(kVerb, describe(file.error(), request.path));
  bench.file = *file;
  auto target = Target::create(bench.device, *size);
  if (!target) return fail(kVerb, describe(target.error(), "memory of " + format_size(*size)));
  bench.target = std::move(*target);
  if (bench.device != nullptr) {
    auto pinned = PinnedMemory::create(*bench.device, kStaging);
    if (!pinned) return fail(kVerb, describe(pinned.error(), "pinned memory"));
    bench.pinned = std::move(*pinned);
    std::memset(bench.pinned->bytes().data(), 1, kStaging);
  } else {
    bench.plain.assign(kStaging + 4096, std::byte{1});
  }
  Report about;
  about.path = file->path, about.on_tier = file->on_tier, about.mount = file->mount;
  about.size = *size, about.rounds = rounds, about.quick = request.quick;
  about.memory = bench.device ? bench.device->name() : "host memory, as requested";
  about.checked_on_gpu = bench.target->checks_on_gpu();
  about.has_gpu = bench.device != nullptr;
  if (bench.device) about.driver = bench.engine->devices().driver_version();

  about.rows = measure(std::move(bench), rounds, request.quick, *routes, phases);
  return show(request, *style, about);
}

}  // namespace sluice::tools::lab
