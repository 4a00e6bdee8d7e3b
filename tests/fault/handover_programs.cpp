// SPDX-License-Identifier: BSD-2-Clause
// The loads that are other people's programs.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <vector>

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
db.execute('pragma journal_mode=wal')
db.execute('pragma synchronous=normal')
db.execute('create table if not exists t(writer, number, text, unique(writer, number))')
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
    end_ = in[1];
    out_ = ::fdopen(out[0], "r");
  }
  Program(Program&& from) noexcept = delete;
  ~Program() {
    ::close(end_);
    ::fclose(out_);
  }

  // The next line; empty at the end of the output.
  std::string line() {
    std::array<char, 4000> text{};
    return std::fgets(text.data(), text.size(), out_) == nullptr ? "" : text.data();
  }
  // Tells it to end. Returns the rest of its output; `status` is that of waitpid(2).
  std::string end(int& status) {
    [[maybe_unused]] const ssize_t told = ::write(end_, "\n", 1);
    std::string rest;
    for (std::string next = line(); !next.empty(); next = line()) rest += next;
    ::waitpid(pid_, &status, 0);
    return rest;
  }

 private:
  pid_t pid_ = 0;
  int end_ = -1;
  FILE* out_ = nullptr;
};

}  // namespace

void use_sqlite(Load& load) {
  constexpr int kWriters = 4;
  const std::string path = load.directory + "/db";
  std::vector<std::unique_ptr<Program>> writers;
  std::vector<long> rows(kWriters, 0);
  for (int i = 0; i < kWriters; ++i) {
    writers.push_back(std::make_unique<Program>(
        std::vector<std::string>{"python3", "-c", kWriter, path, std::to_string(i)}));
  }
  const auto take = [&](std::size_t writer, const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const bool is_next = line == std::to_string(rows[writer] + 1);
      Load::expect(is_next, "sqlite: " + line);
      ++rows[writer];
    }
  };
  while (load.next()) {
    for (std::size_t i = 0; i < writers.size(); ++i) {
      const std::string line = writers[i]->line();
      Load::expect(!line.empty(), "sqlite: a writer ended");
      if (line == "Traceback (most recent call last):\n") {
        int status = 0;
        Load::expect(false, "sqlite: " + writers[i]->end(status));
      }
      take(i, line);
    }
  }
  std::vector<std::string> check{"python3", "-c", kChecker, path};
  for (std::size_t i = 0; i < writers.size(); ++i) {
    int status = 0;
    take(i, writers[i]->end(status));
    Load::expect(status == 0, "sqlite: a writer failed");
    check.push_back(std::to_string(rows[i]));
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
