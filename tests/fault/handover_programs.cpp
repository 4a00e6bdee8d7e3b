// SPDX-License-Identifier: BSD-2-Clause
// The loads that are other people's programs.
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/fault/handover_loads.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

// A writer: adds rows with increasing numbers, prints each after its commit, ends at the end of
// stdin.
constexpr const char* kWriter = R"(
import select, sqlite3, sys
path, me = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(path, timeout=120, isolation_level=None)
db.execute('pragma synchronous=normal')
number = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    db.execute('begin immediate')
    found = db.execute('select count(*) from t where writer = ?', (me,)).fetchone()[0]
    if found != number: sys.exit('writer %d finds %d of %d rows' % (me, found, number))
    db.execute('insert into t values(?, ?, ?)', (me, number, 'x' * (number % 700)))
    db.execute('commit')
    number += 1
    print(number, flush=True)
)";

// By one process: SQLite lets nobody wait for a change of the mode.
constexpr const char* kCreator = R"(
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute('pragma journal_mode=wal')
db.execute('create table t(writer, number, text, unique(writer, number))')
)";

constexpr const char* kChecker = R"(
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=120)
result = db.execute('pragma integrity_check').fetchall()
if result != [('ok',)]: sys.exit(str(result[:5]))
for writer, number in enumerate(sys.argv[2:]):
    found = db.execute('select count(*) from t where writer = ?', (writer,)).fetchone()[0]
    if found != int(number): sys.exit('%s rows of writer %d instead of %s' % (found, writer, number))
)";

// A program whose output can be read while it runs.
class Program {
 public:
  explicit Program(const std::vector<std::string>& words) {
    std::array<int, 2> in{}, out{};
    Load::check(::pipe(in.data()), "pipe");
    Load::check(::pipe(out.data()), "pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(out[1], 2);
      ::close_range(3, ~0U, 0);
      std::vector<char*> argv;
      for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    end_.reset(in[1]);
    out_.reset(out[0]);
  }

  int output() const { return out_.get(); }
  // Some of its output, once there is any; empty at the end.
  std::string read_some() {
    std::array<char, 4096> text;
    const ssize_t got = ::read(out_.get(), text.data(), text.size());
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }
  // Tells it to end. Returns the rest of its output.
  std::string end() {
    [[maybe_unused]] const ssize_t told = ::write(end_.get(), "\n", 1);
    std::string rest;
    for (std::string next = read_some(); !next.empty(); next = read_some()) rest += next;
    return rest;
  }
  // Waits for its end. False if it failed.
  bool succeeded() const {
    int status = 0;
    return ::waitpid(pid_, &status, 0) == pid_ && status == 0;
  }

 private:
  pid_t pid_ = 0;
  UniqueFd end_, out_;
};

// A writer of the database, and what is known of it.
class Writer {
 public:
  Writer(const std::string& path, int number)
      : program_({"python3", "-c", kWriter, path, std::to_string(number)}) {}

  int output() const { return program_.output(); }
  long rows() const { return rows_; }
  // Takes what it wrote. Throws if that is not the number of its next row.
  void take() {
    const std::string text = program_.read_some();
    Load::expect(!text.empty(), "sqlite: a writer ended");
    take(text);
  }
  void end() {
    take(program_.end());
    Load::expect(program_.succeeded() && unread_.empty(), "sqlite: a writer failed: " + unread_);
  }

 private:
  void take(const std::string& text) {
    unread_ += text;
    for (std::size_t end = 0; (end = unread_.find('\n')) != std::string::npos;) {
      const bool is_next = unread_.substr(0, end) == std::to_string(rows_ + 1);
      Load::expect(is_next, "sqlite: " + unread_ + (is_next ? "" : program_.end()));
      unread_.erase(0, end + 1);
      ++rows_;
    }
  }

  Program program_;
  long rows_ = 0;
  std::string unread_;
};

}  // namespace

void use_sqlite(Load& load) {
  constexpr int kWriters = 4;
  std::signal(SIGPIPE, SIG_IGN);  // a writer may have ended
  const std::string path = load.directory + "/db";
  const CommandResult created = run_command({"python3", "-c", kCreator, path});
  Load::expect(created.ok(), "sqlite: " + created.err);
  std::vector<std::unique_ptr<Writer>> writers;
  std::vector<pollfd> outputs;
  for (int i = 0; i < kWriters; ++i) {
    writers.push_back(std::make_unique<Writer>(path, i));
    outputs.push_back({writers.back()->output(), POLLIN, 0});
  }
  while (load.next()) {
    ::poll(outputs.data(), outputs.size(), -1);
    for (std::size_t i = 0; i < writers.size(); ++i) {
      if (outputs[i].revents != 0) writers[i]->take();
    }
  }
  std::vector<std::string> check{"python3", "-c", kChecker, path};
  for (const auto& writer : writers) {
    writer->end();
    check.push_back(std::to_string(writer->rows()));
  }
  const CommandResult result = run_command(check);
  Load::expect(result.ok(), "sqlite: " + result.err);
}

void use_git(Load& load) {
  const std::string repository = load.directory + "/repository";
  const auto git = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"git", "-C", repository, "-c", "user.name=a", "-c",
                                 "user.email=a@example.com", "-c", "gc.auto=0"});
    std::string line;
    for (const std::string& word : words) line += word + " ";
    const CommandResult result = run_command(words);
    Load::expect(result.ok(), line + "\n" + result.out + result.err);
    load.next();
    return result.out;
  };
  Load::check(::mkdir(repository.c_str(), 0755), "mkdir");
  git({"init", "-q"});
  int commits = 0;
  while (load.next()) {
    for (int i = 0; i < 4; ++i) {
      const std::string name = repository + "/f" + std::to_string(load.below(20));
      write_file(name, pattern(load.below(20'000), load.random()));
    }
    git({"add", "-A"});
    git({"commit", "-q", "--allow-empty", "-m", std::to_string(++commits)});
    Load::expect(git({"status", "--porcelain"}).empty(), "git finds changes after a commit");
    if (commits % 6 == 0) git({"gc", "-q"});
    if (commits % 3 == 0) git({"fsck", "--full", "--strict"});
  }
  git({"fsck", "--full", "--strict"});
  const std::string count = git({"rev-list", "--count", "HEAD"});
  Load::expect(count == std::to_string(commits) + "\n", "git lost commits: " + count);
}

}  // namespace sluice::test
