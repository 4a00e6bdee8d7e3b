// SPDX-License-Identifier: BSD-2-Clause
// A filesystem with three tiers, whose files the test moves step by step.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/fs/direct_filesystem.hpp"

namespace sluice {

constexpr TierIndex kA = 0, kB = 1, kC = 2;

// Code that a test runs once inside a system call of the daemon, in place of another thread.
struct SyscallHook {
  std::function<void()> before_naming;  // before the `calls`-th name_to_handle_at
  int calls = 1;
  std::function<void()> after_opening;  // after the next open_by_handle_at for reading
};
inline thread_local SyscallHook syscall_hook;

// A kernel that allows passthrough for every file.
class PassingKernel final : public KernelSide {
 public:
  std::atomic<int> backed{0};  // files registered now
  Result<std::int32_t> add_backing(int fd) override {
    // Like the kernel, it keeps the file open.
    UniqueFd kept(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    MutexLock lock(mutex_);
    files_[++last_] = std::move(kept);
    ++backed;
    return last_;
  }
  void remove_backing(std::int32_t id) override {
    MutexLock lock(mutex_);
    files_.erase(id);
    --backed;
  }
  void drop_attributes(InodeId id) override {
    MutexLock lock(mutex_);
    dropped_.push_back(id);
  }
  void drop_pages(InodeId) override {}
  bool drop_all_names() override { return true; }
  void drop_name(InodeId, const std::string&) override {}
  std::vector<InodeId> dropped() {
    MutexLock lock(mutex_);
    return dropped_;
  }

 private:
  Mutex mutex_;
  std::map<std::int32_t, UniqueFd> files_ GUARDED_BY(mutex_);
  std::vector<InodeId> dropped_ GUARDED_BY(mutex_);
  std::int32_t last_ GUARDED_BY(mutex_) = 0;
};

class FileMoveTest : public DirectFilesystem<PassingKernel> {
 protected:
  // A move that has begun, as the mover has it.
  struct Flight {
    std::unique_ptr<HeldFile> file;
    HiddenCopy copy;
    TierIndex to = kNoTier;
  };

  void prepare() override {
    ::signal(SIGIO, SIG_IGN);  // as the daemon does; the signal means that a lease is being broken
    mount();
  }
  void TearDown() override { const CreateAs root(Caller{}); }
  void mount() {
    fs_.reset();
    pool_.reset();
    pool_ = open(make_tiers("abc"));
    Filesystem::Settings settings;
    settings.migration = migration_;
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, std::move(settings), engine_);
  }
  // Mounts again, with a mover that executes only requested moves.
  void migrate(Policy policy = {}) {
    migration_.emplace();
    migration_->policy = std::move(policy);
    migration_->automatic = false;
    mount();
  }
  // Mounts again, with an engine.
  void attach(Engine& engine) {
    engine_ = &engine;
    mount();
  }

  int set_xattr(const std::string& path, const char* name, const std::string& value) {
    const auto set = fs_->xattrs().set(id_of(path), name, value.data(), value.size(), 0, kRoot);
    return set ? 0 : set.error().code;
  }
  Opened open_file(InodeId id, int flags) {
    const auto opened = fs_->files().open(id, flags, kOpener, std::nullopt);
    if (!opened) throw std::runtime_error(opened.error().operation);
    return *opened;
  }
  // The tiers that have the file.
  std::string where(const std::string& path) const {
    std::string out;
    for (const char* tier : {"a", "b", "c"}) {
      if (test::exists(at(tier, path))) out += tier;
    }
    return out;
  }

  Move move_of(const std::string& path, TierIndex to = kB) {
    Move move;
    move.id = id_of(path);
    move.paths = {"/" + path};
    move.from = pool_->by_name(xattr(path, "user.sluice.tier"))->index();
    move.to = to;
    return move;
  }
  Result<Flight> begin(const std::string& path, TierIndex to = kB) {
    Flight flight;
    Move wanted = move_of(path, to);
    flight.file = SLUICE_TRY(fs_->relocator().hold(wanted));
    flight.copy =
        SLUICE_TRY(make_hidden_copy(flight.file->source(), flight.file->identity(), (*pool_)[to]));
    flight.to = to;
    return flight;
  }
  Flight begun(const std::string& path, TierIndex to = kB) {
    auto flight = begin(path, to);
    if (!flight) throw std::runtime_error(flight.error().operation);
    return *std::move(flight);
  }
  Result<void> end(Flight& flight) {
    SLUICE_TRY(sync_copy(flight.copy));
    auto outcome =
        fs_->relocator().switcher().switch_files({{flight.file.get(), &flight.copy, flight.to}})[0];
    if (!outcome) discard(flight.copy, (*pool_)[flight.to]);
    flight.file.reset();
    return outcome;
  }
  Result<void> move(const std::string& path, TierIndex to = kB) {
    auto flight = SLUICE_TRY(begin(path, to));
    return end(flight);
  }

  std::optional<Migration::Settings> migration_;
  Engine* engine_ = nullptr;
};

}  // namespace sluice
