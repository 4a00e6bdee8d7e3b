// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/policy.hpp"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/seed.hpp"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST(GlobTest, AGlobWithoutASlashMatchesTheLastName) {
  EXPECT_TRUE(glob_matches("*.ckpt", "/runs/7/model.ckpt"));
  EXPECT_TRUE(glob_matches("model.ckpt", "/model.ckpt"));
  EXPECT_FALSE(glob_matches("runs", "/runs/7"));
  EXPECT_FALSE(glob_matches("*.ckpt", "/a.ckpt/b.bin"));
}

TEST(GlobTest, AGlobThatBeginsWithASlashStartsAtTheRoot) {
  EXPECT_TRUE(glob_matches("/runs/*.log", "/runs/a.log"));
  EXPECT_FALSE(glob_matches("/runs/*.log", "/old/runs/a.log"));
  EXPECT_TRUE(glob_matches("/a", "/a"));
  EXPECT_FALSE(glob_matches("/a", "/b/a"));
}

TEST(GlobTest, AGlobWithASlashElsewhereStartsInAnyDirectory) {
  EXPECT_TRUE(glob_matches("runs/*.log", "/runs/a.log"));
  EXPECT_TRUE(glob_matches("runs/*.log", "/old/x/runs/a.log"));
  EXPECT_FALSE(glob_matches("runs/*.log", "/myruns/a.log"));
  EXPECT_FALSE(glob_matches("runs/*.log", "/runs/b/a.log"));
}

TEST(GlobTest, AStarDoesNotMatchASlash) {
  EXPECT_TRUE(glob_matches("/a/*/c", "/a/b/c"));
  EXPECT_FALSE(glob_matches("/a/*/d", "/a/b/c/d"));
  EXPECT_FALSE(glob_matches("/a*", "/ab/c"));
}

TEST(GlobTest, AStarMatchesTheEmptyString) {
  EXPECT_TRUE(glob_matches("a*", "/a"));
  EXPECT_TRUE(glob_matches("*a*", "/a"));
  EXPECT_TRUE(glob_matches("*", "/a"));
}

TEST(GlobTest, TwoStarsMatchSlashes) {
  EXPECT_TRUE(glob_matches("/a/**", "/a/b"));
  EXPECT_TRUE(glob_matches("/a/**", "/a/b/c/d"));
  EXPECT_FALSE(glob_matches("/a/**", "/a"));
  EXPECT_FALSE(glob_matches("/a/**", "/ab/c"));
  EXPECT_TRUE(glob_matches("/a**z", "/a/b/z"));
}

TEST(GlobTest, TwoStarsBetweenSlashesMatchZeroDirectories) {
  EXPECT_TRUE(glob_matches("/a/**/b", "/a/b"));
  EXPECT_TRUE(glob_matches("/a/**/b", "/a/x/y/b"));
  EXPECT_FALSE(glob_matches("/a/**/b", "/a/xb"));
  EXPECT_TRUE(glob_matches("**/b", "/b"));
  EXPECT_TRUE(glob_matches("/**/b", "/x/b"));
}

TEST(GlobTest, AQuestionMarkMatchesOneCharacterExceptASlash) {
  EXPECT_TRUE(glob_matches("/a?c", "/abc"));
  EXPECT_FALSE(glob_matches("/a?c", "/ac"));
  EXPECT_FALSE(glob_matches("/a?c", "/a/c"));
}

TEST(GlobTest, ASetMatchesOneOfItsMembers) {
  EXPECT_TRUE(glob_matches("x[abc]", "/xb"));
  EXPECT_FALSE(glob_matches("x[abc]", "/xd"));
  EXPECT_TRUE(glob_matches("shard-[0-9]", "/shard-7"));
  EXPECT_FALSE(glob_matches("shard-[0-9]", "/shard-x"));
  EXPECT_TRUE(glob_matches("[a-cx-z]", "/y"));
}

TEST(GlobTest, ANegatedSetMatchesAnyOtherCharacterExceptASlash) {
  EXPECT_TRUE(glob_matches("x[!a-c]", "/xd"));
  EXPECT_FALSE(glob_matches("x[!a-c]", "/xb"));
  EXPECT_FALSE(glob_matches("/a[!x]c", "/a/c"));
}

TEST(GlobTest, SpecialCharactersInASetAreLiteral) {
  EXPECT_TRUE(glob_matches("[]a]", "/]"));
  EXPECT_TRUE(glob_matches("[a-]", "/-"));
  EXPECT_TRUE(glob_matches("[\\]]", "/]"));
  EXPECT_FALSE(glob_matches("[!]]", "/]"));
  EXPECT_TRUE(glob_matches("[!]]", "/a"));
}

TEST(GlobTest, AnUnclosedBracketIsLiteral) {
  EXPECT_TRUE(glob_matches("a[b", "/a[b"));
  EXPECT_FALSE(glob_matches("a[b", "/ab"));
  EXPECT_TRUE(glob_matches("[", "/["));
}

TEST(GlobTest, ABackslashMakesTheNextCharacterLiteral) {
  EXPECT_TRUE(glob_matches("\\*", "/*"));
  EXPECT_FALSE(glob_matches("\\*", "/a"));
  EXPECT_TRUE(glob_matches("\\[a]", "/[a]"));
  EXPECT_TRUE(glob_matches("a\\", "/a\\"));
}

