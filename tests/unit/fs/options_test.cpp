// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/options.hpp"

#include <gtest/gtest.h>

#include <map>

namespace sluice {
namespace {

using namespace std::chrono_literals;

// The message for TOML `text` in /etc/sluice.toml, or "" when it is accepted.
std::string config_error(const std::string& text) {
  MountOptions options;
  const auto read = apply_config_text(text, "/etc/sluice.toml", options);
  return read ? "" : read.error().text();
}

std::string tier_flag_error(const std::string& text) {
  MountOptions options;
  const auto read = append_tier("--tier", text, options);
  return read ? "" : read.error().text();
}

TEST(ConfigFileTest, GivesEveryOption) {
  MountOptions options;
  const auto read = apply_config_text(R"(
mountpoint = "mnt/"
state = "/var/s"
mount_options = "noatime"
small_file = "1MiB"
degraded = true
foreground = true
log_level = "debug"
log_file = "../log"
half_life = "14d"
interval = "30s"
min_stay = "0s"
migrate = false
windows = "22:00-06:00"
bandwidth = "200MiB/s"
verify = true
heat_ignore = "rsync restic"
gpu = false
gpu_mapped_memory = "2GiB"
gpu_host_memory = "3GiB"
hbm = "20%"
hbm_reserve = "5GiB"
[debug]
passthrough = false
keeper = false
crash_limit = 9
gpu_max_concurrent_ops = 8
gpu_chunk = "1MiB"
gpu_threads = 4
gpu_rest = 100
gpu_cufile = false
[[tier]]
name = "nvme"
path = "fast"
capacity = "1.5GiB"
high_watermark = 70
low_watermark = 60
reserve = 4096
threshold = 12.5
moves = 8
[[tier]]
name = "hdd"
path = "/slow/./x/"
[[rule]]
match = "*.iso"
tier = "hdd"
[[rule]]
match = "/scratch/**"
larger = "1GiB"
smaller = "1TiB"
older = "12h"
newer = "30d"
tier = "stay"
)",
                                      "/etc/sluice/main.toml", options);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(options.mountpoint, "/etc/sluice/mnt");
  EXPECT_EQ(options.state, "/var/s");
  EXPECT_EQ(options.mount_options, "noatime");
  EXPECT_EQ(options.small_file, 1u << 20);
  EXPECT_FALSE(options.passthrough);
  EXPECT_FALSE(options.keeper);
  EXPECT_EQ(options.crash_limit, 9u);
  EXPECT_TRUE(options.degraded);
  EXPECT_TRUE(options.foreground);
  EXPECT_EQ(options.log_level, "debug");
  EXPECT_EQ(options.log_file, "/etc/log");
  EXPECT_EQ(options.half_life, 14 * 24h);
  EXPECT_EQ(options.interval, 30s);
  EXPECT_EQ(options.min_stay, 0s);
  EXPECT_FALSE(options.migrate);
  EXPECT_EQ(options.windows, (Windows{{22 * 60, 6 * 60}}));
  EXPECT_EQ(options.bandwidth, 200u << 20);
  EXPECT_TRUE(options.verify);
  EXPECT_EQ(options.heat_ignore, "rsync restic");
  EXPECT_FALSE(options.gpu);
  EXPECT_EQ(options.gpu_max_concurrent_ops, 8u);
  EXPECT_EQ(options.gpu_chunk, 1u << 20);
  EXPECT_EQ(options.gpu_threads, 4u);
  EXPECT_EQ(options.gpu_rest, 100u);
  EXPECT_EQ(options.gpu_mapped_memory, 2ull << 30);
  EXPECT_EQ(options.gpu_host_memory, 3ull << 30);
  EXPECT_EQ(options.hbm, (GpuShare{.percent = 20}));
  EXPECT_EQ(options.hbm_reserve, (GpuShare{.bytes = 5ull << 30}));
  EXPECT_FALSE(options.gpu_cufile);
  ASSERT_EQ(options.tiers.size(), 2u);
  EXPECT_EQ(options.tiers[0].name, "nvme");
  EXPECT_EQ(options.tiers[0].path, "/etc/sluice/fast");
  EXPECT_EQ(options.tiers[0].capacity, 3u << 29);
  EXPECT_EQ(options.tiers[0].high_watermark, 70u);
  EXPECT_EQ(options.tiers[0].low_watermark, 60u);
  EXPECT_EQ(options.tiers[0].reserve, 4096u);
  EXPECT_EQ(options.tiers[0].threshold, 12.5);
  EXPECT_EQ(options.tiers[0].moves, 8u);
  EXPECT_EQ(options.tiers[1].path, "/slow/x");
  EXPECT_FALSE(options.tiers[1].capacity);
  EXPECT_FALSE(options.tiers[1].reserve);
  EXPECT_EQ(options.tiers[1].high_watermark, 90u);
  EXPECT_EQ(options.tiers[1].low_watermark, 80u);
  EXPECT_FALSE(options.tiers[1].threshold);
  EXPECT_EQ(options.tiers[1].moves, 2u);
  ASSERT_EQ(options.rules.size(), 2u);
  EXPECT_EQ(options.rules[0].match, "*.iso");
  EXPECT_EQ(options.rules[0].tier, "hdd");
  EXPECT_FALSE(options.rules[0].larger || options.rules[0].smaller);
  EXPECT_FALSE(options.rules[0].older || options.rules[0].newer);
  EXPECT_EQ(options.rules[1].match, "/scratch/**");
  EXPECT_EQ(options.rules[1].larger, 1u << 30);
  EXPECT_EQ(options.rules[1].smaller, 1ull << 40);
  EXPECT_EQ(options.rules[1].older, 12h);
  EXPECT_EQ(options.rules[1].newer, 30 * 24h);
  EXPECT_EQ(options.rules[1].tier, "stay");
}

TEST(ConfigFileTest, LowWatermarkFollowsTheHighOneUnlessGiven) {
  MountOptions options;
  ASSERT_TRUE(
      apply_config_text("[[tier]]\nname='a'\npath='/a'\nhigh_watermark=50\n"
                        "[[tier]]\nname='b'\npath='/b'\nhigh_watermark=5\n",
                        "/c", options));
  EXPECT_EQ(options.tiers[0].low_watermark, 40u);
  EXPECT_EQ(options.tiers[1].low_watermark, 0u);
}

TEST(ConfigFileTest, ErrorsNameFileLineAndWhatIsAllowed) {
  const std::string tier = "[[tier]]\nname = \"nvme\"\npath = \"/n\"\n";  // three lines
  const std::vector<std::pair<std::string, std::string>> golden{
      // Keys.
      {"\nsmal_file = 1",
       "/etc/sluice.toml:2: unknown key 'smal_file'; did you mean 'small_file'?"},
      {"colour = 1",
       "/etc/sluice.toml:1: unknown key 'colour'; allowed: tier, rule, debug, mountpoint, state, "
       "mount_options, small_file, degraded, over, foreground, log_level, log_format, log_file, "
       "metrics, "
       "policy, optimize, half_life, heat_ignore, heat_sample, migrate, interval, min_stay, "
       "windows, bandwidth, verify, twins, gpu, gpu_mapped_memory, gpu_host_memory, hbm, "
       "hbm_reserve"},
      {tier + "high_watermrk = 9",
       "/etc/sluice.toml:4: unknown key 'high_watermrk' in a tier; did you mean 'high_watermark'?"},
      {tier + "colour = 9",
       "/etc/sluice.toml:4: unknown key 'colour' in a tier; allowed: name, path, capacity, "
       "high_watermark, low_watermark, reserve, threshold, moves"},
      {tier + "small_file = 9",
       "/etc/sluice.toml:4: unknown key 'small_file' in a tier; it belongs to the mount: put it "
       "above the first [[tier]]"},
      {"zzz = 1\naaa = 1",
       "/etc/sluice.toml:1: unknown key 'zzz'; allowed: tier, rule, debug, mountpoint, state, "
       "mount_options, small_file, degraded, over, foreground, log_level, log_format, log_file, "
       "metrics, "
       "policy, optimize, half_life, heat_ignore, heat_sample, migrate, interval, min_stay, "
       "windows, bandwidth, verify, twins, gpu, gpu_mapped_memory, gpu_host_memory, hbm, "
       "hbm_reserve"},
      // Types.
      {"small_file = true",
       "/etc/sluice.toml:1: small_file must be a size like \"800GiB\" or \"1.5T\", or a number of "
       "bytes, not true"},
      {"small_file = 1.5",
       "/etc/sluice.toml:1: small_file must be a size like \"800GiB\" or \"1.5T\", or a number of "
       "bytes, not 1.5"},
      {"degraded = \"yes\"", "/etc/sluice.toml:1: degraded must be true or false, not \"yes\""},
      // The group debug.
      {"[debug]\npassthrough = \"yes\"",
       "/etc/sluice.toml:2: passthrough must be true or false, not \"yes\""},
      {"passthrough = false",
       "/etc/sluice.toml:1: passthrough belongs to [debug]: put it below a line [debug], "
       "after the options of the mount"},
      {"[debug]\ngpu_chunks = 1",
       "/etc/sluice.toml:2: unknown key 'gpu_chunks' in [debug]; did you mean 'gpu_chunk'?"},
      {"[debug]\nsmall_file = 1",
       "/etc/sluice.toml:2: unknown key 'small_file' in [debug]; it belongs to the mount: put it "
       "above [debug]"},
      {"debug = 1", "/etc/sluice.toml:1: debug is a table: head it with [debug]"},
      {"state = 7", "/etc/sluice.toml:1: state must be a text in quotes, not 7"},
      {"state = [\"/a\"]", "/etc/sluice.toml:1: state must be a text in quotes, not a list"},
      {"state = 1979-05-27",
       "/etc/sluice.toml:1: state must be a text in quotes, not a date or time"},
      {"state = \"\"", "/etc/sluice.toml:1: state is empty; give the path of a file or directory"},
      {"log_level = \"loud\"",
       "/etc/sluice.toml:1: log_level must be one of trace, debug, info, warn, error, not "
       "\"loud\""},
      // Sizes.
      {"small_file = \"10 apples\"",
       "/etc/sluice.toml:1: small_file must be a size like \"800GiB\" or \"1.5T\", or a number of "
       "bytes, not \"10 apples\""},
      {"small_file = -1",
       "/etc/sluice.toml:1: small_file must be a size like \"800GiB\" or \"1.5T\", or a number of "
       "bytes, not -1"},
      {tier + "capacity = \"99999999999P\"",
       "/etc/sluice.toml:4: capacity must be a size like \"800GiB\" or \"1.5T\", or a number of "
       "bytes, not \"99999999999P\""},
      {tier + "capacity = 0",
       "/etc/sluice.toml:1: tier nvme: capacity must be 1 MiB or more, not 0 bytes; give a unit, "
       "like 800GiB, or leave it out to use the whole filesystem"},
      {tier + "capacity = 800",
       "/etc/sluice.toml:1: tier nvme: capacity must be 1 MiB or more, not 800 bytes; give a unit, "
       "like 800GiB, or leave it out to use the whole filesystem"},
      // Durations, times of day, rates.
      {"interval = 30",
       "/etc/sluice.toml:1: interval must be a number with its unit (s, min, h, d or w), like "
       "\"90s\" or \"7d\", of 1 s or more, not 30"},
      {"interval = \"0s\"",
       "/etc/sluice.toml:1: interval must be a number with its unit (s, min, h, d or w), like "
       "\"90s\" or \"7d\", of 1 s or more, not \"0s\""},
      {"min_stay = \"90\"",
       "/etc/sluice.toml:1: min_stay must be a number with its unit (s, min, h, d or w), like "
       "\"90s\" or \"7d\", not \"90\""},
      {"min_stay = \"never\"",
       "/etc/sluice.toml:1: min_stay must be a number with its unit (s, min, h, d or w), like "
       "\"90s\" or \"7d\", not \"never\""},
      {"half_life = \"1m\"",
       "/etc/sluice.toml:1: half_life must be a number with its unit (s, min, h, d or w), like "
       "\"90s\" or \"7d\", of 1 s or more, or \"never\", not \"1m\""},
      {"windows = \"22-6\"",
       "/etc/sluice.toml:1: windows must be times of day like \"22:00-06:00\" or "
       "\"22:00-06:00,12:00-13:00\", or \"\" for always, not \"22-6\""},
      {"bandwidth = \"fast/s\"",
       "/etc/sluice.toml:1: bandwidth must be a size per second like \"200MiB\", or 0 for no "
       "limit, not \"fast/s\""},
      {"bandwidth = 50",
       "/etc/sluice.toml:1: bandwidth must be a size per second like \"200MiB\", or 0 for no "
       "limit, not 50, which is 50 bytes per second"},
      {"verify = 1", "/etc/sluice.toml:1: verify must be true or false, not 1"},
      {"heat_ignore = [\"rsync\"]",
       "/etc/sluice.toml:1: heat_ignore must be a text in quotes, not a list"},
      // Thresholds and moves.
      {tier + "threshold = -1",
       "/etc/sluice.toml:4: threshold must be a score: a number of accesses, 0 or more, not -1"},
      {tier + "threshold = inf",
       "/etc/sluice.toml:4: threshold must be a score: a number of accesses, 0 or more, not inf"},
      {tier + "threshold = \"hot\"",
       "/etc/sluice.toml:4: threshold must be a score: a number of accesses, 0 or more, not "
       "\"hot\""},
      {tier + "moves = 0", "/etc/sluice.toml:4: moves must be a whole number from 1 to 64, not 0"},
      {tier + "moves = 1.5",
       "/etc/sluice.toml:4: moves must be a whole number from 1 to 64, not 1.5"},
      // Rules.
      {"[rule]\nmatch = \"a\"",
       "/etc/sluice.toml:1: rules are a list: head each one with [[rule]], in double brackets"},
      {"rule = [\"a\"]", "/etc/sluice.toml:1: a rule must be a table: head it with [[rule]]"},
      {"\n[[rule]]\ntier = \"nvme\"",
       "/etc/sluice.toml:2: a rule has no match; say which files it is for, like match = "
       "\"*.iso\""},
      {"[[rule]]\nmatch = \"*\"",
       "/etc/sluice.toml:1: rule \"*\": it has no tier; say where the files belong, like tier = "
       "\"hdd\", or \"stay\", or give the directories a budget"},
      {"[[rule]]\nmatch = \"*\"\nbudget = 0",
       "/etc/sluice.toml:1: rule \"*\": a budget must be more than 0"},
      {"[[rule]]\nmatch = \"*\"\nlager = 1",
       "/etc/sluice.toml:3: unknown key 'lager' in a rule; did you mean 'larger'?"},
      {"[[rule]]\nmatch = \"*\"\nshininess = 1",
       "/etc/sluice.toml:3: unknown key 'shininess' in a rule; allowed: match, larger, smaller, "
       "older, newer, tier, budget"},
      {"[[rule]]\nmatch = \"*\"\nmin_stay = \"1h\"",
       "/etc/sluice.toml:3: unknown key 'min_stay' in a rule; it belongs to the mount: put it "
       "above the first [[rule]]"},
      {"[[rule]]\nmatch = \"*\"\nolder = 30",
       "/etc/sluice.toml:3: older must be a number with its unit (s, min, h, d or w), like "
       "\"90s\" or \"7d\", not 30"},
      {"[[rule]]\nmatch = \"*\"\ntier = \"a\"\nlarger = \"2M\"\nsmaller = \"1M\"",
       "/etc/sluice.toml:1: rule \"*\": no file is both larger than 2.0 MiB and smaller than 1.0 "
       "MiB"},
      {"[[rule]]\nmatch = \"*\"\ntier = \"a\"\nolder = \"2d\"\nnewer = \"2d\"",
       "/etc/sluice.toml:1: rule \"*\": no file is both older than 2 d and newer than 2 d"},
      // Watermarks.
      {tier + "high_watermark = 101",
       "/etc/sluice.toml:4: high_watermark must be a whole number of percent from 0 to 100, not "
       "101"},
      {tier + "low_watermark = -1",
       "/etc/sluice.toml:4: low_watermark must be a whole number of percent from 0 to 100, not -1"},
      {tier + "low_watermark = \"80%\"",
       "/etc/sluice.toml:4: low_watermark must be a whole number of percent from 0 to 100, not "
       "\"80%\""},
      {tier + "high_watermark = 50\nlow_watermark = 50",
       "/etc/sluice.toml:1: tier nvme: low_watermark (50) must be below high_watermark (50)"},
      {tier + "low_watermark = 95",
       "/etc/sluice.toml:1: tier nvme: low_watermark (95) must be below high_watermark (90)"},
      // Tiers.
      {"[tier]\nname = \"nvme\"",
       "/etc/sluice.toml:1: tiers are a list: head each one with [[tier]], in double brackets"},
      {"tier = [\"/nvme\"]", "/etc/sluice.toml:1: a tier must be a table: head it with [[tier]]"},
      {"\n[[tier]]\npath = \"/n\"",
       "/etc/sluice.toml:2: a tier has no name; give one, like name = \"nvme\""},
      {"[[tier]]\nname = \"n\"",
       "/etc/sluice.toml:1: tier n: it has no path; give the directory that holds its files"},
      {"[[tier]]\nname = \"a/b\"\npath = \"/n\"",
       "/etc/sluice.toml:1: tier \"a/b\": a name has 1 to 32 letters, digits, '_' or '-', and "
       "nothing else"},
      {"[[tier]]\nname = \"123456789012345678901234567890123\"\npath = \"/n\"",
       "/etc/sluice.toml:1: tier \"123456789012345678901234567890123\": a name has 1 to 32 "
       "letters, digits, '_' or '-', and nothing else"},
      {"[[tier]]\nname = \"a\\tb\"\npath = \"/n\"",
       "/etc/sluice.toml:1: tier \"a\\x09b\": a name has 1 to 32 letters, digits, '_' or '-', and "
       "nothing else"},
      {"[[tier]]\nname = \"stay\"\npath = \"/n\"",
       "/etc/sluice.toml:1: tier stay: that word has a meaning in rules; choose another name"},
      {tier + tier,
       "/etc/sluice.toml:4: tier nvme: the tier of line 1 has that name already; names must "
       "differ"},
  };
  for (const auto& [text, message] : golden) EXPECT_EQ(config_error(text), message) << text;
}

TEST(ConfigFileTest, SyntaxErrorsNameTheLine) {
  const std::string form = "a line is NAME = VALUE, like bandwidth = \"200MiB\"";
  const std::vector<std::pair<std::string, std::string>> golden{
      {"state = \"/a\"\nmetrics = ", "2: metrics has no value; " + form},
      {"a b", "1: \"a b\" is not understood; " + form},
      {"degraded = true\ndegraded = true", "2: degraded is set twice; remove one of the two"},
      {"\n\nbandwidth = 10MiB",
       "3: bandwidth: \"10MiB\" must be in quotes; only numbers, true and false need none"},
      {"policy = value # the default\n",
       "1: policy: \"value\" must be in quotes; only numbers, true and false need none"},
      {"state = \"/a\nmigrate = true",
       "1: state: the text is not closed, or something follows it; put a quote at its end"},
      {"[[tier]\nname = \"a\"",
       "1: \"[[tier]\": a table is headed by [[tier]], [[rule]] or [debug], alone on a line"},
      {"state = \"\xff\"", "1: the file is not text in UTF-8"},
  };
  for (const auto& [text, message] : golden)
    EXPECT_EQ(config_error(text), "/etc/sluice.toml:" + message) << text;
}

TEST(ConfigFileTest, AMissingFileIsNamed) {
  MountOptions options;
  EXPECT_EQ(apply_config_file("/nowhere/s.toml", options).error().text(),
            "/nowhere/s.toml: can't be read: No such file or directory");
  EXPECT_EQ(apply_config_file("/", options).error().text(), "/: can't be read: Is a directory");
}

TEST(ConfigFileTest, AnEmptyFileIsAnEmptyConfiguration) {
  MountOptions options;
  EXPECT_TRUE(apply_config_file("/dev/null", options));
}

TEST(EnvironmentTest, NamesEveryOptionInCapitals) {
  const std::map<std::string, const char*> environment{{"SLUICE_SMALL_FILE", "64K"},
                                                       {"SLUICE_DEBUG", "passthrough=off,keeper=0"},
                                                       {"SLUICE_DEGRADED", "yes"},
                                                       {"SLUICE_STATE", "/s"},
                                                       {"SLUICE_LOG_LEVEL", "warn"},
                                                       {"SLUICE_HALF_LIFE", "never"},
                                                       {"SLUICE_MIGRATE", "no"},
                                                       {"SLUICE_WINDOWS", "1:00-2:00"},
                                                       {"SLUICE_BANDWIDTH", "0"},
                                                       {"SLUICE_HEAT_IGNORE", ""},
                                                       {"SLUICE_TIER", "a=/a;b=/b,reserve=1M"}};
  MountOptions options;
  options.tiers.resize(3);  // the variable has all of them
  const auto read = apply_environment(
      [&](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second;
      },
      options);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(options.small_file, 64u << 10);
  EXPECT_FALSE(options.passthrough);
  EXPECT_FALSE(options.keeper);
  EXPECT_TRUE(options.degraded);
  EXPECT_EQ(options.state, "/s");
  EXPECT_EQ(options.log_level, "warn");
  EXPECT_EQ(options.half_life, 0s);
  EXPECT_FALSE(options.migrate);
  EXPECT_EQ(options.windows, (Windows{{60, 120}}));
  EXPECT_EQ(options.bandwidth, 0u);
  EXPECT_EQ(options.heat_ignore, "");  // ignores none, unlike the built-in list
  ASSERT_EQ(options.tiers.size(), 2u);
  EXPECT_EQ(options.tiers[1].name, "b");
  EXPECT_EQ(options.tiers[1].reserve, 1u << 20);
}

TEST(EnvironmentTest, ErrorsNameTheVariable) {
  const auto message = [](const std::string& variable, const char* value) {
    MountOptions options;
    const auto read = apply_environment(
        [&](const char* name) { return variable == name ? value : nullptr; }, options);
    return read ? "" : read.error().text();
  };
  EXPECT_EQ(message("SLUICE_DEGRADED", "maybe"),
            "SLUICE_DEGRADED: degraded must be true or false, not \"maybe\"");
  EXPECT_EQ(message("SLUICE_DEBUG", "keeper=maybe"),
            "SLUICE_DEBUG \"keeper=maybe\": keeper must be true or false, not \"maybe\"");
  EXPECT_EQ(message("SLUICE_DEBUG", "keeper"),
            "SLUICE_DEBUG \"keeper\": must be NAME=VALUE, like passthrough=off");
  EXPECT_EQ(message("SLUICE_DEBUG", "keepe=0"),
            "SLUICE_DEBUG \"keepe=0\": unknown name 'keepe'; did you mean 'keeper'?");
  EXPECT_EQ(message("SLUICE_TIER", "nvme"),
            "SLUICE_TIER \"nvme\": must be NAME=PATH, like nvme=/nvme or "
            "nvme=/nvme,capacity=800GiB");
}

TEST(EnvironmentTest, TakesCountsAndSharesOfMemory) {
  const auto message = [](const std::string& variable, const char* value, MountOptions& options) {
    const auto read = apply_environment(
        [&](const char* name) { return variable == name ? value : nullptr; }, options);
    return read ? "" : read.error().text();
  };
  MountOptions options;
  EXPECT_EQ(message("SLUICE_DEBUG", "gpu_threads=12", options), "");
  EXPECT_EQ(options.gpu_threads, 12u);
  EXPECT_EQ(message("SLUICE_DEBUG", "gpu_threads=many", options),
            "SLUICE_DEBUG \"gpu_threads=many\": gpu_threads must be a whole number from 0 to 64, "
            "not \"many\"");
  EXPECT_EQ(message("SLUICE_DEBUG", "gpu_threads=65", options),
            "SLUICE_DEBUG \"gpu_threads=65\": gpu_threads must be a whole number from 0 to 64, "
            "not 65");
  EXPECT_EQ(message("SLUICE_DEBUG", "gpu_max_concurrent_ops=0", options),
            "SLUICE_DEBUG \"gpu_max_concurrent_ops=0\": gpu_max_concurrent_ops must be a whole "
            "number from 1 to 4096, not 0");
  EXPECT_EQ(message("SLUICE_GPU_MAPPED_MEMORY", "50%", options), "");
  EXPECT_EQ(options.gpu_mapped_memory, share_of_memory(50));
  EXPECT_EQ(message("SLUICE_GPU_MAPPED_MEMORY", "0", options), "");
  EXPECT_EQ(options.gpu_mapped_memory, 0u);
  EXPECT_EQ(message("SLUICE_HBM", "24GiB", options), "");
  EXPECT_EQ(options.hbm.of(1), 24ull << 30);
  EXPECT_EQ(message("SLUICE_HBM", "half", options),
            "SLUICE_HBM: hbm must be a part of the GPU's memory like \"20%\", or a size like "
            "\"24GiB\", not \"half\"");
  for (const char* bad : {"101%", "-1%", "%", "half"}) {
    EXPECT_EQ(
        message("SLUICE_GPU_MAPPED_MEMORY", bad, options),
        std::string("SLUICE_GPU_MAPPED_MEMORY: gpu_mapped_memory must be a part of memory like "
                    "\"25%\", or a size like \"16GiB\", not \"") +
            bad + "\"");
  }
}

TEST(TierFlagTest, TakesSettingsAfterThePath) {
  MountOptions options;
  ASSERT_TRUE(append_tier("--tier",
                          "nvme=/a,b,capacity=1G,reserve=2M,high_watermark=60,low_watermark=5,"
                          "threshold=0.5,moves=4",
                          options));
  ASSERT_EQ(options.tiers.size(), 1u);
  const TierOptions& tier = options.tiers[0];
  EXPECT_EQ(tier.name, "nvme");
  EXPECT_EQ(tier.path, "/a,b");
  EXPECT_EQ(tier.capacity, 1u << 30);
  EXPECT_EQ(tier.reserve, 2u << 20);
  EXPECT_EQ(tier.high_watermark, 60u);
  EXPECT_EQ(tier.low_watermark, 5u);
  EXPECT_EQ(tier.threshold, 0.5);
  EXPECT_EQ(tier.moves, 4u);
}

TEST(TierFlagTest, ErrorsQuoteTheFlag) {
  const std::vector<std::pair<std::string, std::string>> golden{
      {"", "--tier \"\": must be NAME=PATH, like nvme=/nvme or nvme=/nvme,capacity=800GiB"},
      {"=/a", "--tier \"=/a\": must be NAME=PATH, like nvme=/nvme or nvme=/nvme,capacity=800GiB"},
      {"a=", "--tier \"a=\": path is empty; give the path of a file or directory"},
      {"a b=/a",
       "--tier \"a b=/a\": tier \"a b\": a name has 1 to 32 letters, digits, '_' or '-', and "
       "nothing else"},
      {"a=/a,capacty=1",
       "--tier \"a=/a,capacty=1\": unknown setting 'capacty'; did you mean 'capacity'?"},
      {"a=/a,capacity=lots",
       "--tier \"a=/a,capacity=lots\": capacity must be a size like \"800GiB\" or \"1.5T\", or a "
       "number of bytes, not \"lots\""},
      {"a=/a,high_watermark=9x",
       "--tier \"a=/a,high_watermark=9x\": high_watermark must be a whole number of percent from 0 "
       "to 100, not \"9x\""},
      {"a=/a,low_watermark=90",
       "--tier \"a=/a,low_watermark=90\": tier a: low_watermark (90) must be below high_watermark "
       "(90)"},
  };
  for (const auto& [text, message] : golden) EXPECT_EQ(tier_flag_error(text), message) << text;
}

}  // namespace
}  // namespace sluice
