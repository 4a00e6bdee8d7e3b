// SPDX-License-Identifier: BSD-2-Clause
#include "base/log.hpp"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/unique_fd.hpp"

namespace sluice::log {
namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e %l %v";

std::shared_ptr<spdlog::logger> make_stderr_logger() {
  auto logger = std::make_shared<spdlog::logger>(
      "sluice", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::warn);
  logger->set_pattern("sluice: %l: %v");
  return logger;
}

std::shared_ptr<spdlog::logger>& current() {
  // Never destroyed: in a host program, threads of ours may be at work until the process ends.
  static auto& logger = *new std::shared_ptr<spdlog::logger>(make_stderr_logger());
  return logger;
}

}  // namespace

Result<void> start(const std::string& file, spdlog::level::level_enum level) {
  try {
    spdlog::sink_ptr sink;
    if (file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
    }
    auto logger = std::make_shared<spdlog::logger>("sluice", std::move(sink));
    logger->set_level(level);
    logger->set_pattern(kPattern);
    logger->flush_on(spdlog::level::info);
    current() = std::move(logger);
  } catch (const spdlog::spdlog_ex&) {
    return Error::last("open log file");
  }
  return {};
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
