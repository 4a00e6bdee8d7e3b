// SPDX-License-Identifier: BSD-2-Clause
// The words between the two sides of a check. A question is a line: a verb and what it is about. An
// answer is "ok" and what was found, or "error" and an errno.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "tiering/origin/check_side.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// The first line of a partner. Both machines need the same.
constexpr const char* kGreeting = "sluice origin partner 1";
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kLook{200};  // how often an interruption is looked for
constexpr std::size_t kLongestLine = 1 << 20;

Result<void> write_line(int fd, std::string line) {
  line += '\n';
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t wrote = ::write(fd, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Error::last("write to the other machine");
    done += static_cast<std::size_t>(wrote);
  }
  return {};
}

std::string to_hex(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out = "x";  // never empty
  for (const unsigned char c : bytes) out.append({kDigits[c >> 4], kDigits[c & 15]});
  return out;
}

std::string from_hex(const std::string& text) {
  std::string out;
  for (std::size_t i = 1; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<char>(std::strtoul(text.substr(i, 2).c_str(), nullptr, 16)));
  return out;
}

// Appends what came to `received`. ETIMEDOUT: nothing came.
Result<void> receive(int fd, std::string& received, std::chrono::milliseconds limit) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  const int count = ::poll(&ready, 1, static_cast<int>(limit.count()));
  if (count == 0 || (count < 0 && errno == EINTR)) return Error(ETIMEDOUT, "wait for an answer");
  if (count < 0) return Error::last("wait for an answer");
  std::array<char, 4096> piece{};
  const ssize_t got = ::read(fd, piece.data(), piece.size());
  if (got < 0) return Error::last("read an answer");
  if (got == 0) return Error(EPIPE, "read an answer");
  received.append(piece.data(), static_cast<std::size_t>(got));
  return {};
}

std::optional<std::string> cut_line(std::string& received) {
  const auto end = received.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = received.substr(0, end);
  received.erase(0, end + 1);
  return line;
}

const char* word_of(LockKind kind) { return kind == LockKind::Flock ? "flock" : "fcntl"; }

std::string to_words(const RaceSight& sight) {
  return std::to_string(sight.rounds) + " " + std::to_string(sight.stale) + " " +
         std::to_string(sight.stale_by_stat) + " " + std::to_string(sight.hits);
}

std::string to_words(const FileStat& stat) {
  return std::to_string(stat.inode) + " " + std::to_string(stat.size) + " " +
         std::to_string(stat.mtime) + " " + std::to_string(stat.ctime);
}

Result<std::string> answer(LocalSide& side, const std::string& question) {
  std::istringstream words(question);
  std::string verb, what, more;
  words >> verb >> what >> more;
  if (what.find('/') != std::string::npos) return Error(EINVAL, "understand a question");
  if (verb == "enter") {
    const auto space = more == "user" ? AttributeSpace::User : AttributeSpace::Trusted;
    SLUICE_TRY(side.enter(what, space));
    return std::string();
  }
  if (verb == "stat") {
    const auto stat = SLUICE_TRY(side.stat(what));
    return to_words(stat);
  }
  if (verb == "content" || verb == "handle") {
    const auto bytes = SLUICE_TRY(verb == "content" ? side.content(what) : side.handle(what));
    return to_hex(bytes);
  }
  if (verb == "flock" || verb == "fcntl") {
    const auto kind = verb == "flock" ? LockKind::Flock : LockKind::Fcntl;
    const bool locked = SLUICE_TRY(side.lock(what, kind));
    return std::string(locked ? "1" : "0");
  }
  if (verb == "race") {
    const auto sight = SLUICE_TRY(side.read_race(std::strtoull(what.c_str(), nullptr, 10)));
    return to_words(sight);
  }
  return Error(EINVAL, "understand a question");
}

}  // namespace

Result<void> serve_check(const std::string& directory, int in, int out) {
  LocalSide side = SLUICE_TRY(LocalSide::open(directory));
  SLUICE_TRY(write_line(out, kGreeting));
  std::string received;
  while (received.size() < kLongestLine) {
    const auto line = cut_line(received);
    if (!line) {
      const auto got = receive(in, received, kPatience);
      if (failed_with(got, EPIPE)) return {};
      if (!got && got.error().code != ETIMEDOUT) return got.error();
      continue;
    }
    const auto said = answer(side, *line);
    SLUICE_TRY(
        write_line(out, said ? "ok " + *said : "error " + std::to_string(said.error().code)));
  }
  return Error(EMSGSIZE, "read a question");
}

Result<std::string> RemoteSide::read_line() {
  const auto end = steady_clock::now() + kPatience;
  while (received_.size() < kLongestLine) {
    if (auto line = cut_line(received_)) return *line;
    if (interrupted_()) return Error(EINTR, "wait for an answer");
    const auto got = receive(in_, received_, kLook);
    if (!got && (got.error().code != ETIMEDOUT || steady_clock::now() > end)) return got.error();
  }
  return Error(EMSGSIZE, "read an answer");
}

Result<void> RemoteSide::greet() {
  const auto line = read_line();
  has_failed_ = !line || *line != kGreeting;
  if (!line) return line.error();
  if (has_failed_) return Error(EPROTONOSUPPORT, "greet the other machine");
  return {};
}

Result<std::string> RemoteSide::ask(const std::string& question) {
  auto answer = answer_to(question);
  has_failed_ = has_failed_ || !answer;
  return answer;
}

Result<std::string> RemoteSide::answer_to(const std::string& question) {
  SLUICE_TRY(write_line(out_, question));
  const std::string line = SLUICE_TRY(read_line());
  if (line.starts_with("ok ")) return line.substr(3);
  std::istringstream words(line);
  std::string error;
  int code = 0;
  if (!(words >> error >> code) || error != "error" || code <= 0)
    return Error(EPROTO, "understand the other machine");
  return Error(code, "check on the other machine");
}

Result<void> RemoteSide::enter(const std::string& name, AttributeSpace space) {
  SLUICE_TRY(ask("enter " + name + (space == AttributeSpace::User ? " user" : " trusted")));
  return {};
}

Result<FileStat> RemoteSide::stat(const std::string& name) {
  std::istringstream words(SLUICE_TRY(ask("stat " + name)));
  FileStat stat;
  if (!(words >> stat.inode >> stat.size >> stat.mtime >> stat.ctime))
    return Error(EPROTO, "understand the other machine");
  return stat;
}

Result<std::string> RemoteSide::content(const std::string& name) {
  const auto text = SLUICE_TRY(ask("content " + name));
  return from_hex(text);
}

Result<bool> RemoteSide::lock(const std::string& name, LockKind kind) {
  const auto text = SLUICE_TRY(ask(std::string(word_of(kind)) + " " + name));
  return text == "1";
}

Result<std::string> RemoteSide::handle(const std::string& name) {
  const auto text = SLUICE_TRY(ask("handle " + name));
  return from_hex(text);
}

Result<RaceSight> RemoteSide::read_race(std::uint64_t round) {
  std::istringstream words(SLUICE_TRY(ask("race " + std::to_string(round))));
  RaceSight sight;
  if (!(words >> sight.rounds >> sight.stale >> sight.stale_by_stat >> sight.hits))
    return Error(EPROTO, "understand the other machine");
  return sight;
}

}  // namespace sluice
