// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/requirement.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"

namespace sluice::test {
namespace {

bool required(const std::string& label) {
  const char* list = std::getenv("SLUICE_REQUIRE");
  std::istringstream labels(list ? list : "");
  for (std::string item; std::getline(labels, item, ',');) {
    if (item == label) return true;
  }
  return false;
}

}  // namespace

bool require(const std::string& label, bool present, const std::string& reason) {
  if (present) return true;
  [&] {
    if (required(label)) FAIL() << "SLUICE_REQUIRE has " << label << ", but: " << reason;
    GTEST_SKIP() << reason;
  }();
  return false;
}

bool require_mounts(const std::string& label) {
  return require(label, ::geteuid() == 0, "mounting needs root") &&
         require(label, ::access("/dev/fuse", R_OK | W_OK) == 0, "no /dev/fuse") &&
         require(label, ::access(sluice_binary().c_str(), X_OK) == 0,
                 "no sluice at " + sluice_binary());
}

bool require_loop(const std::string& label, const std::string& type) {
  return require(label, ::access("/dev/loop-control", R_OK) == 0, "no loop devices") &&
         require(label,
                 read_file("/proc/filesystems").find("\t" + type + "\n") != std::string::npos,
                 "the kernel has no " + type) &&
         require(label, exists("/sbin/mkfs." + type) || exists("/usr/sbin/mkfs." + type),
                 "no mkfs." + type);
}

}  // namespace sluice::test
