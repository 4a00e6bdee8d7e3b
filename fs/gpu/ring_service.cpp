// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/ring_service.hpp"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

// A file that entries may use.
struct Token {
  const InodeId file;
  const OpenId open;
  const Caller caller;  // who got the token: writing removes setuid bits from files of other users
  // Locked shared while a request is in progress, which may take as long as the disk does. Ending
  // the token waits for exactly these requests.
  SharedMutex use;
  bool is_alive GUARDED_BY(use) = true;
};

void end_token(Token& token) {
  const ExclusiveLock lock(token.use);
  token.is_alive = false;
}

}  // namespace

class RingService::Ring final : public RingTarget {
 public:
  Ring(RingService& service, OpenId anchor, std::shared_ptr<ClientProcess> client, uid_t user,
       RingMemory memory)
      : service_(service),
        anchor_(anchor),
        client_(std::move(client)),
        user_(user),
        share_(std::move(memory.share)),
        memory_(std::move(memory.memory)) {}

  Result<void> start() {
    server_ = SLUICE_TRY(RingServer::create({memory_->host(), memory_->length()}, *this));
    return server_->start();
  }
  void request_stop() { server_->request_stop(); }
  bool is_at_rest() const { return server_->is_at_rest(); }
  void stop(int why) { server_->stop(why); }

  OpenId anchor() const { return anchor_; }
  ClientProcess& client() const { return *client_; }
  uid_t user() const { return user_; }

  Result<std::uint64_t> add(InodeId file, OpenId open, const Caller& caller) {
    MutexLock lock(mutex_);
    if (tokens_.size() >= kMostFiles) return Error(ENOSPC, "too many files of one ring");
    const std::uint64_t token = service_.epoch_.number(++last_);
    tokens_.emplace(token, std::shared_ptr<Token>(new Token{file, open, caller, {}, true}));
    return token;
  }
  Result<void> drop(std::uint64_t token) {
    std::shared_ptr<Token> found;
    {
      MutexLock lock(mutex_);
      const auto entry = tokens_.find(token);
      if (entry == tokens_.end()) return service_.epoch_.unknown(token, "unknown file token");
      found = std::move(entry->second);
      tokens_.erase(entry);
    }
    end_token(*found);
    return {};
  }
  std::size_t tokens() {
    MutexLock lock(mutex_);
    return tokens_.size();
  }
  // Returns the number of tokens that ended.
  std::size_t released(OpenId open) {
    std::vector<std::shared_ptr<Token>> gone;
    {
      MutexLock lock(mutex_);
      std::erase_if(tokens_, [&](const auto& entry) {
        const bool is_it = entry.second->open == open;
        if (is_it) gone.push_back(entry.second);
        return is_it;
      });
    }
    for (const auto& token : gone) end_token(*token);
    return gone.size();
  }

  Result<Transfer> read(std::uint64_t file, std::uint64_t buffer,
                        std::span<const Segment> segments) override {
    const auto token = SLUICE_TRY(find(file));
    const SharedLock lock(token->use);
    if (!token->is_alive) return Error(EBADF, "the file was closed");
    if (!token->open.reads()) return Error(EBADF, "the file is not open for reading");
    const auto memory = SLUICE_TRY(service_.find_memory_(anchor_, buffer, *client_));
    if (!memory->is_writable()) return Error(EACCES, "the buffer is read-only");
    return service_.filesystem_.gpu().read(token->file, *memory, segments, Route::Auto,
                                           token->caller.uid);
  }

  Result<Transfer> write(std::uint64_t file, std::uint64_t buffer,
                         const Segment& segment) override {
    const auto token = SLUICE_TRY(find(file));
    const SharedLock lock(token->use);
    if (!token->is_alive) return Error(EBADF, "the file was closed");
    if (!token->open.writes()) return Error(EBADF, "the file is not open for writing");
    if (token->open.appends())
      return Error(EINVAL, "cannot write at an offset: the file is open for appending");
    const auto memory = SLUICE_TRY(service_.find_memory_(anchor_, buffer, *client_));
    return service_.filesystem_.gpu().write(token->file, *memory, segment, Route::Auto,
                                            token->caller);
  }

