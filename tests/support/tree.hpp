// SPDX-License-Identifier: BSD-2-Clause
// A tree of files as text, for comparing trees and showing the differences. Thread-safe.
#pragma once

#include <map>
#include <string>

namespace sluice::test {

struct DigestOptions {
  bool times = false;           // mtime with nanoseconds
  bool directory_links = true;  // st_nlink of directories
};

// Maps relative paths to type, mode, owner, links, size, device, xattrs, and link target or a hash
// of the contents. The names of one file show the path of the first of them. A digest never fails:
// it shows what is unreadable. Works for paths longer than PATH_MAX.
std::map<std::string, std::string> digest(const std::string& root, DigestOptions options = {});

// The lines in which two digests differ, at most 20, each with both sides; empty if they are equal.
std::string difference(const std::map<std::string, std::string>& expected,
                       const std::map<std::string, std::string>& actual);

// Removes `path` and everything in it, on one filesystem: mount points inside are kept. Errors are
// ignored.
void remove_tree(const std::string& path);

}  // namespace sluice::test
