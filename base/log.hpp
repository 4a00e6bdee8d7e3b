// SPDX-License-Identifier: BSD-2-Clause
// The log. No other file includes spdlog's sinks. A line is a sentence, then key=value.
// Thread-safe.
#pragma once

#include <spdlog/spdlog.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace sluice::log {

// The format of a line. Text: time, level, message. Json: an object with the strings "time",
// "level" and "message".
enum class Format { Text, Json };

// Sets where lines go until the process ends. Call once, after any fork: sinks may own threads and
// file positions. An empty `file` means stderr. If stderr is the journal, each line begins with its
// priority ("<4>"), which the journal removes, and has no time. Fails if the file cannot be opened.
Result<void> start(const std::string& file, spdlog::level::level_enum level,
                   Format format = Format::Text);

// May be called at any time from any thread.
void set_level(spdlog::level::level_enum level);

// Redirects stderr to the log's file, so that the last messages of a process without a terminal are
// kept (an uncaught exception, an assertion, a sanitizer's report). Returns false if the log is not
// a file.
bool take_over_stderr();

// For a library in another program, whose stderr is not ours: writes nothing unless the environment
// variable `variable` contains a level ("warn").
void start_in_library(const char* variable);

// The process's logger; before start() it writes warnings and worse to stderr.
spdlog::logger& get();

// Formats one line, for tests. `time` is in seconds since the epoch.
std::string formatted(Format format, bool to_journal, spdlog::level::level_enum level,
                      std::int64_t time, std::string_view message);

// Makes a name from a user safe to print: control bytes and backslashes become \xNN.
std::string escaped(std::string_view name);

}  // namespace sluice::log
