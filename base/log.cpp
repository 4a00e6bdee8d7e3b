// SPDX-License-Identifier: BSD-2-Clause
#include "base/log.hpp"

#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/unique_fd.hpp"
#include "base/utf8.hpp"

namespace sluice::log {
namespace {

// The numbers of syslog(3) and sd-daemon(3).
char priority_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical:
      return '2';
    case spdlog::level::err:
      return '3';
    case spdlog::level::warn:
      return '4';
    case spdlog::level::info:
      return '6';
    default:
      return '7';
  }
}

// Escapes a text for a JSON string. Bytes that are not valid UTF-8 become \xNN in the decoded
// string.
class Quoted final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    constexpr char kHex[] = "0123456789abcdef";
    std::string_view text(message.payload.data(), message.payload.size());
    while (!text.empty()) {
      const Character character = first_character(text);
      const auto byte = static_cast<unsigned char>(text[0]);
      std::string each(text.substr(0, character.size));
      if (!character.valid) {
        each = {'\\', '\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      } else if (byte == '"' || byte == '\\') {
        each.insert(0, 1, '\\');
      } else if (byte < 0x20) {
        each = {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
      }
      out.append(each.data(), each.data() + each.size());
      text.remove_prefix(character.size);
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Quoted>();
  }
};

class Priority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::array<char, 3> text{'<', priority_of(message.level), '>'};
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Priority>();
  }
};

std::unique_ptr<spdlog::formatter> make_formatter(Format format, bool to_journal) {
  auto out = std::make_unique<spdlog::pattern_formatter>();
  out->add_flag<Quoted>('*').add_flag<Priority>('&');
  const std::string priority = to_journal ? "%&" : "";
  if (format == Format::Json) {
    out->set_pattern(priority + R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%*"})");
  } else {
    out->set_pattern(to_journal ? "%&%v" : "%Y-%m-%dT%H:%M:%S.%e %l %v");
  }
  return out;
}

// Whether stderr is the journal: JOURNAL_STREAM identifies the journal's file, and stderr may have
// been redirected since.
bool is_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat st {};
  return stream != nullptr && ::fstat(STDERR_FILENO, &st) == 0 &&
         stream == std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino);
}

std::shared_ptr<spdlog::logger> make_stderr_logger() {
  auto logger = std::make_shared<spdlog::logger>(
      "sluice", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::warn);
  logger->set_pattern("sluice: %l: %v");
  return logger;
}

std::shared_ptr<spdlog::logger>& current() {
  // Never destroyed: in a host program, our threads may run until the process ends.
  static auto& logger = *new std::shared_ptr<spdlog::logger>(make_stderr_logger());
  return logger;
}

}  // namespace

Result<void> start(const std::string& file, spdlog::level::level_enum level, Format format) {
  try {
    spdlog::sink_ptr sink;
    if (file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
      ::chmod(file.c_str(), 0640);  // it mentions files in directories that not every user may read
    }
    auto logger = std::make_shared<spdlog::logger>("sluice", std::move(sink));
    logger->set_level(level);
    logger->set_formatter(make_formatter(format, file.empty() && is_journal()));
    logger->flush_on(spdlog::level::info);
    current() = std::move(logger);
  } catch (const spdlog::spdlog_ex&) {
    return Error::last("open log file");
  }
  return {};
}

void set_level(spdlog::level::level_enum level) {
  current()->set_level(level);
  // A user who asks for more detail wants to see it at once.
  current()->flush_on(std::min(level, spdlog::level::info));
}

std::string formatted(Format format, bool to_journal, spdlog::level::level_enum level,
                      std::int64_t time, std::string_view message) {
  const spdlog::log_clock::time_point when{std::chrono::seconds(time)};
  spdlog::memory_buf_t out;
  make_formatter(format, to_journal)
      ->format({when, spdlog::source_loc{}, "sluice", level,
                spdlog::string_view_t(message.data(), message.size())},
               out);
  return {out.data(), out.size()};
}

bool take_over_stderr() {
  for (const spdlog::sink_ptr& sink : current()->sinks()) {
    const auto* file = dynamic_cast<spdlog::sinks::basic_file_sink_mt*>(sink.get());
    if (file == nullptr) continue;
    const UniqueFd fd(::open(file->filename().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    return fd && ::dup2(fd.get(), STDERR_FILENO) >= 0;
  }
  return false;
}

void start_in_library(const char* variable) {
  const char* level = std::getenv(variable);
  current()->set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::off);
}

spdlog::logger& get() { return *current(); }

std::string escaped(std::string_view name) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char c : name) {
    if (c < 0x20 || c == 0x7f || c == '\\') {
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

}  // namespace sluice::log
