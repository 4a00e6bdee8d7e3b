// SPDX-License-Identifier: BSD-2-Clause
// A filesystem that is asked directly: no mount, three directories for tiers.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fs/directory_stream.hpp"
#include "fs/filesystem.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {

using test::MemoryStore;
using Names = std::vector<std::string>;

constexpr Caller kRoot{0, 0, 022}, kUser{1000, 1000, 022};
constexpr pid_t kOpener = 0;  // nobody in particular
constexpr std::size_t kMiB = 1 << 20;

// The kernel's side of the mount: its passthrough table and what it was told to ask again.
class FakeKernel final : public KernelSide {
 public:
  bool refuse = false;
  std::map<std::int32_t, ino_t> live;  // inode numbers of what is registered
  bool all_read_only = true;
  std::vector<InodeId> dropped_attributes, dropped_pages;

  Result<std::int32_t> add_backing(int fd) override {
    if (refuse) return Error(EOPNOTSUPP, "add backing file");
    struct stat st {};
    if (::fstat(fd, &st) < 0) return Error::last("stat");
    all_read_only = all_read_only && (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
    live[++last_] = st.st_ino;
    return last_;
  }
  void remove_backing(std::int32_t id) override {
    EXPECT_EQ(live.erase(id), 1u) << "backing id " << id;
  }
  void drop_attributes(InodeId id) override { dropped_attributes.push_back(id); }
  void drop_pages(InodeId id) override { dropped_pages.push_back(id); }

 private:
  std::int32_t last_ = 0;
};

class FilesystemTest : public test::PoolTest {
 protected:
  void prepare() override { mount(make_tiers("abc")); }
  void TearDown() override { create_as(Caller{}); }  // what comes next is made by root again

  void mount(const std::vector<TierSettings>& settings,
             Pool::Missing missing = Pool::Missing::Refuse) {
    fs_.reset();
    pool_.reset();
    pool_ = open(settings, missing);
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{});
  }

  // The id of a path, looked up name by name as the kernel does. Throws if it does not exist.
  InodeId id_of(const std::string& path) { return entry_of(path).id; }
  Entry entry_of(const std::string& path) {
    Entry entry;
    entry.id = kRootId;
    for (std::size_t at = 0; at < path.size();) {
      const std::size_t end = std::min(path.find('/', at), path.size());
      const auto next = fs_->lookup(entry.id, path.substr(at, end - at).c_str());
      if (!next) throw std::runtime_error("lookup " + path + ": " + next.error().operation);
      if (next->id == InodeId{}) throw std::runtime_error("no " + path);
      entry = *next;
      at = end + 1;
    }
    return entry;
  }
  bool has(InodeId parent, const char* name) {
    const auto entry = fs_->lookup(parent, name);
    if (!entry) throw std::runtime_error(entry.error().operation);
    return entry->id != InodeId{};
  }
  std::string read_all(InodeId id) {
    std::string out(4 * kMiB, '\0');
    const auto got = fs_->read(id, out.data(), out.size(), 0, O_RDONLY);
    if (!got) return std::string("error: ") + ::strerrorname_np(got.error().code);
    out.resize(*got);
    return out;
  }
  std::string read_path(const std::string& path) { return read_all(id_of(path)); }
  std::string xattr(const std::string& path, const char* name) {
    const auto value = fs_->getxattr(id_of(path), name);
    return value ? *value : std::string("error: ") + ::strerrorname_np(value.error().code);
  }
  // A listing in steps of `batch` items, each continued by offset as the kernel does.
  std::vector<DirectoryStream::Item> list(InodeId id, std::size_t batch = 1000,
                                          int* code = nullptr) {
    auto stream = fs_->open_directory(id);
    if (!stream) throw std::runtime_error(stream.error().operation);
    std::vector<DirectoryStream::Item> items;
    off_t offset = 0;
    for (;;) {
      std::size_t taken = 0;
      const auto done = (*stream)->read(offset, DirectoryStream::Numbers::Wanted,
                                        [&](const DirectoryStream::Item& item) {
                                          if (taken == batch) return false;
                                          ++taken;
                                          items.push_back(item);
                                          return true;
                                        });
      if (!done && code) *code = done.error().code;
      if (!done || taken == 0) return items;
      offset = items.back().next;
    }
  }
  Names names(InodeId id, std::size_t batch = 1000) {
    Names out;
    for (const auto& item : list(id, batch)) out.push_back(item.name);
    std::ranges::sort(out);
    return out;
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
  FakeKernel kernel_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Filesystem> fs_;
};

}  // namespace sluice
