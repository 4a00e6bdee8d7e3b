// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/speed_meter.hpp"

#include "tests/support/wait.hpp"
#include "tests/unit/tiering/pools.hpp"
#include "tiering/pool/storage_kind.hpp"

namespace sluice {
namespace {

using Mode = SpeedMeter::Mode;
using Source = SpeedMeter::Source;
constexpr double kMega = 1 << 20;

// What a disk did in a while.
DiskCounters after(std::uint64_t reads, double bytes_each, double ms_each, double depth = 1) {
  DiskCounters out;
  out.name = "sda";
  out.reads = reads;
  out.read_bytes = static_cast<std::uint64_t>(bytes_each * static_cast<double>(reads));
  out.read_ms = static_cast<std::uint64_t>(ms_each * static_cast<double>(reads));
  out.busy_ms = static_cast<std::uint64_t>(static_cast<double>(out.read_ms) / depth);
  return out;
}
DiskCounters before() { return after(0, 0, 0); }

const TierSpeed kSpeed{.latency = 1e-3, .bandwidth = 100e6};

TEST(CorrectedSpeedTest, SmallReadsTellTheLatency) {
  TierSpeed speed = kSpeed;
  for (int i = 0; i < 100; ++i) speed = corrected(speed, before(), after(1000, 4096, 8));
  EXPECT_NEAR(speed.latency, 8e-3, 0.2e-3);
  EXPECT_EQ(speed.bandwidth, kSpeed.bandwidth);
}

TEST(CorrectedSpeedTest, LargeReadsTellTheBandwidth) {
  TierSpeed speed = kSpeed;
  for (int i = 0; i < 100; ++i) speed = corrected(speed, before(), after(1000, kMega, 2));
  EXPECT_NEAR(speed.bandwidth, kMega / 2e-3, 5e6);
  EXPECT_EQ(speed.latency, kSpeed.latency);
}

TEST(CorrectedSpeedTest, OneLookChangesLittle) {
  const TierSpeed slower = corrected(kSpeed, before(), after(1000, 4096, 500));
  EXPECT_GT(slower.latency, kSpeed.latency);
  EXPECT_LT(slower.latency, 1.1 * kSpeed.latency);
  const TierSpeed large_at_random = corrected(kSpeed, before(), after(1000, kMega, 100));
  EXPECT_GT(large_at_random.bandwidth, 0.97 * kSpeed.bandwidth);
}

TEST(CorrectedSpeedTest, ReadsThatWaitForEachOtherDoNotTellTheLatency) {
  EXPECT_EQ(corrected(kSpeed, before(), after(1000, 4096, 8, 16)), kSpeed);
}

TEST(CorrectedSpeedTest, FewReadsTellNothing) {
  EXPECT_EQ(corrected(kSpeed, before(), after(10, 4096, 8)), kSpeed);
  EXPECT_EQ(corrected(kSpeed, before(), before()), kSpeed);
}

TEST(CorrectedSpeedTest, ReadsAmongWritesDoNotTellTheBandwidth) {
  DiskCounters busy = after(1000, kMega, 100);
  busy.written_bytes = busy.read_bytes;
  EXPECT_EQ(corrected(kSpeed, before(), busy), kSpeed);
}

TEST(CorrectedSpeedTest, ADiskThatCameBackStartsAnew) {
  EXPECT_EQ(corrected(kSpeed, after(2000, 4096, 8), after(1000, 4096, 8)), kSpeed);
  DiskCounters other = after(1000, 4096, 8);
  other.name = "sdb";
  EXPECT_EQ(corrected(kSpeed, before(), other), kSpeed);
}

class SpeedMeterTest : public test::PoolTest {
 protected:
  std::string stored(const std::string& tier) const { return at(tier, ".sluice/speed.json"); }
  static bool is_measured(const SpeedMeter& meter, TierIndex tier) {
    return test::eventually([&] { return meter.reading(tier).source != Source::Kind; });
  }
};

TEST_F(SpeedMeterTest, MeasuresATierOnceAndRemembersIt) {
  const auto settings = make_tiers("ab");
  SpeedMeter::Reading first;
  {
    const auto pool = open(settings);
    const SpeedMeter meter(*pool, Mode::Observe);
    if (!is_measured(meter, 0)) GTEST_SKIP() << "this filesystem cannot be measured";
    ASSERT_TRUE(is_measured(meter, 1));
    ASSERT_TRUE(test::eventually([&] { return ::access(stored("b").c_str(), F_OK) == 0; }));
    EXPECT_TRUE(test::names_in(at("a", ".sluice/tmp")).empty());
    first = meter.reading(0);
  }
  const std::string text = test::read_file(stored("a"));
  const auto pool = open(settings);
  const SpeedMeter meter(*pool, Mode::Observe);
  EXPECT_EQ(meter.reading(0).source, Source::Probe) << "from the beginning";
  EXPECT_NEAR(meter.reading(0).speed.latency, first.speed.latency, 1e-9);
  EXPECT_EQ(test::read_file(stored("a")), text) << "not measured again";
}

TEST_F(SpeedMeterTest, DamagedOrForeignFileIsAsGoodAsNone) {
  const auto settings = make_tiers("a");
  {
    const auto pool = open(settings);
    const SpeedMeter meter(*pool, Mode::Observe);
    if (!is_measured(meter, 0)) GTEST_SKIP() << "this filesystem cannot be measured";
    ASSERT_TRUE(test::eventually([&] { return ::access(stored("a").c_str(), F_OK) == 0; }));
  }
  const std::string good = test::read_file(stored("a"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t place = text.find(from);
    if (place == std::string::npos) throw std::runtime_error("no " + from);
    return text.replace(place, from.size(), to);
  };
  const std::string filesystem = "\"filesystem\": ";
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
        with("\"version\": 1", "\"version\": 2"), with(filesystem, filesystem + "1"),
        with("\"latency_us\": ", "\"latency_us\": -"), with("\"bytes_per_s\": ", "\"x\": ")}) {
    test::write_file(stored("a"), text);
    const auto pool = open(settings);
    const SpeedMeter meter(*pool, Mode::Load);
    EXPECT_EQ(meter.reading(0).source, Source::Kind) << text;
  }
  test::write_file(stored("a"), good);
  const auto pool = open(settings);
  EXPECT_EQ(SpeedMeter(*pool, Mode::Load).reading(0).source, Source::Probe);
}

TEST_F(SpeedMeterTest, AFullTierIsNotMeasured) {
  auto settings = make_tiers("ab");
  settings[0].capacity = 100 << 20;  // less than many probes
  const auto pool = open(settings);
  const SpeedMeter meter(*pool, Mode::Observe);
  if (!is_measured(meter, 1)) GTEST_SKIP() << "this filesystem cannot be measured";
  // The tiers are looked at in order, so the first one had its turn.
  EXPECT_EQ(meter.reading(0).source, Source::Kind);
  const Tier& tier = (*pool)[0];
  EXPECT_EQ(meter.reading(0).speed, usual_speed(storage_kind(tier.filesystem(), tier.device())));
}

TEST_F(SpeedMeterTest, ATierThatIsAddedIsMeasured) {
  auto settings = make_tiers("ab");
  const TierSettings added = settings.back();
  settings.pop_back();
  const auto pool = open(settings);
  const SpeedMeter meter(*pool, Mode::Observe);
  if (!is_measured(meter, 0)) GTEST_SKIP() << "this filesystem cannot be measured";
  ASSERT_TRUE(add(*pool, added)) << why_;
  EXPECT_TRUE(is_measured(meter, 1));
  EXPECT_EQ(meter.speeds().size(), 2u);
}

}  // namespace
}  // namespace sluice
