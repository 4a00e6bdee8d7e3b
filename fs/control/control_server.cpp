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

#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/unix_socket.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kMostTalks = 16;
constexpr std::size_t kLongestRequest = 64 << 10;
constexpr milliseconds kRequestPatience{10'000};
constexpr milliseconds kProgressPause{200};
constexpr int kMostDrainPasses = 10;
// With the longest names, each byte escaped, still a line that the listener takes.
constexpr std::size_t kMostChildren = 200;

json to_json(const Receipt& receipt) {
  std::array<char, 20> hash{};
  std::snprintf(hash.data(), hash.size(), "%016llx", static_cast<unsigned long long>(receipt.hash));
  return {{"time", receipt.time},
          {"path", receipt.path},
          {"from", receipt.from},
          {"to", receipt.to},
          {"bytes", receipt.bytes},
          {"hash", hash.data()},
          {"ms", receipt.milliseconds},
          {"code", receipt.code},
          {"reason", receipt.reason},
          {"result", receipt.code == 0           ? "moved"
                     : has_yielded(receipt.code) ? "gave way"
                                                 : "failed"}};
}

}  // namespace

// One connection: a request and its answer.
class ControlServer::Conversation {
 public:
  Conversation(const Parts& parts, int socket, int wake, std::atomic<bool>& has_spoken)
      : parts_(parts), socket_(socket), wake_(wake), has_spoken_(has_spoken) {}

