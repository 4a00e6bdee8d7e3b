// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/control_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "base/unix_socket.hpp"
#include "tiering/choose/judge.hpp"
#include "tiering/choose/worth.hpp"
#include "tiering/heat/lost_files.hpp"
#include "tiering/pool/tier_state.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kMostConnections = 16;
constexpr std::size_t kLongestRequest = 64 << 10;
constexpr milliseconds kRequestTimeout{10'000};
constexpr milliseconds kProgressPause{200};
constexpr int kMostDrainPasses = 10;
// Chosen so that a line fits into the client's buffer even with the longest names and every byte
// escaped.
constexpr std::size_t kMostChildren = 200;
// What a move in the queue waits for.
constexpr const char* kItsTurn = "its turn";
constexpr const char* kPaused = "migration is paused";

json to_json(const Receipt& receipt) {
  std::array<char, 20> hash{};
  std::snprintf(hash.data(), hash.size(), "%016llx", static_cast<unsigned long long>(receipt.hash));
  return {{"time", receipt.time},       {"path", receipt.path},
          {"from", receipt.from},       {"to", receipt.to},
          {"bytes", receipt.bytes},     {"hash", hash.data()},
          {"ms", receipt.milliseconds}, {"code", receipt.code},
          {"reason", receipt.reason},   {"result", result_of(receipt)}};
}

}  // namespace

// Handles one connection: reads a request and answers it.
class ControlServer::Handler {
 public:
  Handler(const Parts& parts, Mutex& marking, int socket, int wake, std::atomic<bool>& has_request)
      : parts_(parts), marking_(marking), socket_(socket), wake_(wake), has_request_(has_request) {}

  void run() {
    json request;
    if (!read_request(request)) return;
    has_request_ = true;
    const std::string verb = request.value("verb", "");
    json last;
    if (verb == "plan") {
      last = plan();
    } else if (verb == "run") {
      last = run_pass();
    } else if (verb == "pause") {
      parts_.migration.mover().pause();
    } else if (verb == "resume") {
      parts_.migration.mover().resume();
    } else if (verb == "drain") {
      last = drain(request.value("tier", ""), request.value("cancel", false));
    } else if (verb == "give-up") {
      last = give_up(request.value("tier", ""));
    } else if (verb == "add") {
      if (const auto added = parts_.add_tier(request.value("tier", "")); !added)
        last = {{"error", added.error().text()}};
    } else if (verb == "replace") {
      last = replace(request.value("tier", ""));
    } else if (verb == "lost") {
      last = lost(request.value("tier", ""));
    } else if (verb == "moves") {
      last = moves(request);
    } else if (verb == "follow") {
      last = follow(request);
    } else if (verb == "budgets") {
      last = budgets();
    } else if (verb == "activity") {
      last = parts_.activity();
    } else if (verb == "prices") {
      last = prices();
    } else if (verb == "tree") {
      last = tree(request.value("path", ""));
    } else if (verb == "pins") {
      last = pins();
    } else if (verb == "set") {
      last = set(request);
    } else if (verb == "reload") {
      last = reload();
    } else if (verb == "restart") {
      if (const auto asked = parts_.restart(); !asked) last = {{"error", asked.error().text()}};
    } else if (verb == "release-gpu") {
      last = {{"bytes", parts_.release_gpu()}};
    } else if (verb == "trace") {
      trace();
    } else {
      last = {{"error", "unknown request '" + verb + "'; is the command newer than the daemon?"}};
    }
    last["done"] = true;
    send(last);
  }