 private:
  Result<std::shared_ptr<Token>> find(std::uint64_t file) {
    MutexLock lock(mutex_);
    const auto found = tokens_.find(file);
    if (found != tokens_.end()) return found->second;
    const Error why = service_.epoch_.unknown(file, "unknown file token");
    return why.code == ESTALE ? why : Error(EBADF, "unknown file token");
  }

  RingService& service_;
  const OpenId anchor_;
  const std::shared_ptr<ClientProcess> client_;
  const uid_t user_;
  const MemfdLimit::Share share_;
  const std::unique_ptr<Memory> memory_;
  Mutex mutex_;
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Token>> tokens_ GUARDED_BY(mutex_);
  std::unique_ptr<RingServer> server_;  // declared last: its threads use everything above
};

Result<std::uint64_t> RingService::create(OpenId anchor, std::shared_ptr<ClientProcess> client,
                                          uid_t user, RingMemory memory) {
  if (!memory.memory->is_writable()) return Error(EACCES, "the ring is read-only");
  // The daemon accesses the ring's pages. If a hole was punched and no huge page is left, that
  // raises SIGBUS.
  struct statfs volume {};
  if (::fstatfs(memory.memfd.get(), &volume) < 0) return Error::last("stat the memory of a ring");
  if (volume.f_type == HUGETLBFS_MAGIC) return Error(EINVAL, "a ring must not be in huge pages");
  const auto ring =
      std::make_shared<Ring>(*this, anchor, std::move(client), user, std::move(memory));
  MutexLock lock(mutex_);
  if (ended_) return Error(ESHUTDOWN, "the mount is ending");
  const auto mine = of_user_.find(user);
  if (count_ >= kMostOfAll || (mine != of_user_.end() && mine->second >= kMostOfUser)) {
    return Error(ENOSPC, "too many rings");
  }
  if (!reaper_.joinable()) {
    reaper_ = std::jthread([this](const std::stop_token& stop) {
      begin_thread("sluice-rings");
      reap(stop);
    });
  }
  SLUICE_TRY(ring->start());
  ++of_user_[user];
  ++count_;
  const std::uint64_t id = epoch_.number(++last_);
  rings_.emplace(id, ring);
  return id;
}

Result<RingService::RingPtr> RingService::find(std::uint64_t ring, const Caller& caller) {
  RingPtr found;
  {
    MutexLock lock(mutex_);
    const auto entry = rings_.find(ring);
    if (entry == rings_.end()) return epoch_.unknown(ring, "no such ring");
    found = entry->second;
  }
  if (!found->client().has(caller.pid)) return Error(ENOENT, "the ring belongs to another process");
  return found;
}

// Removes rings and leaves them to the reaper, because the caller must not wait.
template <typename Condition>
void RingService::drop_if(Condition condition) {
  std::size_t dropped = 0;
  {
    MutexLock lock(mutex_);
    dropped = std::erase_if(rings_, [&](auto& entry) REQUIRES(mutex_) {
      if (!condition(*entry.second)) return false;
      entry.second->request_stop();
      dead_.push_back(entry.second);
      return true;
    });
  }
  if (dropped > 0) died_.notify_all();
}

// A ring that waits for a slow disk is skipped, so that the others do not wait for it.
void RingService::reap(const std::stop_token& stop) {
  constexpr auto kLookAgain = std::chrono::milliseconds(5);
  MutexLock lock(mutex_);
  for (;;) {
    died_.wait(mutex_, stop, [this]() REQUIRES(mutex_) { return !dead_.empty(); });
    if (dead_.empty()) return;  // stop was requested
    const auto ready = std::find_if(dead_.begin(), dead_.end(),
                                    [](const RingPtr& each) { return each->is_at_rest(); });
    if (ready == dead_.end()) {
      died_.wait_for(mutex_, kLookAgain);
      continue;
    }
    const RingPtr ring = *ready;
    const int why = why_;
    lock.unlock();
    ring->stop(why);
    lock.lock();
    // Removed only now: until here it may have had requests, which released() must see.
    std::erase(dead_, ring);
    // While there are no rings, released() does not look at rings_by_open_.
    if (--count_ == 0) rings_by_open_.clear();
    forget_tokens(ring->user(), ring->tokens());
    if (const auto mine = of_user_.find(ring->user()); --mine->second == 0) of_user_.erase(mine);
    reaped_.notify_all();
  }
}