  void run() {
    json request;
    if (!read_request(request)) return;
    has_spoken_ = true;
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
      std::string why;
      if (!parts_.add_tier(request.value("tier", ""), why)) last = {{"error", why}};
    } else if (verb == "moves") {
      last = moves(request.value("most", std::size_t{100}),
                   request.value("most_pending", std::numeric_limits<std::size_t>::max()));
    } else if (verb == "activity") {
      last = parts_.activity();
    } else if (verb == "tree") {
      last = tree(request.value("path", ""));
    } else if (verb == "log-level") {
      last = log_level(request.value("level", ""));
    } else if (verb == "trace") {
      trace();
    } else {
      last = {{"error", "unknown request '" + verb + "'; is the command newer than the daemon?"}};
    }
    last["done"] = true;
    send(last);
  }

 private:
  // The other side has hung up, or we are to end.
  bool is_over() {
    if (broken_) return true;
    pollfd fds[2] = {{socket_, POLLRDHUP, 0}, {wake_, POLLIN, 0}};
    broken_ = ::poll(fds, 2, 0) > 0 &&
              ((fds[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 || fds[1].revents != 0);
    return broken_;
  }

  bool read_request(json& request) {
    std::string line;
    const auto deadline = steady_clock::now() + kRequestPatience;
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

  // False ends what is going on. Tells the other side now and then.
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
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < proposal->moves.size(); ++i) {
      const Move& move = proposal->moves[i];
      bytes += move.bytes;
      const bool sent = send({{"move",
                               {{"path", move.paths[0]},
                                {"from", parts_.pool[move.from].name()},
                                {"to", parts_.pool[move.to].name()},
                                {"bytes", move.bytes},
                                {"score", proposal->census.files()[proposal->files[i]].score},
                                {"reason", name_of(move.reason)},
                                {"why", move.why}}}});
      if (!sent) break;
    }
    const Plan& plan = proposal->plan;
    return {{"moves", proposal->moves.size()},
            {"bytes", bytes},
            {"files", proposal->census.files().size()},
            {"too_deep", proposal->census.too_deep()},
            {"held",
             {{name_of(Blocker::MinStay), plan.blocked_min_stay},
              {name_of(Blocker::OnlyOnce), plan.blocked_only_once},
              {name_of(Blocker::NoRoom), plan.blocked_no_room},
              {name_of(Blocker::Offline), plan.blocked_offline},
              {"hard-links", proposal->blocked_links},
              {"pending", proposal->blocked_pending}}}};
  }

  json run_pass() {
    // The mover's threads report by this socket: they can't wait for one who was stopped with ^Z.
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    Migration::Listener listener;
    listener.census = census_progress();
    listener.moves = [this](const Mover::Progress& now, std::uint64_t total,
                            std::uint64_t total_bytes) {
      return progress({{"phase", "move"},
                       {"moved", now.moved},
                       {"failed", now.failed},
                       {"total", total},
                       {"bytes", now.copied_bytes},
                       {"total_bytes", total_bytes},
                       {"path", now.current}});
    };
    listener.ended = [this](const Receipt& receipt, bool) {
      MutexLock lock(sending_);
      send({{"receipt", to_json(receipt)}});
    };
    if (parts_.migration.mover().is_paused())
      return {{"error", "migration is paused; 'sluice tier resume' lets it go on"}};
    const auto outcome = parts_.migration.run(listener);
    if (!outcome) return {{"error", outcome.error().text()}};
    return {{"moved", outcome->moved},
            {"bytes", outcome->moved_bytes},
            {"failed", outcome->failed},
            {"pending", parts_.migration.mover().pending_count()}};
  }

  json drain(const std::string& name, bool cancel) {
    Tier* tier = parts_.pool.by_name(name);
    if (tier == nullptr) return {{"error", "the pool has no tier " + name}};
    if (const auto set = tier->set_draining(!cancel); !set) return {{"error", set.error().text()}};
    if (cancel) {
      const auto kept = parts_.pool.set_retired(tier->index(), false);
      return kept ? json::object() : json{{"error", kept.error().text()}};
    }
    json last;
    std::uint64_t moved = 0, bytes = 0;
    for (int pass = 0; pass < kMostDrainPasses; ++pass) {
      last = run_pass();
      if (last.contains("error") || is_over()) return last;
      moved += last["moved"].get<std::uint64_t>();
      bytes += last["bytes"].get<std::uint64_t>();
      if (last["moved"] == 0) break;
    }
    last["moved"] = moved;
    last["bytes"] = bytes;
    const auto left = parts_.filesystem.relocator().vacate(tier->index());
    if (!left) return {{"error", left.error().text()}};
    last["left"] = left->files;
    last["left_bytes"] = left->bytes;
    last["empty"] = left->files == 0;
    if (left->files == 0) {
      if (const auto retired = parts_.pool.set_retired(tier->index(), true); !retired)
        last["error"] = retired.error().text();
    }
    return last;
  }

  // The pool is whole without a tier that will not come back.
  json give_up(const std::string& name) {
    Tier* tier = parts_.pool.by_name(name);
    if (tier == nullptr) return {{"error", "the pool has no tier " + name}};
    if (tier->online()) {
      return {{"error", "tier " + name + " is not lost: it is at " + tier->path() +
                            "; without --lost its files move to the other tiers"}};
    }
    const auto retired = parts_.pool.set_retired(tier->index(), true);
    return retired ? json::object() : json{{"error", retired.error().text()}};
  }

  json moves(std::size_t most, std::size_t most_pending) {
    for (const Mover::Pending& each : parts_.migration.mover().pending(most_pending)) {
      send({{"pending",
             {{"path", each.move.paths.empty() ? "" : each.move.paths[0]},
              {"to", parts_.pool[each.move.to].name()},
              {"why", each.why},
              {"since", each.since}}}});
    }
    const auto receipts = parts_.store.receipts(most);
    if (!receipts) return {{"error", receipts.error().text()}};
    for (const Receipt& receipt : *receipts) send({{"receipt", to_json(receipt)}});
    return json::object();
  }

  json sums(const HeatTree::Sums& of) const {
    json tiers = json::object();
    for (std::size_t i = 0; i < of.tier_bytes.size(); ++i) {
      if (of.tier_bytes[i] > 0)
        tiers[parts_.pool[static_cast<TierIndex>(i)].name()] = of.tier_bytes[i];
    }
    return {{"files", of.files}, {"bytes", of.bytes}, {"heat", of.heat()}, {"tiers", tiers}};
  }

  json tree(const std::string& encoded) {
    const auto path = percent_decoded(encoded);
    if (!path) return {{"error", "the path is not percent-encoded as it must be"}};
    const auto level = parts_.heat_tree.level(*path, kMostChildren);
    if (!level) {
      if (parts_.heat_tree.time() == 0)
        return {{"time", 0}, {"next_pass", parts_.migration.next_pass()}};
      return {{"error", *path + ": there was no such directory when the files were "
                                "last looked at, or nothing of any size in it"}};
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

  static json log_level(const std::string& wanted) {
    const std::string before(log::level());
    if (!log::set_level(wanted)) {
      return {{"error", "there is no log level " + wanted +
                            "; there are trace, debug, info, warn and error"}};
    }
    log::get().info("log level changed: from={} to={}", before, wanted);
    return {{"before", before}, {"level", wanted}};
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
  const int socket_;
  const int wake_;
  std::atomic<bool>& has_spoken_;
  std::atomic<bool> broken_{false};  // set by whichever thread notices
  Mutex sending_;                    // receipts come from the mover's threads
  steady_clock::time_point last_progress_{};
};

struct ControlServer::Talk {
  UniqueFd socket;
  bool hung_up = false;                 // by us
  std::atomic<bool> has_spoken{false};  // there was a request
  std::atomic<bool> ended{false};       // the thread sets it last
  std::jthread thread;
};

// Where there are as many talks as may be, the one that has been silent for longest ends.
bool ControlServer::make_room() {
  talks_.remove_if([](const auto& talk) { return talk->ended.load(); });
  const auto count =
      std::count_if(talks_.begin(), talks_.end(), [](const auto& talk) { return !talk->hung_up; });
  if (count < kMostTalks) return true;
  const auto silent = std::find_if(talks_.begin(), talks_.end(), [](const auto& talk) {
    return !talk->hung_up && !talk->has_spoken.load();
  });
  if (silent == talks_.end()) return false;
  (*silent)->hung_up = true;
  ::shutdown((*silent)->socket.get(), SHUT_RDWR);  // its thread ends by that
  return true;
}

Result<std::unique_ptr<ControlServer>> ControlServer::listen(const std::string& path, Parts parts) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake) return Error::last("control socket");
  UniqueFd socket = SLUICE_TRY(listen_unix(path, kMostTalks));
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
    // Out of descriptors, say: it stays in the queue, and poll() would return at once.
    if (!socket) std::this_thread::sleep_for(milliseconds(100));
    ucred peer{};
    socklen_t size = sizeof peer;
    if (!socket || ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
        (peer.uid != 0 && peer.uid != ::geteuid())) {
      continue;
    }
    if (!make_room()) continue;
    auto talk = std::make_unique<Talk>();
    talk->socket = std::move(socket);
    Talk& each = *talk;
    const auto converse = [this, &each] {
      begin_thread("sluice-talk");
      try {
        Conversation(parts_, each.socket.get(), wake_.get(), each.has_spoken).run();
      } catch (const std::exception& e) {
        log::get().error("a control request failed in a way it must not: {}", e.what());
      }
      ::shutdown(each.socket.get(), SHUT_RDWR);
      each.ended = true;
    };
    try {
      talk->thread = std::jthread(converse);
    } catch (const std::system_error&) {
      continue;  // no more threads for now: the caller finds the connection closed
    }
    talks_.push_back(std::move(talk));
  }
  // Whoever does not read their answer (they are stopped, or page through it) would keep send()
  // waiting, and us.
  for (const auto& talk : talks_) ::shutdown(talk->socket.get(), SHUT_RDWR);
  talks_.clear();
}

}  // namespace sluice
