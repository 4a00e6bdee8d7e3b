// SPDX-License-Identifier: BSD-2-Clause
// A Filesystem for tests: no mount, three directories as tiers.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fs/core/tree/directory_stream.hpp"
#include "tests/unit/fs/direct_filesystem.hpp"

namespace sluice {

using NameList = std::vector<std::string>;

// The kernel's side of the mount. It records its passthrough table and the attributes that it had
// to drop.
class FakeKernel final : public KernelSide {
 public:
  bool refuse = false;
  std::map<std::int32_t, ino_t> live;  // inode numbers of the registered files
  bool all_read_only = true;
  std::vector<InodeId> dropped_attributes, dropped_pages;
  int names_dropped = 0;

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
  bool drop_all_names() override {
    ++names_dropped;
    return true;
  }
  void drop_name(InodeId, const std::string&) override {}

 private:
  std::int32_t last_ = 0;
};

class FilesystemTest : public DirectFilesystem<FakeKernel> {
 protected:
  void prepare() override { mount(make_tiers("abc")); }
  void TearDown() override {
    const CreateAs root(Caller{});
  }  // later tests create files as root again

  void mount(const std::vector<TierSettings>& settings,
             Pool::Missing missing = Pool::Missing::Refuse) {
    fs_.reset();
    pool_.reset();
    pool_ = open(settings, missing);
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{});
  }

  // Lists a directory in steps of `batch` items, each continued by offset as the kernel does.
  std::vector<DirectoryStream::Item> list(InodeId id, std::size_t batch = 1000,
                                          int* code = nullptr) {
    auto stream = fs_->names().open_directory(id);
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
  NameList names(InodeId id, std::size_t batch = 1000) {
    NameList out;
    for (const auto& item : list(id, batch)) out.push_back(item.name);
    std::ranges::sort(out);
    return out;
  }
};

}  // namespace sluice
