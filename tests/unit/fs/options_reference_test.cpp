// SPDX-License-Identifier: BSD-2-Clause
// packaging/sluice.toml, from which people learn the options.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "fs/control/options.hpp"

namespace sluice {
namespace {

TEST(ReferenceFileTest, IsValidAndHoldsEveryOption) {
  std::ifstream in(SLUICE_SOURCE_DIR "/packaging/sluice.toml");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  ASSERT_FALSE(text.empty());
  MountOptions options;
  auto read = apply_config_text(text, "sluice.toml", options);
  ASSERT_TRUE(read) << read.error().text();

  // "#key = value" is an option at its default or an example; with the '#' gone it must still
  // parse.
  text = std::regex_replace(text, std::regex(R"((^|\n)#([a-z_]+ = |\[\[))"), "$1$2");
  read = apply_config_text(text, "sluice.toml", options);
  ASSERT_TRUE(read) << read.error().text();
  for (const auto& spec : option_specs()) {
    EXPECT_NE(text.find("\n" + std::string(spec.name) + " = "), std::string::npos) << spec.name;
  }
}

TEST(ReferenceFileTest, ShowsTheDefaults) {
  std::ifstream in(SLUICE_SOURCE_DIR "/packaging/sluice.toml");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  text = std::regex_replace(text, std::regex(R"((^|\n)#([a-z_]+ = |\[\[))"), "$1$2");
  MountOptions options;
  ASSERT_TRUE(apply_config_text(text, "sluice.toml", options));
  const MountOptions defaults;
  EXPECT_EQ(options.small_file, defaults.small_file);
  EXPECT_EQ(options.passthrough, defaults.passthrough);
  EXPECT_EQ(options.io_uring, defaults.io_uring);
  EXPECT_EQ(options.degraded, defaults.degraded);
  EXPECT_EQ(options.foreground, defaults.foreground);
  EXPECT_EQ(options.log_level, defaults.log_level);
  EXPECT_EQ(options.mount_options, defaults.mount_options);
  EXPECT_EQ(options.half_life, defaults.half_life);
  EXPECT_EQ(options.interval, defaults.interval);
  EXPECT_EQ(options.min_stay, defaults.min_stay);
  EXPECT_EQ(options.migrate, defaults.migrate);
  EXPECT_EQ(options.windows, defaults.windows);
  EXPECT_EQ(options.bandwidth, defaults.bandwidth);
  EXPECT_EQ(options.verify, defaults.verify);
  EXPECT_EQ(options.gpu, defaults.gpu);
  EXPECT_EQ(options.gpu_max_concurrent_ops, defaults.gpu_max_concurrent_ops);
  EXPECT_EQ(options.gpu_chunk, defaults.gpu_chunk);
  EXPECT_EQ(options.gpu_threads, defaults.gpu_threads);
  EXPECT_EQ(options.gpu_mapped_memory, defaults.gpu_mapped_memory);
  EXPECT_EQ(options.gpu_host_memory, defaults.gpu_host_memory);
  EXPECT_EQ(options.gpu_cufile, defaults.gpu_cufile);
  ASSERT_FALSE(options.tiers.empty());
  EXPECT_EQ(options.tiers[0].high_watermark, TierOptions{}.high_watermark);
  EXPECT_EQ(options.tiers[0].low_watermark, TierOptions{}.low_watermark);
  EXPECT_EQ(options.tiers[0].moves, TierOptions{}.moves);
  const double threshold = tier_threshold(options.tiers, 0);
  options.tiers[0].threshold.reset();
  EXPECT_EQ(threshold, tier_threshold(options.tiers, 0));
  EXPECT_TRUE(check_options(options));
  EXPECT_FALSE(options.rules.empty());
}

}  // namespace
}  // namespace sluice
