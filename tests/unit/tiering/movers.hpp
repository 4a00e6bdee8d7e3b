// SPDX-License-Identifier: BSD-2-Clause
// A mover over three tiers in directories, with a host that the test controls.
#pragma once

#include <chrono>

#include "tests/support/fake_clock.hpp"
#include "tests/unit/tiering/move_host.hpp"
#include "tests/unit/tiering/pools.hpp"
#include "tiering/move/mover.hpp"

namespace sluice::test {

inline constexpr std::uint64_t kMiB = 1 << 20;

class MoverTest : public PoolTest {
 protected:
  void prepare() override {
    auto settings = make_tiers("abc");
    for (TierSettings& s : settings) s.moves = 1;
    use(settings);
  }
  void use(const std::vector<TierSettings>& settings) {
    pool_ = open(settings);
    host_ = std::make_unique<FakeHost>(*pool_, store_);
  }
  Mover& start(Mover::Settings settings = {}) {
    mover_ = std::make_unique<Mover>(*pool_, store_, host_->switcher(), *host_, settings, clock_);
    return *mover_;
  }

  // A move of the file at `path` ("/f") from the first tier to the second.
  Move move(const std::string& path, const char* from = "a", const char* to = "b") const {
    Move move;
    const Tier& source = *pool_->by_name(from);
    move.id = identity_of(source, source.path() + path).id;
    move.paths = {path};
    move.from = source.index();
    move.to = pool_->by_name(to)->index();
    move.bytes = static_cast<std::uint64_t>(lstat_of(source.path() + path).st_blocks) * 512;
    move.reason = Reason::Hot;  // pause() does not stop requested moves
    move.why = "the test";
    return move;
  }
  Move make(const std::string& path, const std::string& content) const {
    dir_.make_file("a" + path, content);
    return move(path);
  }
  // Claims a size that is too large for a batch.
  Move make_large(const std::string& path) const {
    Move large = make(path, path);
    large.bytes = 5 * kMiB;
    return large;
  }
  void add(std::vector<Move> moves, Mover::Where where = Mover::Where::Back) {
    mover_->add(std::move(moves), where);
  }
  void finish() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    mover_->wait_idle([&] { return std::chrono::steady_clock::now() > deadline; });
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the mover hangs";
  }
  void run_all(std::vector<Move> moves) {
    add(std::move(moves));
    finish();
  }
  int code_of(const Move& move) const {
    const auto pending = mover_->pending(move.id);
    return pending ? pending->code : 0;
  }
  bool is_on(const char* tier, const Move& move) const {
    return exists((dir_ / tier) + move.paths[0]);
  }
  std::vector<Receipt> receipts() const { return *store_.receipts(100); }
  std::vector<std::string> temporaries(const char* tier = "b") const {
    return names_in(at(tier, ".sluice/tmp"));
  }

  FakeClock clock_;
  MemoryStore store_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<FakeHost> host_;
  std::unique_ptr<Mover> mover_;
};

}  // namespace sluice::test