void RingService::forget_tokens(uid_t user, std::size_t count) {
  const auto mine = tokens_of_user_.find(user);
  if (mine != tokens_of_user_.end() && (mine->second -= std::min(count, mine->second)) == 0) {
    tokens_of_user_.erase(mine);
  }
}

Result<void> RingService::destroy(std::uint64_t ring, const Caller& caller) {
  const RingPtr found = SLUICE_TRY(find(ring, caller));
  drop_if([&](const Ring& each) { return &each == found.get(); });
  MutexLock lock(mutex_);
  while (std::find(dead_.begin(), dead_.end(), found) != dead_.end()) reaped_.wait(mutex_);
  return {};
}

Result<std::uint64_t> RingService::add_file(std::uint64_t ring, InodeId file, OpenId open,
                                            const Caller& caller) {
  const RingPtr found = SLUICE_TRY(find(ring, caller));
  MutexLock lock(mutex_);
  if (!rings_.contains(ring)) return Error(ENOENT, "no such ring");  // the ring ended meanwhile
  std::size_t& mine = tokens_of_user_[found->user()];
  if (mine >= kMostFilesOfUser) return Error(ENOSPC, "too many files of one user's rings");
  const auto token = found->add(file, open, caller);
  if (!token) return token;
  ++mine;
  auto& holders = rings_by_open_[open.to_wire()];
  const auto is_it = [&](const auto& each) { return each.lock() == found; };
  if (std::none_of(holders.begin(), holders.end(), is_it)) holders.push_back(found);
  return token;
}

Result<void> RingService::drop_file(std::uint64_t ring, std::uint64_t file, const Caller& caller) {
  const RingPtr found = SLUICE_TRY(find(ring, caller));
  SLUICE_TRY(found->drop(file));
  MutexLock lock(mutex_);
  forget_tokens(found->user(), 1);
  return {};
}

void RingService::released(OpenId open) {
  if (count_.load() == 0) return;  // usually there are none
  drop_if([&](const Ring& ring) { return ring.anchor() == open; });
  std::vector<std::weak_ptr<Ring>> holders;
  {
    MutexLock lock(mutex_);
    const auto mine = rings_by_open_.find(open.to_wire());
    if (mine == rings_by_open_.end()) return;
    holders = std::move(mine->second);
    rings_by_open_.erase(mine);
  }
  for (const auto& each : holders) {
    const RingPtr ring = each.lock();  // also an ended ring that still has requests
    if (!ring) continue;
    const std::size_t ended = ring->released(open);
    MutexLock lock(mutex_);
    forget_tokens(ring->user(), ended);
  }
}

void RingService::drop_rings_of(pid_t process) {
  drop_if([&](const Ring& ring) {
    return ring.client().process() == process && has_ended(ring.client().fd());
  });
}

void RingService::end(int why) {
  std::jthread reaper;
  {
    MutexLock lock(mutex_);
    if (!ended_) why_ = why;
    ended_ = true;
    reaper = std::move(reaper_);
  }
  drop_if([](const Ring&) { return true; });
  reaper.request_stop();  // it empties the list first
  died_.notify_all();
}

std::vector<LimitUse> RingService::limits() const {
  MutexLock lock(mutex_);
  const auto largest = [](const std::map<uid_t, std::size_t>& of) {
    std::size_t most = 0;
    for (const auto& [user, count] : of) most = std::max(most, count);
    return most;
  };
  return {{"rings", "user", largest(of_user_), kMostOfUser, "ENOSPC"},
          {"rings", "all", count(), kMostOfAll, "ENOSPC"},
          {"files of rings", "user", largest(tokens_of_user_), kMostFilesOfUser, "ENOSPC"}};
}

}  // namespace sluice
