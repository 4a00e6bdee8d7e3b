// SPDX-License-Identifier: BSD-2-Clause
// The table of options, and packaging/sluice.toml, which is written from it.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>

#include "fs/control/option_table.hpp"
#include "fs/control/options.hpp"

namespace sluice {
namespace {

using Group = OptionSpec::Group;

// The file as it is, or with every example and default in effect: "#key = value" and "#[table]".
std::string reference_file(bool in_effect) {
  std::ifstream in(SLUICE_SOURCE_DIR "/packaging/sluice.toml");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in_effect) return text;
  return std::regex_replace(text, std::regex(R"((^|\n)#([a-z_]+ = |\[))"), "$1$2");
}

TEST(OptionTableTest, DefaultsAreThoseOfTheMembers) {
  MountOptions options;
  TierOptions tier;
  for (const OptionSpec& spec : option_table()) {
    if (!spec.example.empty()) continue;  // the default is not a value
    const OptionTarget target =
        spec.group == Group::Tier ? OptionTarget(&tier) : OptionTarget(&options);
    const auto set =
        spec.member.set(spec, typed_value(spec, std::string(spec.fallback)), "", target);
    EXPECT_TRUE(set) << spec.name << ": " << set.error().text();
  }
  EXPECT_TRUE(options == MountOptions{});
  EXPECT_TRUE(tier == TierOptions{});
}

TEST(OptionTableTest, EveryExampleCanBeRead) {
  MountOptions options;
  TierOptions tier;
  RuleOptions rule;
  for (const OptionSpec& spec : option_table()) {
    if (spec.example.empty()) continue;
    const OptionTarget target = spec.group == Group::Tier   ? OptionTarget(&tier)
                                : spec.group == Group::Rule ? OptionTarget(&rule)
                                                            : OptionTarget(&options);
    const auto set =
        spec.member.set(spec, typed_value(spec, std::string(spec.example)), "", target);
    EXPECT_TRUE(set) << spec.name << ": " << set.error().text();
  }
}

TEST(OptionTableTest, EveryRowIsDescribedAndGroupsAreContiguous) {
  std::set<std::pair<Group, std::string_view>> names;
  for (const OptionSpec& spec : option_table()) {
    EXPECT_TRUE(names.emplace(spec.group, spec.name).second) << spec.name << " is there twice";
    EXPECT_EQ(find_option(spec.group, spec.name), &spec);
    EXPECT_FALSE(spec.fallback.empty() || spec.help.empty()) << spec.name;
    EXPECT_TRUE(spec.details.ends_with('.')) << spec.name;
  }
}

TEST(ReferenceFileTest, IsValidAndHoldsEveryOption) {
  MountOptions options;
  auto read = apply_config_text(reference_file(false), "sluice.toml", options);
  ASSERT_TRUE(read) << read.error().text();
  options.mountpoint.clear();
  options.tiers.clear();
  EXPECT_TRUE(options == MountOptions{}) << "without the comments, nothing but the tiers is set";

  const std::string text = reference_file(true);
  read = apply_config_text(text, "sluice.toml", options);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_TRUE(check_options(options));
  EXPECT_FALSE(options.rules.empty());
  for (const OptionSpec& spec : option_table()) {
    EXPECT_NE(text.find("\n" + std::string(spec.name) + " = "), std::string::npos) << spec.name;
  }
}

}  // namespace
}  // namespace sluice
