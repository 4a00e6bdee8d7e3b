// SPDX-License-Identifier: BSD-2-Clause
#include "base/path.hpp"

#include <algorithm>
#include <boost/filesystem/operations.hpp>
#include <boost/filesystem/path.hpp>

namespace sluice {
namespace {

namespace bfs = boost::filesystem;

// Boost's versions convert a trailing slash differently ("a/." or "a/"); remove both.
bfs::path normal(const bfs::path& path) {
  bfs::path result;
  // Boost keeps the ".." of "/.."; the kernel ignores it.
  for (const bfs::path& part : path.lexically_normal()) {
    if (part != ".." || result.has_relative_path()) result /= part;
  }
  while (result.has_parent_path() && result.has_relative_path() &&
         (result.filename() == "." || result.filename().empty())) {
    result = result.parent_path();
  }
  return result;
}

}  // namespace

std::string absolute_path(const std::string& path, const std::string& base) {
  bfs::path result(path);
  if (!result.is_absolute()) {
    boost::system::error_code error;
    result = base.empty() ? bfs::current_path(error) / path : absolute_path(base) / result;
  }
  return normal(result).string();
}

std::string real_path(const std::string& path) {
  const std::string absolute = absolute_path(path);
  boost::system::error_code error;
  const bfs::path resolved = bfs::weakly_canonical(absolute, error);
  return error ? absolute : normal(resolved).string();
}

std::string parent_path(const std::string& path) {
  const bfs::path absolute(absolute_path(path));
  return absolute.has_relative_path() ? absolute.parent_path().string() : absolute.string();
}

bool is_inside(const std::string& parent, const std::string& child) {
  const bfs::path outer(real_path(parent));
  const bfs::path inner(real_path(child));
  const auto [end, unused] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

Result<void> make_directories(const std::string& path) {
  boost::system::error_code error;
  bfs::create_directories(path, error);
  if (error) return Error(error.value(), "make directories");
  return {};
}

}  // namespace sluice
