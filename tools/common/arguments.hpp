// SPDX-License-Identifier: BSD-2-Clause
// Arguments parses the command line of a verb. It is the only user of CLI11, whose headers add
// seconds to the compilation of each file that includes them. Threads: caller locks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace sluice::tools {

// What -h and --help print. Written by hand: the text is part of the interface, and CLI11's text
// differs between versions.
struct HelpText {
  std::string_view usage;    // "sluice mount [options] MOUNTPOINT"
  std::string_view options;  // a line each; -h stops here
  std::string_view details;  // what --help adds
};

// The name of the program that the usage begins with: "sluice".
inline std::string_view program_of(const HelpText& help) {
  return help.usage.substr(0, help.usage.find(' '));
}

class Arguments {
 public:
  Arguments();
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  enum class Need { Optional, Required };

  // `names` are "-v,--verbose"; a name without a dash is a positional argument. The bound variable
  // must live until parse(). A vector gets one value each time its option is given; a positional
  // vector gets all remaining arguments.
  void flag(const std::string& names, bool& into);
  void flag(const std::string& names, std::function<void()> call);
  template <typename T>
  void option(const std::string& names, T& into, Need need = Need::Optional);
  void option_call(const std::string& names, std::function<void(const std::string&)> call);
  void never_together(const std::string& one, const std::string& other);

  // Returns the exit code if the verb ends here: help was printed, or the usage was wrong and an
  // error was printed.
  std::optional<int> parse(int argc, char** argv, const HelpText& help);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace sluice::tools