TEST(GlobTest, NamesAreMatchedAsBytes) {
  EXPECT_TRUE(glob_matches("*.bin", "/\xff\xfe.bin"));
  EXPECT_TRUE(glob_matches("[\x80-\xff]", "/\xe9"));
  EXPECT_TRUE(glob_matches("modèle.*", "/modèle.bin"));
}

TEST(GlobTest, AnEmptyGlobMatchesNoFile) { EXPECT_FALSE(glob_matches("", "/a")); }

TEST(GlobTest, ManyStarsAreFast) {
  std::string glob = "/", path = "/";
  for (int i = 0; i < 60; ++i) glob += "*a**b/**/";
  for (int i = 0; i < 400; ++i) path += "ab/";
  EXPECT_FALSE(glob_matches(glob + "c", path + "d"));
}

// A simple and slow reference implementation of globs.
bool matches_slowly(std::string_view glob, std::string_view text, bool is_at_name = true) {
  if (glob.empty()) return text.empty();
  if (glob.starts_with("**")) {
    while (glob.starts_with('*')) glob.remove_prefix(1);
    if (is_at_name && glob.starts_with('/')) {
      if (matches_slowly(glob.substr(1), text)) return true;
      for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '/' && matches_slowly(glob.substr(1), text.substr(i + 1))) return true;
      }
      return false;
    }
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (matches_slowly(glob, text.substr(i), false)) return true;
    }
    return false;
  }
  if (glob[0] == '*') {
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (matches_slowly(glob.substr(1), text.substr(i), false)) return true;
      if (i < text.size() && text[i] == '/') return false;
    }
    return false;
  }
  if (text.empty() || (glob[0] == '?' ? text[0] == '/' : text[0] != glob[0])) return false;
  return matches_slowly(glob.substr(1), text.substr(1), glob[0] == '/');
}

TEST(GlobTest, AgreesWithASlowMatcherOnRandomGlobs) {
  std::mt19937_64 random(test::test_seed());
  const auto text_of = [&](std::string_view letters, std::size_t most) {
    std::string text = "/";
    for (std::size_t n = random() % most; n > 0; --n) text += letters[random() % letters.size()];
    return text;
  };
  int matches = 0;
  for (int i = 0; i < 300'000; ++i) {
    const std::string glob = text_of("ab/***?", 12), path = text_of("ab/", 10);
    const bool expected = matches_slowly(glob.substr(1), path.substr(1));
    ASSERT_EQ(glob_matches(glob, path), expected) << glob << " on " << path;
    matches += expected;
  }
  EXPECT_GT(matches, 1000);
}

class MatchingRuleTest : public testing::Test {
 protected:
  std::optional<std::size_t> match(std::string_view path, std::uint64_t size = 0,
                                   seconds age = {}) const {
    return matching_rule(rules_, path, size, age);
  }
  std::vector<Rule> rules_ = std::vector<Rule>(1);
};

TEST_F(MatchingRuleTest, WithoutRulesNoneMatches) {
  rules_.clear();
  EXPECT_EQ(match("/a"), std::nullopt);
}

TEST_F(MatchingRuleTest, TheFirstRuleThatMatchesApplies) {
  rules_.resize(3);
  rules_[0].match = "*.log";
  rules_[1].match = "a.*";
  rules_[2].match = "a.bin";
  EXPECT_EQ(match("/a.bin"), 1U);
  EXPECT_EQ(match("/a.log"), 0U);
  EXPECT_EQ(match("/b.bin"), std::nullopt);
}

TEST_F(MatchingRuleTest, ARuleWithoutAGlobMatchesEveryFile) {
  rules_[0].larger = 10;
  EXPECT_EQ(match("/a/b", 11), 0U);
}

TEST_F(MatchingRuleTest, LargerAndSmallerExcludeTheBound) {
  rules_[0].larger = 10;
  rules_[0].smaller = 20;
  EXPECT_EQ(match("/a", 10), std::nullopt);
  EXPECT_EQ(match("/a", 11), 0U);
  EXPECT_EQ(match("/a", 19), 0U);
  EXPECT_EQ(match("/a", 20), std::nullopt);
}

TEST_F(MatchingRuleTest, OlderAndNewerExcludeTheBound) {
  rules_[0].older = hours(1);
  rules_[0].newer = hours(2);
  EXPECT_EQ(match("/a", 0, hours(1)), std::nullopt);
  EXPECT_EQ(match("/a", 0, hours(1) + seconds(1)), 0U);
  EXPECT_EQ(match("/a", 0, hours(2) - seconds(1)), 0U);
  EXPECT_EQ(match("/a", 0, hours(2)), std::nullopt);
}

TEST_F(MatchingRuleTest, AllConditionsOfARuleMustMatch) {
  rules_[0].match = "*.bin";
  rules_[0].larger = 10;
  rules_[0].older = hours(1);
  EXPECT_EQ(match("/a.bin", 11, hours(2)), 0U);
  EXPECT_EQ(match("/a.txt", 11, hours(2)), std::nullopt);
  EXPECT_EQ(match("/a.bin", 9, hours(2)), std::nullopt);
  EXPECT_EQ(match("/a.bin", 11, hours(0)), std::nullopt);
}

}  // namespace
}  // namespace sluice