 private:
  // Whether the client has closed the connection, or the server must stop.
  bool is_over() {
    if (broken_) return true;
    pollfd fds[2] = {{socket_, POLLRDHUP, 0}, {wake_, POLLIN, 0}};
    broken_ = ::poll(fds, 2, 0) > 0 &&
              ((fds[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 || fds[1].revents != 0);
    return broken_;
  }

  bool read_request(json& request) {
    std::string line;
    const auto deadline = steady_clock::now() + kRequestTimeout;
    while (line.find('\n') == std::string::npos) {
      pollfd fds[2] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
      if (left.count() <= 0 || ::poll(fds, 2, static_cast<int>(left.count())) <= 0) return false;
      if (fds[1].revents != 0) return false;
      std::array<char, 4096> piece{};
      const ssize_t got = ::recv(socket_, piece.data(), piece.size(), 0);
      if (got <= 0 || line.size() > kLongestRequest) return false;
      line.append(piece.data(), static_cast<std::size_t>(got));
    }
    request = json::parse(line, nullptr, false);
    if (request.is_object()) return true;
    send({{"done", true}, {"error", "the request is not a JSON object"}});
    return false;
  }

  bool send(const json& line) {
    const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    for (std::size_t done = 0; done < text.size() && !broken_;) {
      const ssize_t put = ::send(socket_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) broken_ = true;
      if (put > 0) done += static_cast<std::size_t>(put);
    }
    return !broken_;
  }

  // Reports progress to the client, at most every kProgressPause. False: the caller must stop its
  // work.
  bool progress(const json& what) {
    const auto now = steady_clock::now();
    if (is_over()) return false;
    if (now - last_progress_ < kProgressPause) return true;
    last_progress_ = now;
    MutexLock lock(sending_);
    return send({{"progress", what}});
  }

  Migration::CensusProgress census_progress() {
    return [this](std::uint64_t files) {
      return progress({{"phase", "census"}, {"files", files}});
    };
  }

  json plan() {
    auto proposal = parts_.migration.propose(census_progress());
    if (!proposal) return {{"error", proposal.error().text()}};
    const Plan& plan = proposal->plan;
    const Policy& policy = proposal->policy;
    std::uint64_t bytes = 0;
    double saves = 0;  // per day
    for (std::size_t i = 0; i < proposal->moves.size(); ++i) {
      const Move& move = proposal->moves[i];
      bytes += move.size();
      json gain;
      if (policy.method == Method::Value) {
        const Appraisal worth = appraise(proposal->census.files()[proposal->files[i]],
                                         proposal->tiers, policy, plan.market, proposal->time);
        gain = (worth.value[move.to] - worth.value[move.from]) * kSecondsPerDay;
        saves += gain.get<double>();
      }
      const bool sent = send({{"move",
                               {{"path", move.paths[0]},
                                {"from", parts_.pool[move.from].name()},
                                {"to", parts_.pool[move.to].name()},
                                {"bytes", move.size()},
                                {"score", proposal->census.files()[proposal->files[i]].score},
                                {"saves", gain},
                                {"reason", name_of(move.reason)},
                                {"why", move.why}}}});
      if (!sent) break;
    }
    budgets();
    json tiers = json::array();
    for (const auto& tier : parts_.pool) {
      const TierIndex at = tier->index();
      const bool is_known = at < plan.market.prices.size();
      tiers.push_back(
          {{"name", tier->name()},
           {"intake", name_of(tier->intake())},
           {"stuck", at < proposal->relief.size() && proposal->relief[at] >= Relief::Waits
                         ? json(words_of(proposal->relief[at]))
                         : json()},
           {"price", is_known ? json(plan.market.prices[at] * kPerGigabyteDay) : json()}});
    }
    json held = {{"hard_links", proposal->blocked_links}, {"pending", proposal->blocked_pending}};
    for (std::size_t i = 1; i < kBlockers; ++i)
      held[name_of(static_cast<Blocker>(i))] = plan.blocked[i];
    return {{"tiers", tiers},
            {"optimize", policy.objective == Objective::Hits ? "hits" : "time"},
            {"saves", policy.method == Method::Value ? json(saves) : json()},
            {"moves", proposal->moves.size()},
            {"bytes", bytes},
            {"files", proposal->census.files().size()},
            {"too_deep", proposal->census.too_deep()},
            {"held", held}};
  }

  // Each tree, and what would be deleted from it first: what is above the budget, and the next
  // tenth of it.
  json budgets() {
    constexpr std::size_t kMostVictims = 10;
    for (const BudgetTrees::Report& each : parts_.filesystem.budgets().trees().reports()) {
      send({{"budget",
             {{"path", each.path},
              {"budget", each.budget.bytes},
              {"used", each.used},
              {"files", each.files},
              {"known", each.is_known},
              {"stuck", each.is_stuck},
              {"deleted", each.deleted},
              {"deleted_bytes", each.deleted_bytes},
              {"let_in", each.let_in}}}});
      const std::uint64_t left = each.budget.bytes > each.used ? each.budget.bytes - each.used : 0;
      for (const BudgetForecast::Next& next : parts_.filesystem.budget_forecast().next(
               each.directory, left + each.budget.bytes / 10, kMostVictims)) {
        send({{"victim",
               {{"tree", each.path},
                {"path", each.path + next.path},
                {"bytes", next.bytes},
                {"uses", next.uses},
                {"last_use", static_cast<std::int64_t>(next.last_use)}}}});
      }
    }
    return json::object();
  }

  // Stops early if `go_on` returns false.
  json run_pass(const std::function<bool()>& go_on = [] { return true; }) {
    // The mover's threads write to this socket. They must not block because the client was stopped
    // with ^Z.
    const timeval timeout{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    Migration::Listener listener;
    listener.census = census_progress();
    listener.moves = [&](const Mover::Tally& now) {
      return go_on() && progress({{"phase", "move"},
                                  {"moved", now.moved},
                                  {"failed", now.failed},
                                  {"total", now.files},
                                  {"bytes", now.done_bytes},
                                  {"total_bytes", now.bytes},
                                  {"path", now.current}});
    };
    listener.ended = [this](const Receipt& receipt, bool) {
      MutexLock lock(sending_);
      send({{"receipt", to_json(receipt)}});
    };
    if (parts_.migration.mover().is_paused())
      return {{"error", "migration is paused; run 'sluice tier resume'"}};
    const auto outcome = parts_.migration.run(listener);
    if (!outcome) return {{"error", outcome.error().text()}};
    return {{"moved", outcome->moved},
            {"bytes", outcome->moved_bytes},
            {"failed", outcome->failed},
            {"pending", parts_.migration.mover().pending_count()}};
  }

  // Empty, or why it can't be marked.
  std::string mark(Tier& tier, bool draining) {
    const MutexLock lock(marking_);
    if (std::string why = draining ? why_no_drain(parts_.pool, tier) : ""; !why.empty()) return why;
    const auto set = tier.set_draining(draining);
    if (set) return "";
    if (failed_with(set, EROFS))
      return "tier " + tier.name() + " is read-only; see dmesg for the reason";
    if (tier.online()) return set.error().text();
    std::string why = "tier " + tier.name() + " is offline (" + tier.why_offline() +
                      "); try again when its disk is back";
    if (draining)
      why += ", or give it up with its files ('sluice tier drain " + tier.name() + " --lost')";
    return why;
  }

  json drain(const std::string& name, bool cancel) {
    Tier* tier = parts_.pool.by_name(name);
    if (tier == nullptr) return {{"error", "the pool has no tier named " + name}};
    const bool was_draining = tier->is_draining();
    if (const std::string why = mark(*tier, !cancel); !why.empty()) return {{"error", why}};
    if (cancel) {
      parts_.migration.mover().end_drain(tier->index());
      const auto kept = parts_.pool.set_retired(tier->index(), false);
      return kept ? json{{"was_draining", was_draining}} : json{{"error", kept.error().text()}};
    }
    const json cancelled{{"error", "cancelled; files that were moved stay where they are"}};
    const json replaced{{"error", "another disk took the place of tier " + name}};
    const auto is_replaced = [&] { return parts_.pool.by_name(name) != tier; };
    json last;
    std::uint64_t moved = 0, bytes = 0;
    for (int pass = 0; pass < kMostDrainPasses; ++pass) {
      last = run_pass([&] { return tier->is_draining() && !is_replaced(); });
      if (!tier->is_draining()) return cancelled;
      if (is_replaced()) return replaced;
      if (last.contains("error") || is_over()) return last;
      moved += last["moved"].get<std::uint64_t>();
      bytes += last["bytes"].get<std::uint64_t>();
      if (last["moved"] == 0) break;
    }
    last["moved"] = moved;
    last["bytes"] = bytes;
    const auto left = parts_.filesystem.relocator().vacate(tier->index());
    if (!left) return {{"error", left.error().text()}};
    for (const Relocator::Left& each : left->first) {
      const auto [why, is_full] = why_left(each, tier->index());
      send({{"left",
             {{"path", each.path}, {"bytes", each.bytes}, {"why", why}, {"full", is_full}}}});
    }
    last["left"] = left->files;
    last["left_bytes"] = left->bytes;
    last["empty"] = left->files == 0;
    if (left->files > 0) return last;
    if (is_replaced()) return replaced;
    if (const auto retired = parts_.pool.set_retired(tier->index(), true); !retired)
      last["error"] = retired.error().text();
    if (tier->is_draining()) return last;
    // Cancelled meanwhile. A cancel that comes after this check removes the mark itself.
    const auto kept = parts_.pool.set_retired(tier->index(), false);
    return kept ? cancelled : json{{"error", kept.error().text()}};
  }

  // Why a drain has not moved a file, and whether that is a lack of room.
  std::pair<std::string, bool> why_left(const Relocator::Left& file, TierIndex from) const {
    if (!file.why.empty()) return {file.why, false};
    const Mover& mover = parts_.migration.mover();
    if (const auto pending = mover.pending(file.id))
      return {pending->why, pending->code == ENOSPC || pending->code == EDQUOT};
    if (mover.destination(file.id)) return {"its move has not ended", false};
    bool is_full = true;
    for (const auto& tier : parts_.pool) tier->refresh_space();
    const std::vector<TierFacts> tiers = parts_.migration.tier_facts();
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      const TierFacts& tier = tiers[i];
      if (i != from && is_usable(tier) && tier.used + file.bytes <= brim_of(tier)) is_full = false;
    }
    if (is_full) return {"no other tier has room for its " + format_size(file.bytes), true};
    // A pass that found all links would have planned it.
    if (file.links > 1) return {"not all of its hard links are on this tier", false};
    return {"it is new, was changed during the last pass, or others took the room", false};
  }

  // Removes a tier that will not come back from the pool.
  json give_up(const std::string& name) {
    Tier* tier = parts_.pool.by_name(name);
    if (tier == nullptr) return {{"error", "the pool has no tier named " + name}};
    if (tier->online()) {
      return {{"error", "tier " + name + " is not lost: it is online at " + tier->path() +
                            "; run the command without --lost to move its files to other tiers"}};
    }
    const auto retired = parts_.pool.set_retired(tier->index(), true);
    if (!retired) return {{"error", retired.error().text()}};
    return {{"recovered", recover_twins(tier->member().slot)}};
  }

  // Puts a new disk in the place of a tier that is gone.
  json replace(const std::string& text) {
    const std::string name = text.substr(0, text.find('='));
    const auto done = parts_.replace_tier(text);
    // Also after an error, and of disks before the last one: an earlier attempt may have ended
    // here.
    std::uint64_t recovered = 0;
    for (const Member& member : parts_.pool.members()) {
      if (member.name.starts_with(name + "#") && parts_.pool.is_lost(member.slot))
        recovered += recover_twins(member.slot);
    }
    if (!done) return {{"error", done.error().text()}};
    json last = {{"recovered", recovered}};
    const Tier* now = parts_.pool.by_name(name);
    last["filesystem"] = now->filesystem();
    last["total"] = now->space().total;
    return last;
  }

  // The files that were on a disk that is gone.
  json lost(const std::string& name) {
    const auto lost =
        lost_files(parts_.pool, parts_.store, parts_.lists, name, [this] { return !is_over(); });
    if (!lost) return {{"error", lost.error().text()}};
    std::uint64_t bytes = 0;
    for (const FileLists::File& file : lost->files) {
      bytes += file.bytes;
      if (!send({{"lost", {{"path", file.path}, {"bytes", file.bytes}}}})) break;
    }
    return {{"files", lost->files.size()},
            {"bytes", bytes},
            {"census", lost->census_time},
            {"elsewhere", lost->elsewhere},
            {"nameless", lost->nameless}};
  }

  // Files on the disk that have a twin elsewhere. Nobody can know whether they were changed since
  // the twin was made, so the time of that is part of the answer.
  std::uint64_t recover_twins(unsigned slot) {
    std::uint64_t count = 0;
    for (const Twins::Survivor& twin : parts_.pool.twins().survivors(slot)) {
      const auto path = parts_.filesystem.names().bring_back(twin);
      const std::string name = path                      ? *path
                               : twin.note.names.empty() ? ""
                                                         : twin.note.names[0].text;
      send({{"twin",
             {{"path", name},
              {"tier", twin.tier->name()},
              {"as_of", twin.note.made},
              {"bytes", twin.note.size},
              {"error", path ? json() : json(path.error().text())}}}});
      if (path) ++count;
    }
    if (count > 0) parts_.filesystem.names_changed();
    return count;
  }

  // Which moves a request is about: those of the file `id`, whatever its name was, and those of
  // `path` and of what was below it. Nothing if the request is wrong.
  using Wanted = Mover::Wanted;
  static std::optional<Wanted> wanted_by(const json& request) {
    const auto path = percent_decoded(request.value("path", ""));
    if (!path) return std::nullopt;
    const InodeId file{request.value("id", std::uint64_t{0})};
    return [file, path = *path](InodeId id, const std::string& at) {
      if (path.empty() || (id == file && to_number(file) != 0) || at == path) return true;
      return at.size() > path.size() && at.starts_with(path) && at[path.size()] == '/';
    };
  }

  json moves(const json& request) {
    const auto wanted = wanted_by(request);
    if (!wanted) return {{"error", "the path is not percent-encoded correctly"}};
    std::size_t most = request.value("most", std::size_t{100});
    if (!send_unfinished(*wanted, request)) return {};
    // In pieces: the store must not wait for a client that reads slowly.
    constexpr std::size_t kPiece = 512;
    for (std::uint64_t before = Store::kNewest; most > 0 && !is_over();) {
      std::vector<Receipt> piece;
      std::size_t seen = 0;
      const auto read =
          parts_.store.each_receipt(before, [&](std::uint64_t number, const Receipt& receipt) {
            before = number;
            if ((*wanted)(receipt.id, receipt.path)) piece.push_back(receipt);
            return piece.size() < std::min(most, kPiece) && ++seen < 20 * kPiece;
          });
      if (!read) return {{"error", read.error().text()}};
      for (const Receipt& receipt : piece) {
        if (!send({{"receipt", to_json(receipt)}})) return {};
      }
      most -= piece.size();
      if (seen == 0 && piece.empty()) break;
    }
    return json::object();
  }

  // Moves that run, queue or wait. False if the client is gone.
  bool send_unfinished(const Mover::Wanted& wanted, const json& request) {
    const Mover& mover = parts_.migration.mover();
    const auto most_queued = request.value("most_queued", std::size_t{0});
    std::vector<json> queue;
    std::uint64_t batched = 0;  // taken by a thread, but their batch has not reached them
    std::set<InodeId> running;
    for (const Mover::Active& move : mover.active(std::numeric_limits<std::size_t>::max())) {
      if (!wanted(move.id, move.path)) continue;
      running.insert(move.id);
      if (move.since == 0) {
        if (++batched <= most_queued)
          queue.push_back(queued_line(move.path, move.from, move.to, move.bytes, kItsTurn));
        continue;
      }
      send({{"running",
             {{"path", move.path},
              {"from", parts_.pool[move.from].name()},
              {"to", parts_.pool[move.to].name()},
              {"bytes", move.copied},
              {"total", move.bytes},
              {"since", move.since}}}});
    }
    std::uint64_t queued = 0;
    for (const Mover::Queued& each : mover.queued(most_queued - queue.size(), wanted, queued)) {
      const Move& move = each.move;
      queue.push_back(queued_line(move.paths.empty() ? "" : move.paths[0], move.from, move.to,
                                  move.size(), each.is_paused ? kPaused : kItsTurn));
    }
    for (const json& line : queue) send(line);
    const std::uint64_t waiting = send_pending(wanted, request, running);
    return send({{"unfinished", {{"queued", batched + queued}, {"waiting", waiting}}}});
  }

  json queued_line(const std::string& path, TierIndex from, TierIndex to, std::uint64_t bytes,
                   const char* why) const {
    return {{"queued",
             {{"path", path},
              {"from", parts_.pool[from].name()},
              {"to", parts_.pool[to].name()},
              {"bytes", bytes},
              {"why", why}}}};
  }

  // Moves that wait for something. Returns how many there are. One that is tried again is shown as
  // running.
  std::uint64_t send_pending(const Mover::Wanted& wanted, const json& request,
                             const std::set<InodeId>& running) {
    constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
    const Mover& mover = parts_.migration.mover();
    const auto most = request.value("most_pending", kAll);
    // With a path, the limit is on what is shown, so all must be looked at.
    const bool is_filtered = request.contains("path");
    const std::size_t looked_at =
        is_filtered || most > kAll - running.size() ? kAll : most + running.size();
    std::uint64_t found = 0;
    for (const Mover::Pending& each : mover.pending(looked_at)) {
      const std::string path = each.move.paths.empty() ? "" : each.move.paths[0];
      if (!wanted(each.move.id, path) || running.contains(each.move.id)) continue;
      if (++found > most) continue;
      const bool sent = send({{"pending",
                               {{"path", path},
                                {"to", parts_.pool[each.move.to].name()},
                                {"why", each.why},
                                {"since", each.since}}}});
      if (!sent) break;
    }
    if (looked_at == kAll) return found;
    const auto again = static_cast<std::uint64_t>(std::count_if(
        running.begin(), running.end(), [&](InodeId id) { return mover.is_waiting(id); }));
    const std::uint64_t all = mover.pending_count();
    return std::max(found, all - std::min(again, all));
  }

  // Each move that ends from now on, and several times a second how much is left.
  json follow(const json& request) {
    const auto wanted = wanted_by(request);
    if (!wanted) return {{"error", "the path is not percent-encoded correctly"}};
    std::uint64_t last = 0;
    const auto newest = parts_.store.each_receipt(
        Store::kNewest, [&](std::uint64_t number, const Receipt&) { return (last = number) == 0; });
    if (!newest) return {{"error", newest.error().text()}};
    while (!is_over()) {
      std::vector<Receipt> ended;
      std::uint64_t first = 0;
      const auto read = parts_.store.each_receipt(
          Store::kNewest, [&](std::uint64_t number, const Receipt& receipt) {
            if (number <= last) return false;
            first = std::max(first, number);
            if ((*wanted)(receipt.id, receipt.path)) ended.push_back(receipt);
            return true;
          });
      if (!read) return {{"error", read.error().text()}};
      last = std::max(last, first);
      for (auto at = ended.rbegin(); at != ended.rend(); ++at) send({{"receipt", to_json(*at)}});
      const Mover::Progress now = parts_.migration.mover().progress();
      send({{"left",
             {{"files", now.queued + now.active},
              {"bytes", now.bytes_left},
              {"seconds", now.time_left ? json(now.time_left->count()) : json()},
              {"waiting", parts_.migration.mover().pending_count()}}}});
      std::this_thread::sleep_for(kProgressPause);
    }
    return json::object();
  }

  json sums(const HeatTree::Sums& of) const {
    json bytes = json::object(), files = json::object();
    for (std::size_t i = 0; i < of.on.size(); ++i) {
      const std::string& tier = parts_.pool[static_cast<TierIndex>(i)].name();
      if (of.on[i].bytes > 0) bytes[tier] = of.on[i].bytes;
      if (of.on[i].files > 0) files[tier] = of.on[i].files;
    }
    return {{"files", of.files},
            {"bytes", of.bytes},
            {"heat", of.heat()},
            {"tiers", bytes},
            {"tier_files", files}};
  }

  json prices() const {
    const Policy policy = parts_.migration.policy();
    json last = {{"policy", policy.method == Method::Value ? "value" : "thresholds"},
                 {"optimize", policy.objective == Objective::Hits ? "hits" : "time"},
                 {"tiers", json::array()},
                 {"samples", json::array()}};
    for (const auto& tier : parts_.pool) last["tiers"].push_back(tier->name());
    for (const PriceHistory::Sample& sample : parts_.migration.prices().samples()) {
      json by_tier = json::array();
      for (const double price : sample.prices) by_tier.push_back(price * kPerGigabyteDay);
      last["samples"].push_back({{"time", sample.time}, {"prices", std::move(by_tier)}});
    }
    return last;
  }

  json tree(const std::string& encoded) {
    const auto path = percent_decoded(encoded);
    if (!path) return {{"error", "the path is not percent-encoded correctly"}};
    const auto level = parts_.heat_tree.level(*path, kMostChildren);
    if (!level) {
      if (parts_.heat_tree.time() == 0)
        return {{"time", 0}, {"next_pass", parts_.migration.next_pass()}};
      return {{"error", *path + ": not among the " + std::to_string(HeatTree::kMost) +
                            " largest files and directories of the last count"}};
    }
    json last = sums(level->all);
    last["time"] = level->time;
    last["children"] = json::array();
    for (const HeatTree::Child& child : level->children) {
      json each = sums(child.sums);
      each["name"] = child.name;
      each["at"] = percent_encoded(child.name);
      each["directory"] = child.is_directory;
      last["children"].push_back(std::move(each));
    }
    last["rest"] = sums(level->rest);
    return last;
  }

  json pins() {
    const auto proposal = parts_.migration.propose(census_progress());
    if (!proposal) return {{"error", proposal.error().text()}};
    const auto say = [&](const std::string& path, std::string_view tier, bool is_directory) {
      return send({{"pin", {{"path", path}, {"tier", tier}, {"directory", is_directory}}}});
    };
    const Census& census = proposal->census;
    for (std::size_t i = 0; i < census.pin_count(); ++i) {
      const Census::Pinned pin = census.pin(i);
      if (!say(pin.path.empty() ? "/" : pin.path, parts_.pool[pin.tier].name(), pin.is_directory))
        return json::object();
    }
    for (const std::string& path : parts_.filesystem.gpu().hbm_pins().paths()) {
      if (!say(path, kHbmName, false)) return json::object();
    }
    json offline = json::array();
    for (const auto& tier : parts_.pool) {
      if (!tier->online()) offline.push_back(tier->name());
    }
    return {{"offline", offline}};
  }

  json reload() {
    const auto outcome = parts_.options.reload();
    if (!outcome) return {{"error", outcome.error().text()}};
    json changed = json::array();
    for (const LiveOptions::Change& each : outcome->changed)
      changed.push_back({{"name", each.name}, {"from", each.from}, {"to", each.to}});
    return {{"changed", changed}, {"later", outcome->later}};
  }

  // An option on trial. Without a value, the trial ends if the request says so, or the answer is
  // what is in force.
  json set(const json& request) {
    const std::string name = request.value("name", "");
    if (!request.contains("value") && !request.value("reset", false)) {
      const auto value = parts_.options.value(name);
      if (!value) return {{"error", value.error().text()}};
      return {{"value", *value}, {"trial", parts_.options.trials().contains(name)}};
    }
    const auto changed = request.contains("value")
                             ? parts_.options.try_out(name, request.value("value", ""))
                             : parts_.options.end_trial(name);
    if (!changed) return {{"error", changed.error().text()}};
    return {{"from", changed->from}, {"value", changed->to}, {"trial", request.contains("value")}};
  }

  void trace() {
    parts_.filesystem.accesses().trace(true);
    while (!is_over()) {
      for (const TracedAccess& access : parts_.filesystem.accesses().traced()) {
        send({{"access",
               {{"time", access.time},
                {"id", to_number(access.id)},
                {"size", access.size},
                {"path", access.path}}}});
      }
      std::this_thread::sleep_for(kProgressPause);
    }
    parts_.filesystem.accesses().trace(false);
  }

  const Parts& parts_;
  Mutex& marking_;
  const int socket_;
  const int wake_;
  std::atomic<bool>& has_request_;
  std::atomic<bool> broken_{false};  // set by the thread that notices first
  Mutex sending_;                    // the mover's threads send receipts
  steady_clock::time_point last_progress_{};
};

struct ControlServer::Connection {
  UniqueFd socket;
  bool is_closed = false;                // by the server
  std::atomic<bool> has_request{false};  // a complete request was read
  std::atomic<bool> ended{false};        // the thread sets it last
  std::jthread thread;
};

// If there are too many connections, closes the oldest one that has not sent a request yet.
bool ControlServer::make_room() {
  connections_.remove_if([](const auto& connection) { return connection->ended.load(); });
  const auto count = std::count_if(connections_.begin(), connections_.end(),
                                   [](const auto& connection) { return !connection->is_closed; });
  if (count < kMostConnections) return true;
  const auto silent =
      std::find_if(connections_.begin(), connections_.end(), [](const auto& connection) {
        return !connection->is_closed && !connection->has_request.load();
      });
  if (silent == connections_.end()) return false;
  (*silent)->is_closed = true;
  ::shutdown((*silent)->socket.get(), SHUT_RDWR);  // this ends its thread
  return true;
}

Result<std::unique_ptr<ControlServer>> ControlServer::listen(const std::string& path, Parts parts) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake) return Error::last("control socket");
  UniqueFd socket = SLUICE_TRY(listen_unix(path, kMostConnections));
  return std::unique_ptr<ControlServer>(
      new ControlServer(std::move(socket), std::move(wake), path, std::move(parts)));
}

