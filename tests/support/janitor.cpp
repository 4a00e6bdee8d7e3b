// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/janitor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/support/tree.hpp"

namespace sluice::test::janitor {
namespace {

// The time limit of one test. A long run (SLUICE_LONG=1) repeats some steps hundreds of times.
int watchdog_milliseconds() {
  const char* asked = std::getenv("SLUICE_LONG");
  return asked && *asked == '1' ? 3'600'000 : 150'000;
}

// Write end of the pipe; one short message per write, so that messages never mix.
int pipe_end = -1;

struct Item {
  bool mount;
  std::string path;
};

void abort_mounts(const std::vector<Item>& items) {
  // MNT_FORCE makes FUSE abort its connection, so that blocked system calls fail.
  for (const Item& item : items) {
    if (item.mount) ::umount2(item.path.c_str(), MNT_FORCE);
  }
}

void clean(const std::vector<Item>& items) {
  abort_mounts(items);
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    if (item->mount) {
      while (::umount2(item->path.c_str(), MNT_DETACH) == 0) {
      }
    } else {
      remove_tree(item->path);
    }
  }
}

void handle(std::string_view line, std::vector<Item>& items, std::string& running) {
  if (line.empty()) return;
  const std::string argument(line.substr(1));
  switch (line[0]) {
    case 'm':
    case 'd':
      items.push_back({line[0] == 'm', argument});
      break;
    case 'f':
      std::erase_if(items, [&](const Item& item) { return item.path == argument; });
      break;
    default:
      running = argument;
  }
}

[[noreturn]] void serve(int fd) {
  ::prctl(PR_SET_NAME, "test-janitor");
  ::setsid();  // so that Ctrl-C ends the tests but not the janitor
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  std::vector<Item> items;
  std::string running;
  std::string buffer;
  for (;;) {
    pollfd ready{fd, POLLIN, 0};
    const int count = ::poll(&ready, 1, running.empty() ? -1 : watchdog_milliseconds());
    if (count == 0) {
      std::fprintf(stderr, "watchdog: %s takes too long: aborting its mounts\n", running.c_str());
      abort_mounts(items);
      running.clear();
      continue;
    }
    char chunk[4096];
    const ssize_t got = ::read(fd, chunk, sizeof chunk);
    if (got <= 0) break;
    buffer.append(chunk, static_cast<std::size_t>(got));
    for (std::size_t end; (end = buffer.find('\n')) != std::string::npos;
         buffer.erase(0, end + 1)) {
      handle(std::string_view(buffer).substr(0, end), items, running);
    }
  }
  clean(items);
  ::_exit(0);
}

void send(char verb, const std::string& argument) {
  if (pipe_end < 0) return;
  const std::string message = verb + argument + '\n';
  if (::write(pipe_end, message.data(), message.size()) < 0) std::perror("write to the janitor");
}

}  // namespace

void start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) std::abort();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) std::abort();
  if (child == 0) {
    ::close(ends[1]);
    serve(ends[0]);
  }
  ::close(ends[0]);
  pipe_end = ends[1];
}

void watch_mount(const std::string& path) { send('m', path); }
void watch_directory(const std::string& path) { send('d', path); }
void forget(const std::string& path) { send('f', path); }
void test_begins(const std::string& name) { send('t', name); }

}  // namespace sluice::test::janitor
