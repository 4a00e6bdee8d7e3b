// SPDX-License-Identifier: BSD-2-Clause
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "tests/support/seed.hpp"
#include "tools/lab/simulator/chart.hpp"
#include "tools/lab/simulator/options.hpp"
#include "tools/lab/simulator/replay.hpp"

namespace sluice::tools::lab {
namespace {

// One access per second to objects named by letters, of size 1 unless `sizes` has another size.
Trace trace_of(std::string_view letters, const std::map<char, std::uint64_t>& sizes = {}) {
  Trace trace;
  std::map<char, std::uint32_t> numbers;
  for (const char letter : letters) {
    const auto [found, is_new] =
        numbers.try_emplace(letter, static_cast<std::uint32_t>(trace.sizes.size()));
    if (is_new) trace.sizes.push_back(sizes.contains(letter) ? sizes.at(letter) : 1);
    trace.times.push_back(static_cast<std::int64_t>(trace.times.size()) * 1'000'000);
    trace.objects.push_back(found->second);
  }
  return trace;
}

SimulationOptions options_with(std::uint64_t fast_bytes) {
  SimulationOptions options;
  options.tiers = {{"fast", fast_bytes, 2}, {"slow", 1 << 20, 0}};
  options.interval = std::chrono::seconds(10);
  options.min_stay = std::chrono::seconds(0);
  return options;
}

// For each access "0" for a miss, "1" for a hit.
std::string hits_of(std::string_view policy, const Trace& trace, const SimulationOptions& options) {
  const auto contender = make_contender(policy, trace, options);
  std::string hits;
  for (std::uint32_t record = 0; record < trace.records(); ++record) {
    contender->locate(record);
    hits += contender->access(record, Contender::Access::Use) ? '1' : '0';
  }
  return hits;
}

std::string hits_of(std::string_view policy, std::string_view letters, std::uint64_t capacity) {
  return hits_of(policy, trace_of(letters), options_with(capacity));
}

TEST(LruCacheTest, EvictsTheLeastRecentlyUsed) {
  // c evicts b, because a was used after b.
  EXPECT_EQ(hits_of("lru", "abacab", 2), "001010");
}

TEST(LruCacheTest, EvictsAsManyAsALargeObjectNeeds) {
  const auto trace = trace_of("abcLcab", {{'L', 2}});
  EXPECT_EQ(hits_of("lru", trace, options_with(3)), "0000100");
}

TEST(CacheTest, ObjectLargerThanTheTierIsNotCachedAndEvictsNothing) {
  for (const auto policy : {"lru", "lfu", "arc", "s3fifo", "gdsf", "belady", "belady-size"}) {
    const auto trace = trace_of("aLLa", {{'L', 4}});
    EXPECT_EQ(hits_of(policy, trace, options_with(3)), "0001") << policy;
  }
}

TEST(CacheTest, EmptyObjectsTakeNoSpace) {
  for (const auto policy : {"lru", "lfu", "arc", "s3fifo", "gdsf", "belady", "belady-size"}) {
    const auto trace = trace_of("aEFaEF", {{'E', 0}, {'F', 0}});
    EXPECT_EQ(hits_of(policy, trace, options_with(1)), "000111") << policy;
  }
}

TEST(LfuCacheTest, EvictsTheLeastFrequentAndAmongEqualsTheLeastRecent) {
  // c evicts b (one use, a has two), then b evicts c; a stays.
  EXPECT_EQ(hits_of("lfu", "aabcba", 2), "010001");
  // b and c have one use each: d evicts b, which is older.
  EXPECT_EQ(hits_of("lfu", "aabcdcb", 3), "0100010");
}

TEST(GdsfCacheTest, EvictsTheFewestUsesPerByte) {
  // L has two uses for three bytes: it is evicted before a, which has one use for one byte.
  EXPECT_EQ(hits_of("gdsf", trace_of("LLabaL", {{'L', 3}}), options_with(4)), "010010");
}

TEST(GdsfCacheTest, UnusedObjectsAge) {
  // a has two uses, b one. c evicts b (worth 1, so new objects begin at 2). d evicts a, which is
  // worth 2 like c and has the lower number.
  EXPECT_EQ(hits_of("gdsf", "aabcdca", 2), "0100010");
}

TEST(ArcCacheTest, ScanDoesNotEvictObjectsThatWereUsedTwice) {
  EXPECT_EQ(hits_of("arc", "aabbcdefab", 3), "0101000011");
  EXPECT_EQ(hits_of("lru", "aabbcdefab", 3), "0101000000");
}

TEST(ArcCacheTest, GhostsShiftTheBalanceAsInThePaper) {
  // After the scan: T1=f, T2=b,a (newest first), B1=e,d, p=0.
  // d: in B1, so p=1; T1 is not longer than p, so a goes to B2.  T1=f T2=d,b B1=e B2=a
  // f: hit.                                                      T1=  T2=f,d,b B1=e B2=a
  // a: in B2, so p=0; T1 is empty, so b goes to B2.              T2=a,f,d B1=e B2=b
  // b: in B2; d goes to B2.                                      T2=b,a,f B1=e B2=d
  // f: hit.
  EXPECT_EQ(hits_of("arc", "aabbcdefabdfabf", 3), "010100001101001");
}

TEST(ArcCacheTest, TieEvictsFromTheRecentListOnlyForAFrequentGhost) {
  // Capacity 2.                     newest first: T1, T2, B1, B2, p
  // a b: miss                       b,a - - - 0
  // a: hit                          b a - - 0
  // c: |T1| > p: b becomes a ghost  c a b - 0
  // b: in B1, p=1, |T1| = p: a      c b - a 1
  // a: in B2, p=0, |T1| > p: c      - a,b c - 0
  // c: in B1, p=1, T1 empty: b      - c,a - b 1
  // a: hit                          - a,c - b 1
  // b: in B2, p=0, T1 empty: c      - b,a - c 0
  // a: hit
  EXPECT_EQ(hits_of("arc", "abacbacaba", 2), "0010000101");
}

TEST(S3FifoCacheTest, FollowsAWorkedExample) {
  // Capacity 3: the small queue's tenth is 0, the main queue and the ghosts have 3. Oldest first.
  // abc: S=a,b,c. aa: a has 2 uses.
  // d: a passes to the main queue, b is out.      S=c,d M=a     G=b
  // b: a ghost, so to the main queue; c is out.   S=d   M=a,b   G=c
  // c: likewise; d is out.                        S=    M=a,b,c G=d
  // e: the main queue's oldest, a, is out.        S=e   M=b,c   G=d
  // a: no ghost; e is out.                        S=a   M=b,c   G=d,e
  // bc: hits, one use each.
  // d: a ghost; a is out.                         S=    M=b,c,d G=e,a
  // f: b and c are spared, d is out.              S=f   M=b,c   G=e,a
  // bc: hits. d: miss.
  EXPECT_EQ(hits_of("s3fifo", "abcaadbceabcdfbcd", 3), "00011000001100110");
}

TEST(S3FifoCacheTest, OneMoreUseDoesNotReachTheMainQueue) {
  // a has one use after it was cached, b two: d and e evict a, not b.
  EXPECT_EQ(hits_of("s3fifo", "abcabbdeba", 3), "0001110010");
}

TEST(BeladyCacheTest, DoesNotCacheTheObjectThatIsUsedLast) {
  EXPECT_EQ(hits_of("belady", "abcabc", 2), "000110");
  EXPECT_EQ(hits_of("lru", "abcabc", 2), "000000");
}

TEST(BeladyCacheTest, EvictsTheObjectWithTheFarthestNextUse) {
  // c is used before b, so it replaces b.
  EXPECT_EQ(hits_of("belady", "abcacb", 2), "000110");
}

TEST(BeladySizeCacheTest, PrefersManySmallObjectsToALargeOneThatIsUsedSooner) {
  const auto trace = trace_of("LabcLabc", {{'L', 3}});
  EXPECT_EQ(hits_of("belady", trace, options_with(3)), "00001000");
  EXPECT_EQ(hits_of("belady-size", trace, options_with(3)), "00000111");
}

TEST(AutotierMoverTest, PopularFilesFillTheFastTierAfterEachPeriod) {
  // One access a second, a tick before the eleventh: b had more uses than a.
  EXPECT_EQ(hits_of("autotier", "abbabbabbbabab", 1), "00000000000101");
}

TEST(AutotierMoverTest, FileThatDoesNotFitIsSkipped) {
  const auto trace = trace_of("LLLLLLabbbLabab", {{'L', 5}});
  EXPECT_EQ(hits_of("autotier", trace, options_with(2)), "000000000001111");
}

TEST(PlannerMoverTest, FrequentlyUsedFilesAreOnTheFastTierAfterAnInterval) {
  // The pass begins with the eleventh access, which comes before the move has ended.
  EXPECT_EQ(hits_of("sluice", "aaaaaaaaabaa", 100), "000000000001");
}

TEST(PlannerMoverTest, ThresholdsDecideWhichFilesAreEligible) {
  auto options = options_with(100);
  options.tiers[0].threshold = 50;
  options.method = Method::Thresholds;
  EXPECT_EQ(hits_of("sluice", "aaaaaaaaabaa", 100).back(), '1');
  EXPECT_EQ(hits_of("sluice", trace_of("aaaaaaaaabaa"), options).back(), '0');
}

TEST(PlannerMoverTest, NeverFillsATierBeyondItsSize) {
  // Ten objects for a tier of three: at most three can be hits in a round.
  std::string letters;
  for (int round = 0; round < 20; ++round) letters += "abcdefghij";
  const auto hits = hits_of("sluice", letters, 3);
  for (std::size_t at = 0; at < hits.size(); at += 10) {
    EXPECT_LE(std::count(hits.begin() + static_cast<long>(at),
                         hits.begin() + static_cast<long>(at) + 10, '1'),
              3)
        << at;
  }
}

TEST(ReplayTest, CreationsPutFilesOnTheFastTierAndAreNotRequests) {
  auto options = options_with(100);
  options.placing = Placing::Fastest;
  for (const auto policy : contender_names()) {
    const auto outcome = replay(policy, trace_of("abab"), options);
    EXPECT_EQ(outcome.requests.requests, 2u) << policy;
    EXPECT_EQ(outcome.requests.hits, 2u) << policy;
    EXPECT_EQ(outcome.traffic.bytes_in, 0u) << policy;
  }
}

TEST(ReplayTest, ARequestTakesTheTimeOfItsTier) {
  auto options = options_with(1);
  options.tiers[0].speed = {.latency = 1, .bandwidth = 1e9};
  options.tiers[1].speed = {.latency = 5, .bandwidth = 1e9};
  // A miss and three hits; the write that follows the miss has ended before the next request.
  auto trace = trace_of("aaaa");
  for (auto& time : trace.times) time *= 10;
  EXPECT_NEAR(replay("lru", trace, options).service_mean, 2, 1e-6);
}

TEST(CacheTest, WhatLeavesTheCacheGoesToTheNextTier) {
  auto options = options_with(1);
  options.tiers.insert(options.tiers.begin() + 1, {"middle", 1, 1});
  const auto trace = trace_of("abcb");
  const auto contender = make_contender("lru", trace, options);
  std::string tiers;
  for (std::uint32_t record = 0; record < trace.records(); ++record) {
    tiers += static_cast<char>('0' + contender->locate(record));
    contender->access(record, Contender::Access::Use);
  }
  EXPECT_EQ(tiers, "2221");
}

TEST(ReplayTest, WarmupIsNotCounted) {
  auto options = options_with(1);
  options.warmup = std::chrono::seconds(3);
  const auto outcome = replay("lru", trace_of("abcaabb"), options);
  EXPECT_EQ(outcome.requests.requests, 4u);
  EXPECT_EQ(outcome.requests.hits, 2u);
  EXPECT_EQ(outcome.traffic.bytes_in, 2u);  // a, b
  EXPECT_EQ(outcome.traffic.moves, 4u);
}

TEST(ReplayTest, CountsBytesAndTraffic) {
  const auto outcome = replay("lru", trace_of("aaLL", {{'a', 2}, {'L', 8}}), options_with(9));
  EXPECT_EQ(outcome.requests.hits, 2u);
  EXPECT_EQ(outcome.bytes.requests, 20u);
  EXPECT_EQ(outcome.bytes.hits, 10u);
  EXPECT_EQ(outcome.traffic.bytes_in, 10u);
  EXPECT_EQ(outcome.traffic.bytes_out, 2u);
  EXPECT_EQ(outcome.traffic.moves, 3u);
}

TEST(ReplayTest, GapIsRelativeToTheBestOracleOfTheSameSize) {
  std::vector<ReplayResult> all(4);
  all[0] = {.policy = "sluice", .fast_bytes = 1, .requests = {10, 4}};
  all[1] = {.policy = "belady", .fast_bytes = 1, .requests = {10, 5}};
  all[2] = {.policy = "belady-size", .fast_bytes = 1, .requests = {10, 7}};
  all[3] = {.policy = "belady", .fast_bytes = 2, .requests = {10, 9}};
  EXPECT_NEAR(*gap_to_oracle(all[0], all), 0.3, 1e-9);
  EXPECT_FALSE(gap_to_oracle(all[0], std::span(all).first(1)));
}

TEST(ReplayTest, NoPolicyBeatsBeladyWithEqualSizes) {
  std::mt19937_64 random(test::test_seed());
  for (int round = 0; round < test::rounds(40, 1000); ++round) {
    Trace trace;
    const std::uint32_t objects = 3 + random() % 60;
    trace.sizes.assign(objects, 1);
    for (int i = 0; i < 2000; ++i) {
      // The smaller of two numbers: low ones are more likely.
      const auto object = std::min(random() % objects, random() % objects);
      trace.times.push_back(std::int64_t{i} * 1'000'000);
      trace.objects.push_back(static_cast<std::uint32_t>(object));
    }
    const auto options = options_with(1 + random() % objects);
    const auto bound = replay("belady", trace, options).requests.hits;
    for (const auto policy : contender_names()) {
      EXPECT_LE(replay(policy, trace, options).requests.hits, bound) << policy << " " << round;
    }
  }
}

TEST(ReplayTest, RunsAreRepeatable) {
  std::mt19937_64 random(1);
  Trace trace;
  for (int i = 0; i < 500; ++i) trace.sizes.push_back(1 + random() % 1000);
  for (int i = 0; i < 5000; ++i) {
    trace.times.push_back(std::int64_t{i} * 1'000'000);
    trace.objects.push_back(static_cast<std::uint32_t>(random() % 500));
  }
  for (const auto policy : contender_names()) {
    EXPECT_EQ(hits_of(policy, trace, options_with(20'000)),
              hits_of(policy, trace, options_with(20'000)))
        << policy;
  }
}

TEST(SimulateOptionsTest, TierSizesAreBytesOrPercentages) {
  const auto specs = parse_tiers("nvme=10%,ssd=1KiB,hdd");
  ASSERT_TRUE(specs);
  const auto tiers = resolve(*specs, trace_of("ab", {{'a', 500}, {'b', 1500}}));
  ASSERT_EQ(tiers.size(), 3u);
  EXPECT_EQ(tiers[0].bytes, 200u);
  EXPECT_EQ(tiers[1].bytes, 1024u);
  EXPECT_GT(tiers[2].bytes, 1ull << 60);
  EXPECT_EQ(tiers[0].threshold, 100);
  EXPECT_EQ(tiers[1].threshold, 10);
  EXPECT_EQ(tiers[2].threshold, 0);
}

TEST(SimulateOptionsTest, MistakesInTiersAreReported) {
  for (const auto* const text : {"", "nvme=1GiB", "nvme,hdd", "nvme=ten,hdd", "nvme=0,hdd",
                                 "a=1,a=2", "=1,hdd", "a=-5%,b", "a=1,,b"}) {
    EXPECT_FALSE(parse_tiers(text)) << text;
  }
  EXPECT_NE(parse_tiers("nvme=ten,hdd").error().text().find("'ten'"), std::string::npos);
}

TEST(SimulateOptionsTest, ThresholdsMustNotRiseTowardsSlowerTiers) {
  auto specs = *parse_tiers("nvme=1,ssd=1,hdd");
  EXPECT_TRUE(parse_thresholds("nvme=20,ssd=5.5", specs));
  EXPECT_EQ(*specs[1].threshold, 5.5);
  EXPECT_FALSE(parse_thresholds("ssd=30", specs));
  specs = *parse_tiers("nvme=1,ssd=1,hdd");
  EXPECT_FALSE(parse_thresholds("hdd=1", specs));
  EXPECT_FALSE(parse_thresholds("tape=1", specs));
  EXPECT_FALSE(parse_thresholds("nvme", specs));
}

TEST(SimulateOptionsTest, TimesHaveUnits) {
  EXPECT_EQ(parse_span("15min", "")->count(), 900);
  EXPECT_EQ(parse_span("1.5h", "")->count(), 5400);
  EXPECT_EQ(parse_span("never", "never")->count(), 0);
  for (const auto* const text : {"", "5", "h", "-1h", "never", "1.2.3h", "9999999999999w"}) {
    EXPECT_FALSE(parse_span(text, "")) << text;
  }
}

TEST(SimulateOptionsTest, PoliciesAreKnownByName) {
  EXPECT_EQ(*parse_policies("lru,arc,lru"), (std::vector<std::string>{"lru", "arc"}));
  EXPECT_EQ(parse_policies("all")->size(), contender_names().size() - 1) << "all but budget";
  EXPECT_NE(parse_policies("lruu").error().text().find("s3fifo"), std::string::npos);
}

// Whether tags close in the order in which they were opened, and attributes are quoted.
bool is_well_formed(std::string_view xml) {
  std::vector<std::string> open;
  if (xml.starts_with("<?xml")) xml.remove_prefix(xml.find("?>") + 2);
  while (!xml.empty()) {
    const auto begin = xml.find('<');
    const auto text = xml.substr(0, begin);
    if (text.find('>') != text.npos) return false;
    if (begin == xml.npos) break;
    const auto end = xml.find('>', begin);
    if (end == xml.npos) return false;
    auto tag = xml.substr(begin + 1, end - begin - 1);
    xml.remove_prefix(end + 1);
    if (tag.find('<') != tag.npos || std::count(tag.begin(), tag.end(), '"') % 2 != 0) return false;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.emplace_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

TEST(ChartTest, IsWellFormedAndNamesEachLine) {
  const auto trace = trace_of("abcabcabdabe");
  std::vector<ReplayResult> outcomes;
  for (const std::uint64_t size : {1, 2, 4}) {
    for (const auto policy : contender_names()) {
      outcomes.push_back(replay(policy, trace, options_with(size)));
    }
  }
  for (const auto& svg :
       {svg_of(chart_over_sizes(outcomes, "sizes <&\"> \x01")),
        svg_of(chart_over_time(std::span(outcomes).first(contender_names().size()), trace,
                               "over time"))}) {
    EXPECT_TRUE(is_well_formed(svg)) << svg;
    for (const auto policy : contender_names()) {
      EXPECT_NE(svg.find(">" + std::string(policy) + "</text>"), std::string::npos) << policy;
    }
    EXPECT_NE(svg.find("hit ratio"), std::string::npos);
    EXPECT_EQ(svg.find("href"), std::string::npos);
    EXPECT_EQ(svg.find('\x01'), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
  }
}

TEST(ChartTest, DrawsAChartOfASinglePoint) {
  const auto trace = trace_of("a");
  const std::vector<ReplayResult> outcomes{replay("lru", trace, options_with(1))};
  EXPECT_TRUE(is_well_formed(svg_of(chart_over_sizes(outcomes, ""))));
  EXPECT_TRUE(is_well_formed(svg_of(chart_over_time(outcomes, trace, ""))));
}

}  // namespace
}  // namespace sluice::tools::lab
