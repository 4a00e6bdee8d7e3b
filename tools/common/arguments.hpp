// SPDX-License-Identifier: BSD-2-Clause
// Arguments is what a verb takes from its command line. The one home of CLI11, whose headers cost
// seconds in each file that has them. Threads: caller locks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace sluice {

// What -h and --help print. Written by hand: the text is part of the interface, and CLI11's differs
// by version.
struct HelpText {
  std::string_view usage;    // "sluice mount [options] MOUNTPOINT"
  std::string_view options;  // a line each; -h stops here
  std::string_view details;  // what --help adds
};

class Arguments {
 public:
  Arguments();
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  enum class Need { Optional, Required };

  // `names` are "-v,--verbose"; a word without a dash is an argument by its place. What is bound
  // must live until parse(). A vector takes one value each time its option is given, or all that
  // is left by its place.
  void flag(const std::string& names, bool& into);
  void flag(const std::string& names, std::function<void()> call);
  template <typename T>
  void option(const std::string& names, T& into, Need need = Need::Optional);
  void option_call(const std::string& names, std::function<void(const std::string&)> call);
  void never_together(const std::string& one, const std::string& other);

  // Returns the exit code if the verb ends here: help was asked for, or the usage is wrong and was
  // complained about.
  std::optional<int> parse(int argc, char** argv, const HelpText& help);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace sluice
