// SPDX-License-Identifier: BSD-2-Clause
// The base of tests that call Filesystem directly, as the kernel would.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "fs/core/filesystem.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {

using test::MemoryStore;

constexpr std::size_t kMiB = 1 << 20;
constexpr Caller kRoot{0, 0, 022}, kUser{1000, 1000, 022};
constexpr pid_t kOpener = 4711;  // an arbitrary process id

// `Kernel` is a KernelSide.
template <typename Kernel>
class DirectFilesystem : public test::PoolTest {
 protected:
  // The id of a path, looked up name by name as the kernel does. Throws if it does not exist.
  InodeId id_of(const std::string& path) { return entry_of(path).id; }
  Entry entry_of(const std::string& path) {
    Entry entry;
    entry.id = kRootId;
    for (std::size_t at = 0; at < path.size();) {
      const std::size_t end = std::min(path.find('/', at), path.size());
      const auto next = fs_->names().lookup(entry.id, path.substr(at, end - at).c_str());
      if (!next) throw std::runtime_error("lookup " + path + ": " + next.error().operation);
      if (next->id == InodeId{}) throw std::runtime_error("no " + path);
      entry = *next;
      at = end + 1;
    }
    return entry;
  }
  bool has(InodeId parent, const char* name) {
    const auto entry = fs_->names().lookup(parent, name);
    if (!entry) throw std::runtime_error(entry.error().operation);
    return entry->id != InodeId{};
  }
  // Look the names up first, as the kernel does.
  Result<void> unlink(InodeId parent, const char* name) {
    [[maybe_unused]] const auto known = fs_->names().lookup(parent, name);
    return fs_->names().unlink(parent, name);
  }
  Result<void> rmdir(InodeId parent, const char* name) {
    [[maybe_unused]] const auto known = fs_->names().lookup(parent, name);
    return fs_->names().rmdir(parent, name);
  }
  Result<void> rename(InodeId parent, const char* name, InodeId new_parent, const char* new_name,
                      unsigned flags, const KernelRequest& request = {}) {
    [[maybe_unused]] const auto known = fs_->names().lookup(parent, name);
    [[maybe_unused]] const auto target = fs_->names().lookup(new_parent, new_name);
    return fs_->names().rename(parent, name, new_parent, new_name, flags, request);
  }
  std::string read_all(InodeId id) {
    std::string out(4 * kMiB, '\0');
    const auto got = fs_->files().read(id, out.data(), out.size(), 0, O_RDONLY);
    if (!got) return std::string("error: ") + ::strerrorname_np(got.error().code);
    out.resize(*got);
    return out;
  }
  std::string read_path(const std::string& path) { return read_all(id_of(path)); }
  std::string xattr(const std::string& path, const char* name) {
    const auto value = fs_->xattrs().get(id_of(path), name);
    return value ? *value : std::string("error: ") + ::strerrorname_np(value.error().code);
  }
  void take_away(const std::string& tier) {
    ASSERT_EQ(::rename((dir_ / tier).c_str(), (dir_ / ("away-" + tier)).c_str()), 0);
    fs_->tick();
  }
  void bring_back(const std::string& tier) {
    ASSERT_EQ(::rename((dir_ / ("away-" + tier)).c_str(), (dir_ / tier).c_str()), 0);
    fs_->tick();
  }

  MemoryStore store_;
  Kernel kernel_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Filesystem> fs_;
};

}  // namespace sluice
