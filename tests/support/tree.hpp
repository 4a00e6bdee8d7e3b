// SPDX-License-Identifier: BSD-2-Clause
// A tree of files as text, so that two trees can be compared and the difference read. Thread-safe.
#pragma once

#include <map>
#include <string>

namespace sluice::test {

struct DigestOptions {
  bool times = false;           // mtime with nanoseconds
  bool directory_links = true;  // st_nlink of directories
};

// Relative path -> type, mode, owner, links, size, device, xattrs, link target or a hash of the
// contents. Names of one file carry the path of the first of them. Unreadable things say so: a
// digest never fails. Works below PATH_MAX.
std::map<std::string, std::string> digest(const std::string& root, DigestOptions options = {});

// The lines in which two digests differ, at most 20, each with both sides; empty: they are the
// same.
std::string difference(const std::map<std::string, std::string>& expected,
                       const std::map<std::string, std::string>& actual);

// Removes `path` and everything in it, on one filesystem: mount points inside stay. Errors are
// ignored.
void remove_tree(const std::string& path);

}  // namespace sluice::test
