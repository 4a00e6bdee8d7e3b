// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/verbs.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "base/log.hpp"
#include "fs/control/options.hpp"
#include "tools/common/completion.hpp"
#include "tools/common/manual.hpp"
#include "tools/common/mounts.hpp"

namespace sluice::tools {
namespace {

void print_verbs(std::FILE* to, std::span<const Verb> verbs) {
  std::size_t width = 8;
  for (const auto& verb : verbs) width = std::max(width, verb.name.size());
  for (const auto& verb : verbs) {
    std::fprintf(to, "  %-*s %s\n", static_cast<int>(width), verb.name.data(), verb.summary.data());
  }
}

void print_help(const Program& program, std::FILE* to) {
  const std::string name(program.name);
  std::fprintf(to, "usage: %s\n\n", std::string(program.usage).c_str());
  print_verbs(to, program.verbs);
  std::fprintf(to,
               "\n  %s <verb> -h      list the options of a verb\n"
               "  %s help <verb>    describe a verb; also: man %s-<verb>\n"
               "  %s --version\n",
               name.c_str(), name.c_str(), name.c_str(), name.c_str());
}

// `who` is "sluice" or "sluice: tier".
int report_unknown(const std::string& who, std::string_view word, std::span<const Verb> verbs) {
  std::vector<std::string_view> names;
  std::string list;
  for (const auto& verb : verbs) {
    names.push_back(verb.name);
    list.append(list.empty() ? "" : ", ").append(verb.name);
  }
  const auto close = closest_word(word, names);
  std::fprintf(stderr, "%s: unknown verb '%s'; %s\n", who.c_str(), log::escaped(word).c_str(),
               close ? ("did you mean '" + std::string(*close) + "'?").c_str()
                     : ("allowed: " + list).c_str());
  return kUsage;
}

int run(const Program& program, int argc, char** argv);

// `sluice help tier run` is `sluice tier run --help`.
int run_help(const Program& program, int argc, char** argv) {
  std::string help = "--help";
  std::vector<char*> words(argv, argv + argc);
  words.erase(words.begin() + 1);
  words.insert(words.end(), {help.data(), nullptr});
  return run(program, argc, words.data());
}

int run(const Program& program, int argc, char** argv) {
  if (argc < 2) {
    print_help(program, stderr);
    return kUsage;
  }
  const std::string_view word = argv[1];
  if (word == "-h" || word == "--help" || (word == "help" && argc == 2)) {
    print_help(program, stdout);
    return kDone;
  }
  if (word == "help") return run_help(program, argc, argv);
  if (word == "--version") {
    std::printf("%s %s\n", std::string(program.name).c_str(), SLUICE_VERSION);
    return kDone;
  }
  // Used by shell completions and the build; not shown in the help.
  if (word == "complete") return command_complete(argc - 1, argv + 1, program.verbs);
  if (word == "manual") return command_manual(argc - 1, argv + 1, program);
  for (const auto& verb : program.verbs) {
    if (verb.name == word) return verb.run(argc - 1, argv + 1);
  }
  return report_unknown(std::string(program.name), word, program.verbs);
}

// Opens what the caller has closed (`>&-`), in a way that refuses use as a closed descriptor does:
// no file that a verb opens may become its stdout.
void open_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // Not O_CLOEXEC, and the lowest free number, which is this one.
    static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

// A reader that goes away (`| head`) must not end a verb in the middle of its work: the write fails
// instead. Programs that a verb starts do not inherit a handler.
void outlive_readers() {
  struct sigaction before {};
  if (::sigaction(SIGPIPE, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, [](int) {});
}

// Writes what is left of stdout. If output did not arrive, the verb has failed. This is reported
// unless the reader went away, which has what it wanted.
int end_output(std::string_view name, int code) {
  errno = 0;
  const bool is_written = std::ferror(stdout) == 0;
  const bool is_flushed = std::fflush(stdout) == 0;
  int cause = errno;
  pollfd reader{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  const bool is_gone = ::poll(&reader, 1, 0) > 0 && (reader.revents & (POLLERR | POLLHUP)) != 0;
  errno = 0;
  // Some filesystems, such as NFS, report it at the end only.
  const bool is_closed = std::fclose(stdout) == 0;
  if (is_written && is_flushed && is_closed) return code;
  if (cause == 0) cause = errno;  // still 0 if an earlier write has failed
  if (!is_gone) {
    const std::string why = cause == 0 ? "" : std::string(": ") + std::strerror(cause);
    std::fprintf(stderr, "%s: cannot write the output%s\n", std::string(name).c_str(), why.c_str());
  }
  return code == kDone ? kFailed : code;
}

}  // namespace

int run_program(const Program& program, int argc, char** argv) {
  open_standard_descriptors();
  outlive_readers();
  int code = kFailed;
  try {
    code = run(program, argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: unexpected: %s\n", std::string(program.name).c_str(), error.what());
  }
  std::string name(program.name);
  if (argc > 1) name.append(": ").append(log::escaped(argv[1]));
  return end_output(name, code);
}

int run_subverb(int argc, char** argv, std::span<const Verb> subverbs) {
  const std::string program(kProgramName);
  const std::string_view word = argc < 2 ? "" : argv[1];
  const bool is_help = word == "-h" || word == "--help";
  if (word == kCompletionMark) {
    return complete_verbs({argv + 1, static_cast<std::size_t>(argc - 1)}, subverbs);
  }
  if (word == kManualMark) {
    for (const auto& each : subverbs) {
      std::string name = std::string(argv[0]) + " " + std::string(each.name);
      std::vector<char*> words(argv, argv + argc);
      words[0] = name.data();
      words.push_back(nullptr);
      if (const int code = each.run(argc, words.data()); code != kDone) return code;
    }
    return kDone;
  }
  if (word.empty() || is_help) {
    std::FILE* to = is_help ? stdout : stderr;
    std::fprintf(to, "usage: %s %s <verb> [options]\n\n", program.c_str(), argv[0]);
    print_verbs(to, subverbs);
    std::fprintf(to, "\n  %s %s <verb> --help  describe a verb\n", program.c_str(), argv[0]);
    return is_help ? kDone : kUsage;
  }
  for (const auto& each : subverbs) {
    if (each.name != word) continue;
    std::string name = std::string(argv[0]) + " " + argv[1];
    argv[1] = name.data();
    return each.run(argc - 1, argv + 1);
  }
  return report_unknown(program + ": " + argv[0], word, subverbs);
}

int fail(std::string_view verb, std::string_view message) {
  std::fprintf(stderr, "%s: %s: %s\n", std::string(kProgramName).c_str(), std::string(verb).c_str(),
               std::string(message).c_str());
  return kFailed;
}

int misuse(std::string_view verb, std::string_view message) {
  fail(verb, message);
  return kUsage;
}

std::optional<Style> style_for(std::string_view verb, const std::string& when) {
  const auto style = Style::create(when);
  if (!style) misuse(verb, "--color must be auto, always or never");
  return style;
}

std::optional<std::string> mount_for(std::string_view verb, const std::string& given) {
  const auto mount = choose_mount(given);
  if (mount) return *mount;
  fail(verb, mount.error().text());
  return std::nullopt;
}

}  // namespace sluice::tools
