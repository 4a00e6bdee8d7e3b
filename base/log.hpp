// SPDX-License-Identifier: BSD-2-Clause
// The log: the only home of spdlog. Lines are a sentence, then key=value. Thread-safe.
#pragma once

#include <spdlog/spdlog.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace sluice::log {

// How a line looks. Text: time, level, the sentence. Json: an object with "time", "level" and
// "message", each a text.
enum class Format { Text, Json };

// Where lines go until the process ends. Call once, after any fork: sinks may own threads and file
// positions. `file` empty means stderr; where that is the journal, each line begins with its
// priority ("<4>"), which the journal takes away, and has no time of its own. Fails if the file
// can't be opened.
Result<void> start(const std::string& file, spdlog::level::level_enum level,
                   Format format = Format::Text);

// The levels by their names, as spdlog numbers them.
inline constexpr std::array<std::string_view, 5> kLevels{"trace", "debug", "info", "warn", "error"};
static_assert(spdlog::level::trace == 0 && spdlog::level::err == 4);

// May be changed while others write; false if there is no such level.
bool set_level(std::string_view name);
std::string_view level();

// Sends stderr to the log's file: a process without a terminal says its last words there (an
// uncaught exception, an assertion, a sanitizer's report). False if the log is not a file.
bool take_over_stderr();

// For a library in somebody else's process, whose stderr is not ours: nothing is written, unless
// the environment's `variable` names a level ("warn").
void start_in_library(const char* variable);

// The process's logger; before start() it writes warnings and worse to stderr.
spdlog::logger& get();

// What a line looks like in each format, for tests: of `level`, at `time` in seconds since the
// epoch.
std::string formatted(Format format, bool to_journal, spdlog::level::level_enum level,
                      std::int64_t time, std::string_view message);

// A name that came from a user, made safe to print: control bytes and backslashes become \xNN.
std::string escaped(std::string_view name);

}  // namespace sluice::log
