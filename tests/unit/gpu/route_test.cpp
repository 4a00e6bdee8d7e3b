// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace sluice {
namespace {

using Offers = std::map<Route, RouteOffer>;

// A file of which nothing is prepared, and a GPU with pinned memory.
const Offers kPlain = {
    {Route::Hbm, RouteOffer::no()},     {Route::Gds, RouteOffer::no()},
    {Route::CuFile, RouteOffer::yes()}, {Route::Mapped, RouteOffer::no(Why::ReadOnce)},
    {Route::Staged, RouteOffer::yes()}, {Route::Pageable, RouteOffer::yes()},
    {Route::Host, RouteOffer::yes()}};

struct Case {
  RouteFacts facts;
  Offers offers;      // where they differ from kPlain
  std::string asked;  // the routes that have to make an offer, in order
  Route route;        // Auto: none can be taken
  Why why;
};

void expect_choice(const Case& given) {
  RouteFacts facts = given.facts;
  std::string asked;
  RouteChoice choice = choose_route(facts);
  for (; !choice.is_final; choice = choose_route(facts)) {
    const Route route = choice.row->route;
    ASSERT_EQ(facts[route].answer, RouteOffer::Unknown) << "asked again";
    asked += (asked.empty() ? "" : " ") + std::string(choice.row->name);
    facts[route] = given.offers.contains(route) ? given.offers.at(route) : kPlain.at(route);
  }
  EXPECT_EQ(asked, given.asked);
  EXPECT_EQ(name_of(choice.row ? choice.row->route : Route::Auto), name_of(given.route));
  EXPECT_EQ(text_of(choice.why), text_of(given.why));
}

TEST(ChooseRouteTest, FirstRouteThatOffersIsTakenAndOneBeforeItMayHaveTheReason) {
  constexpr RouteFacts kSmall{Route::Auto, Work::Small}, kBatch{Route::Auto, Work::Batch},
      kLarge{Route::Auto, Work::Large}, kWrite{Route::Auto, Work::Write};
  const Offers hbm = {{Route::Hbm, RouteOffer::yes(Why::InHbm)}},
               gds = {{Route::Gds, RouteOffer::yes(Why::Fastest)}},
               mapped = {{Route::Mapped, RouteOffer::yes(Why::Registered)}},
               cached = {{Route::Mapped, RouteOffer::no(Why::Cached)}},
               cold = {{Route::Staged, RouteOffer::yes(Why::NotCached)}},
               late = {{Route::Staged, RouteOffer::no()}},
               not_pinned = {{Route::Staged, RouteOffer::no(Why::NotPinned)}};
  const std::string all = "hbm gds mapped staged";
  const Case cases[] = {
      {kLarge, hbm, "hbm", Route::Hbm, Why::InHbm},
      {kLarge, gds, "hbm gds", Route::Gds, Why::Fastest},
      {kLarge, mapped, "hbm gds mapped", Route::Mapped, Why::Registered},
      {kLarge, {}, all, Route::Staged, Why::ReadOnce},
      {kLarge, cached, all, Route::Staged, Why::Cached},
      {kLarge, cold, all, Route::Staged, Why::NotCached},
      {kLarge, late, all + " pageable", Route::Pageable, Why::ReadOnce},
      {kLarge, not_pinned, all + " pageable", Route::Pageable, Why::NotPinned},
      {kBatch, hbm, "hbm", Route::Hbm, Why::InHbm},
      {kBatch, gds, "hbm mapped staged", Route::Staged, Why::ReadOnce},
      {kBatch, mapped, "hbm mapped", Route::Mapped, Why::Registered},
      {kSmall, hbm, "hbm", Route::Hbm, Why::InHbm},
      {kSmall, mapped, "hbm staged", Route::Staged, Why::Small},
      {kSmall, late, "hbm staged pageable", Route::Pageable, Why::Small},
      {kSmall, not_pinned, "hbm staged pageable", Route::Pageable, Why::NotPinned},
      {kWrite, hbm, "staged", Route::Staged, Why::Writing},
      {kWrite, not_pinned, "staged pageable", Route::Pageable, Why::NotPinned},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE("case " + std::to_string(&each - cases));
    expect_choice(each);
  }
}

TEST(ChooseRouteTest, HostMemoryHasOneRoute) {
  for (const Work::Kind work : {Work::Small, Work::Batch, Work::Large, Work::Write}) {
    expect_choice({{Route::Auto, work, false}, {}, "host", Route::Host, Why::HostMemory});
    expect_choice({{Route::Host, work, false}, {}, "host", Route::Host, Why::Asked});
    expect_choice({{Route::Staged, work, false}, {}, "", Route::Auto, Why::Asked});
    expect_choice({{Route::Host, work, true}, {}, "", Route::Auto, Why::Asked});
  }
}

TEST(ChooseRouteTest, RouteThatIsAskedForIsTakenOrNone) {
  for (const RouteRow& row : route_table()) {
    if (!row.on_gpu) continue;
    const std::string name(row.name);
    for (const Work::Kind work : {Work::Small, Work::Batch, Work::Large}) {
      const RouteFacts facts{row.route, work};
      expect_choice(
          {facts, {{row.route, RouteOffer::yes(Why::Cached)}}, name, row.route, Why::Asked});
      expect_choice(
          {facts, {{row.route, RouteOffer::no(Why::Cached)}}, name, Route::Auto, Why::Asked});
    }
    const bool writes = row.route == Route::Staged || row.route == Route::Pageable;
    expect_choice({{row.route, Work::Write},
                   {},
                   writes ? name : "",
                   writes ? row.route : Route::Auto,
                   Why::Asked});
  }
}

// As after a read that found the file changed, or that cuFile refused.
TEST(ChooseRouteTest, ReadThatARouteGaveUpIsStagedAndSaysWhy) {
  RouteFacts facts{Route::Auto, Work::Again};
  facts[Route::Hbm] = RouteOffer::no();
  facts[Route::Gds] = RouteOffer::no(Why::CuFileRefused);
  expect_choice({facts, {}, "staged", Route::Staged, Why::CuFileRefused});
  facts[Route::Gds] = RouteOffer::no();
  facts[Route::Mapped] = RouteOffer::no(Why::Changed);
  expect_choice({facts, {}, "staged", Route::Staged, Why::Changed});
  facts[Route::Staged] = RouteOffer::no(Why::NotPinned);
  expect_choice({facts, {}, "pageable", Route::Pageable, Why::NotPinned});
}

TEST(RouteTableTest, EveryRouteHasOneRowAndAName) {
  std::set<Route> routes;
  for (const RouteRow& row : route_table()) {
    EXPECT_TRUE(routes.insert(row.route).second) << row.name;
    EXPECT_EQ(name_of(row.route), row.name);
    EXPECT_EQ(route_by_name(row.name), row.route);
  }
  EXPECT_EQ(routes.size() + 1, kRoutes);
  EXPECT_EQ(route_by_name("auto"), Route::Auto);
  EXPECT_FALSE(route_by_name("?"));
  EXPECT_EQ(name_of(static_cast<Route>(kRoutes)), "?");
}

TEST(TransferTest, SumTellsTheRouteAndTheReasonOfItsLargestPart) {
  Transfer sum;
  sum.add({0, Route::Pageable, Why::Small});
  EXPECT_EQ(sum.route, Route::Pageable) << "nothing was larger";
  sum.add({100, Route::Mapped, Why::Registered});
  sum.add({300, Route::Staged, Why::NotCached});
  sum.add({200, Route::Mapped, Why::Registered});
  sum.add({0, Route::Pageable, Why::Small});
  EXPECT_EQ(sum.bytes, 600u);
  EXPECT_EQ(sum.route, Route::Staged);
  EXPECT_EQ(sum.why, Why::NotCached);
  sum.add({300, Route::Staged, Why::Cached});
  EXPECT_EQ(sum.why, Why::Cached) << "the last one of equal size";
}

TEST(TransferTest, SumIsOnePartOfAnotherSum) {
  Transfer half, sum;
  half.add({20, Route::Staged, Why::Cached});
  half.add({20, Route::Staged, Why::Cached});
  sum.add({30, Route::Gds, Why::Fastest});
  sum.add(half);
  EXPECT_EQ(sum.bytes, 70u);
  EXPECT_EQ(sum.route, Route::Staged);
}

}  // namespace
}  // namespace sluice