ControlServer::ControlServer(UniqueFd socket, UniqueFd wake, std::string path, Parts parts)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      path_(std::move(path)),
      parts_(std::move(parts)),
      acceptor_([this](const std::stop_token& stop) {
        begin_thread("sluice-control");
        accept_all(stop);
      }) {}

ControlServer::~ControlServer() {
  acceptor_.request_stop();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof one);
  acceptor_.join();
  ::unlink(path_.c_str());
}

void ControlServer::accept_all(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 || fds[0].revents == 0) continue;
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // For example, no descriptor is free: the connection stays in the queue, and poll() would
    // return at once.
    if (!socket) std::this_thread::sleep_for(milliseconds(100));
    ucred peer{};
    socklen_t size = sizeof peer;
    if (!socket || ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
        (peer.uid != 0 && peer.uid != ::geteuid())) {
      continue;
    }
    if (!make_room()) continue;
    auto connection = std::make_unique<Connection>();
    connection->socket = std::move(socket);
    Connection& each = *connection;
    const auto handle = [this, &each] {
      begin_thread("sluice-talk");
      try {
        Handler(parts_, marking_, each.socket.get(), wake_.get(), each.has_request).run();
      } catch (const std::exception& e) {
        log::get().error("unexpected exception in a control request: what={}", e.what());
      }
      ::shutdown(each.socket.get(), SHUT_RDWR);
      each.ended = true;
    };
    try {
      connection->thread = std::jthread(handle);
    } catch (const std::system_error&) {
      continue;  // no thread could be started: the client sees a closed connection
    }
    connections_.push_back(std::move(connection));
  }
  // A client that does not read its answer (stopped, or showing it in a pager) would block send(),
  // and with it the end of its thread.
  for (const auto& connection : connections_) ::shutdown(connection->socket.get(), SHUT_RDWR);
  connections_.clear();
}

}  // namespace sluice
