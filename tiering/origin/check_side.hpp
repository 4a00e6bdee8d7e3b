// SPDX-License-Identifier: BSD-2-Clause
// CheckSide: what `sluice origin check` asks of a machine that mounts the directory: LocalSide
// answers by itself, RemoteSide asks a partner, which answers with serve_check().
//
// Threads: caller locks.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "tiering/origin/race.hpp"

namespace sluice {

enum class LockKind { Flock, Fcntl };

class CheckSide {
 public:
  virtual ~CheckSide() = default;

  // All other calls are about files in this directory, which was just made. Waits some seconds
  // until it can be seen; ENOENT then.
  virtual Result<void> enter(const std::string& name, AttributeSpace space) = 0;
  virtual Result<FileStat> stat(const std::string& name) = 0;
  virtual Result<std::string> content(const std::string& name) = 0;
  // Whether the file could be locked exclusively. Unlocks it at once.
  virtual Result<bool> lock(const std::string& name, LockKind kind) = 0;
  // The file handle, in bytes.
  virtual Result<std::string> handle(const std::string& name) = 0;
  // See RaceReader.
  virtual Result<RaceSight> read_race(std::uint64_t round) = 0;
};

class LocalSide final : public CheckSide {
 public:
  static Result<LocalSide> open(const std::string& directory);

  Result<void> enter(const std::string& name, AttributeSpace space) override;
  Result<FileStat> stat(const std::string& name) override;
  Result<std::string> content(const std::string& name) override;
  Result<bool> lock(const std::string& name, LockKind kind) override;
  Result<std::string> handle(const std::string& name) override;
  Result<RaceSight> read_race(std::uint64_t round) override;

 private:
  explicit LocalSide(UniqueFd directory) : directory_(std::move(directory)) {}

  UniqueFd directory_;
  UniqueFd scratch_;
  AttributeSpace space_ = AttributeSpace::Trusted;
  std::optional<RaceReader> reader_;
};

// A side at the other end of two descriptors, which it borrows. An answer that does not come within
// a minute is ETIMEDOUT; EINTR: `interrupted` said so; EPIPE: the partner has ended.
class RemoteSide final : public CheckSide {
 public:
  RemoteSide(int in, int out, std::function<bool()> interrupted)
      : in_(in), out_(out), interrupted_(std::move(interrupted)) {}

  // Waits for the first words of the partner. EPROTONOSUPPORT: its Sluice has another version.
  Result<void> greet();
  // Whether any question had an error for an answer, or none.
  bool has_failed() const { return has_failed_; }

  Result<void> enter(const std::string& name, AttributeSpace space) override;
  Result<FileStat> stat(const std::string& name) override;
  Result<std::string> content(const std::string& name) override;
  Result<bool> lock(const std::string& name, LockKind kind) override;
  Result<std::string> handle(const std::string& name) override;
  Result<RaceSight> read_race(std::uint64_t round) override;

 private:
  Result<std::string> ask(const std::string& question);
  Result<std::string> answer_to(const std::string& question);
  Result<std::string> read_line();

  int in_;
  int out_;
  std::function<bool()> interrupted_;
  std::string received_;
  bool has_failed_ = false;
};

// Answers questions about `directory` until `in` ends.
Result<void> serve_check(const std::string& directory, int in, int out);

// Takes an exclusive lock that lasts as long as the descriptor; false if somebody else has one.
Result<bool> take_lock(int fd, LockKind kind);

}  // namespace sluice
