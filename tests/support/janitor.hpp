// SPDX-License-Identifier: BSD-2-Clause
// The janitor is a child process that cleans up after a test binary has ended: it removes mounts
// and temporary directories. It detects the end of the binary by the end of a pipe, so it works
// after a failed assertion, Ctrl-C, a crash and SIGKILL. It is also the watchdog: if a test takes
// too long, it aborts the test's FUSE mounts, so that blocked system calls fail and the test fails.
//
// Threads: any function may be called from any thread. Before start() they do nothing.
#pragma once

#include <string>

namespace sluice::test::janitor {

// Starts the child. Call once, at the beginning of main(), before any thread.
void start();

// Until forget(), the janitor detaches the mount at `path` when this process ends.
void watch_mount(const std::string& path);

// Until forget(), the janitor removes the tree at `path` when this process ends (it never crosses
// into another filesystem).
void watch_directory(const std::string& path);

void forget(const std::string& path);

// Tells the watchdog that test `name` begins; an empty name means that none is running.
void test_begins(const std::string& name);

}  // namespace sluice::test::janitor
