// SPDX-License-Identifier: BSD-2-Clause
// The janitor is a child process that outlives a test binary just long enough to undo what it left
// behind: mounts and temporary directories. It notices the end of the binary by the end of a pipe,
// so it works after a failed assertion, Ctrl-C, a crash and SIGKILL alike. It is also the watchdog:
// a test that takes too long has its FUSE mounts aborted, so that its stuck system calls fail and
// the test with them.
//
// Threads: any function from any thread. Before start() they do nothing.
#pragma once

#include <string>

namespace sluice::test::janitor {

// Starts the child. Call once, at the beginning of main(), before any thread.
void start();

// From now until forget(), the end of this process detaches the mount at `path`.
void watch_mount(const std::string& path);

// From now until forget(), the end of this process removes the tree at `path` (never crossing into
// another filesystem).
void watch_directory(const std::string& path);

void forget(const std::string& path);

// Tells the watchdog that test `name` begins now; an empty name that none is running.
void test_begins(const std::string& name);

}  // namespace sluice::test::janitor
