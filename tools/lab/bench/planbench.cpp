// SPDX-License-Identifier: BSD-2-Clause
// `sluice-lab planbench` measures the planner alone: the time for a plan over N files, of the clock
// and of the processor (which counts on a busy machine), and the memory it needs in addition to the
// list of files.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/small_file.hpp"
#include "tiering/planner.hpp"
#include "tools/lab/commands.hpp"

namespace sluice::tools::lab::bench {
namespace {

constexpr std::string_view kVerb = "planbench";
constexpr TierIndex kTiers = 3;
constexpr std::int64_t kNow = 1'700'000'000;
constexpr double kHour = 3600, kMonth = 30 * 24 * kHour;

constexpr HelpText kHelp{.usage = "sluice-lab planbench [options]",
                         .options = R"(      --files N    number of files (1000000)
      --rounds N   plans for each pool; the median time counts (3)
      --seed N     seed of the random files (1)
      --policy P   value (default) or thresholds
      --json FILE  also write every sample to FILE
  -h, --help       short help (-h) or full help (--help)
)",
                         .details = R"(
Measures the time and memory of the planner over generated files on three tiers, for
pools from quiet to crowded.

Examples:
  sluice-lab planbench --files 10000000 --rounds 1

Exit status: 0 measured, 1 failed, 2 wrong usage.
)"};

struct Options {
  std::uint32_t files = 1'000'000;
  unsigned rounds = 3;
  std::uint64_t seed = 1;
  std::string policy = "value";
  std::string json_file;
};

// A pool to plan for.
struct Scene {
  const char* name;
  const char* meaning;
  double misplaced;  // part of the files whose heat is that of another tier
  double fill[kTiers];
};
constexpr Scene kScenes[] = {
    {"quiet", "nearly all where they belong", 0.001, {0.70, 0.70, 0.60}},
    {"busy", "a tenth of the files changed their heat", 0.1, {0.89, 0.85, 0.70}},
    {"crowded", "fast tiers above their high watermarks", 0.1, {0.95, 0.95, 0.85}},
    {"chaos", "every file anywhere, every tier nearly full", 1, {0.93, 0.93, 0.93}},
};

struct World {
  std::vector<FileFacts> files;
  std::vector<TierFacts> tiers;
  Policy policy;
};

// By value, the score alone does not say where a file belongs: plans settle that. Afterwards the
// part of the files that the scene asks for gets the heat of another file.
void settle(World& world, double misplaced, std::mt19937_64& random) {
  constexpr int kPlans = 2;
  for (int i = 0; i < kPlans; ++i) {
    const Plan plan = make_plan(world.files, world.tiers, world.policy, kNow);
    for (const PlannedMove& move : plan.moves) {
      FileFacts& file = world.files[move.file];
      world.tiers[file.tier].used -= file.bytes;
      world.tiers[move.to].used += file.bytes;
      file.tier = move.to;
      file.ghost_of = kNoTier;
    }
  }
  std::uniform_int_distribution<std::size_t> any(0, world.files.size() - 1);
  const auto changes = static_cast<std::size_t>(misplaced * static_cast<double>(any.b() + 1) / 2);
  for (std::size_t i = 0; i < changes; ++i) {
    FileFacts &one = world.files[any(random)], &other = world.files[any(random)];
    std::swap(one.score, other.score);
    std::swap(one.recent, other.recent);
  }
}

World make_world(const Scene& scene, const Options& options) {
  std::mt19937_64 random(options.seed);
  const auto part = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  const auto magnitude = [&](double least, double most) {
    return least * std::pow(most / least, part());
  };
  constexpr double kScores[kTiers][2] = {
      {60, 2000}, {6, 90}, {0.001, 8}};                   // of files on the right tier
  constexpr double kShares[kTiers] = {0.05, 0.20, 0.75};  // of the files

  World world;
  world.tiers.resize(kTiers);
  world.tiers[0].threshold = 100;
  world.tiers[1].threshold = 10;
  constexpr TierSpeed kSpeeds[kTiers] = {{80e-6, 3e9}, {150e-6, 500e6}, {8e-3, 180e6}};
  for (TierIndex i = 0; i < kTiers; ++i) world.tiers[i].speed = kSpeeds[i];
  world.policy.method = options.policy == "value" ? Method::Value : Method::Thresholds;
  world.policy.rules.resize(2);
  world.policy.rules[0].tier = 2;
  world.files.resize(options.files);
  for (std::uint32_t i = 0; i < options.files; ++i) {
    FileFacts& file = world.files[i];
    const auto any_tier = [&] { return static_cast<TierIndex>(random() % kTiers); };
    const double place = part();
    file.id = InodeId{i + 2ULL};
    file.tier = place < kShares[0] ? 0 : place < kShares[0] + kShares[1] ? 1 : 2;
    const double* scores = kScores[part() < scene.misplaced ? any_tier() : file.tier];
    file.score = static_cast<float>(magnitude(scores[0], scores[1]));
    file.bytes = static_cast<std::uint64_t>(magnitude(4096, 1 << 30));
    file.opens = static_cast<std::uint32_t>(random() % 20);
    file.last_use = kNow - static_cast<std::int64_t>(magnitude(60, kMonth));
    file.since = file.last_use - static_cast<std::int64_t>(magnitude(60, kMonth));
    file.recent = file.score / 4;
    file.arrived = kNow - static_cast<std::int64_t>(magnitude(kHour / 10, kMonth));
    if (part() < 0.01) file.pin = part() < 0.9 ? file.tier : any_tier();
    if (part() < 0.01) file.rule = static_cast<std::uint16_t>(random() % 2);
    world.tiers[file.tier].used += file.bytes;
  }
  for (TierIndex i = 0; i < kTiers; ++i) {
    TierFacts& tier = world.tiers[i];
    tier.total = static_cast<std::uint64_t>(static_cast<double>(tier.used) / scene.fill[i]) + 1;
  }
  const bool is_chaos = scene.misplaced >= 1;
  if (world.policy.method == Method::Value && !is_chaos) settle(world, scene.misplaced, random);
  return world;
}

// A line of /proc/self/status such as "VmRSS:", in bytes.
std::uint64_t memory(const std::string& line) {
  std::istringstream status(text_of_file("/proc/self/status"));
  std::string word;
  std::uint64_t kilobytes = 0;
  while (status >> word) {
    if (word == line && status >> kilobytes) break;
  }
  return kilobytes * 1024;
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

struct Sample {
  double seconds;
  double processor;     // seconds
  std::uint64_t bytes;  // more than before, at the most
};

struct Row {
  const Scene* scene;
  std::vector<Sample> samples;
  std::size_t moves = 0;

  double median(double Sample::*member) const {
    std::vector<double> all;
    for (const Sample& sample : samples) all.push_back(sample.*member);
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }
  std::uint64_t bytes() const {
    std::uint64_t most = 0;
    for (const Sample& sample : samples) most = std::max(most, sample.bytes);
    return most;
  }
};

Row measure(const Scene& scene, const Options& options) {
  const World world = make_world(scene, options);
  Row row{&scene, {}, 0};
  for (unsigned round = 0; round < options.rounds; ++round) {
    // Return freed memory to the system and reset the peak, so that all rounds start with the same
    // state.
    ::malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";
    const std::uint64_t before = memory("VmRSS:");
    const double processor = processor_seconds();
    const auto start = std::chrono::steady_clock::now();
    const Plan plan = make_plan(world.files, world.tiers, world.policy, kNow);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const std::uint64_t peak = memory("VmHWM:");
    row.samples.push_back(
        {taken.count(), processor_seconds() - processor, peak > before ? peak - before : 0});
    row.moves = plan.moves.size();
  }
  return row;
}

void print_table(const std::vector<Row>& rows, const Options& options) {
  std::printf("| %-8s | %10s | %10s | %8s | %8s | %8s | %s\n", "pool", "files", "moves", "seconds",
              "CPU s", "peak MB", "");
  std::printf("|----------|------------|------------|----------|----------|----------|\n");
  for (const Row& row : rows) {
    std::printf("| %-8s | %10u | %10zu | %8.3f | %8.3f | %8.1f | %s\n", row.scene->name,
                options.files, row.moves, row.median(&Sample::seconds),
                row.median(&Sample::processor), static_cast<double>(row.bytes()) / 1e6,
                row.scene->meaning);
  }
}

std::string format_json(const std::vector<Row>& rows, const Options& options) {
  nlohmann::ordered_json json;
  json["version"] = 1;
  json["files"] = options.files;
  json["rounds"] = options.rounds;
  json["seed"] = options.seed;
  json["policy"] = options.policy;
  json["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json entry{{"pool", row.scene->name},
                                 {"moves", row.moves},
                                 {"seconds", row.median(&Sample::seconds)},
                                 {"cpu_seconds", row.median(&Sample::processor)},
                                 {"peak_bytes", row.bytes()}};
    for (const Sample& sample : row.samples)
      entry["samples"].push_back({{"seconds", sample.seconds},
                                  {"cpu_seconds", sample.processor},
                                  {"peak_bytes", sample.bytes}});
    json["rows"].push_back(entry);
  }
  return json.dump(2) + "\n";
}

int run(const Options& options) {
  std::vector<Row> rows;
  for (const Scene& scene : kScenes) rows.push_back(measure(scene, options));
  print_table(rows, options);
  if (options.json_file.empty()) return 0;
  std::ofstream file(options.json_file);
  if (file << format_json(rows, options) << std::flush) return 0;
  return fail(kVerb, "cannot write " + options.json_file);
}

}  // namespace

int command_planbench(int argc, char** argv) {
  Arguments arguments;
  Options options;
  arguments.option("--files", options.files);
  arguments.option("--rounds", options.rounds);
  arguments.option("--seed", options.seed);
  arguments.option("--policy", options.policy);
  arguments.option("--json", options.json_file);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (options.files < 1 || options.files > 1'000'000'000)
    return misuse(kVerb, "--files must be from 1 to 1000000000");
  if (options.policy != "value" && options.policy != "thresholds")
    return misuse(kVerb, "--policy must be value or thresholds");
  if (options.rounds < 1 || options.rounds > 100)
    return misuse(kVerb, "--rounds must be from 1 to 100");
  return run(options);
}

}  // namespace sluice::tools::lab::bench
