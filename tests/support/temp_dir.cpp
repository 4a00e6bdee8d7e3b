// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/temp_dir.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/tree.hpp"

namespace sluice::test {
namespace {

std::string make_fresh_directory() {
  const char* base = std::getenv("SLUICE_TEST_DIR");
  std::string path = std::string(base ? base : "/tmp") + "/sluice-test-XXXXXX";
  if (!::mkdtemp(path.data())) throw std::system_error(errno, std::generic_category(), path);
  ::chmod(path.c_str(), 0755);  // other users run parts of some tests
  return path;
}

}  // namespace

TempDir::TempDir() : path_(make_fresh_directory()) { janitor::watch_directory(path_); }

TempDir::~TempDir() {
  remove_tree(path_);
  janitor::forget(path_);
}

std::string TempDir::operator/(std::string_view name) const {
  return path_ + "/" + std::string(name);
}

std::string TempDir::make_file(std::string_view name, std::string_view content) const {
  const std::string path = *this / name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_file(path, content);
  return path;
}

std::string TempDir::make_dir(std::string_view name) const {
  const std::string path = *this / name;
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace sluice::test
