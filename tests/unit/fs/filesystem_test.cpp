// SPDX-License-Identifier: BSD-2-Clause
// The filesystem's answers, asked for directly: no mount, three directories for tiers.
#include "fs/filesystem.hpp"

#include <dirent.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/xattr.h>

#include <algorithm>
#include <map>
#include <set>

#include "fs/directory_stream.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

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

class NamesTest : public FilesystemTest {};

TEST_F(NamesTest, AreFoundOnEveryTier) {
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "22");
  dir_.make_file("c/d/h", "333");
  for (const auto& [path, size] : {std::pair("f", 1), std::pair("g", 2), std::pair("d/h", 3)}) {
    const Entry entry = entry_of(path);
    EXPECT_EQ(entry.st.st_size, size) << path;
    EXPECT_EQ(entry.st.st_ino, to_number(entry.id)) << path;
    EXPECT_EQ(fs_->getattr(entry.id)->st.st_ino, to_number(entry.id)) << path;
  }
  EXPECT_EQ(read_path("d/h"), "333");
}

TEST_F(NamesTest, ThatDoNotExistMayBeRemembered) {
  const auto entry = fs_->lookup(kRootId, "missing");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, InodeId{});
  EXPECT_GT(entry->entry_seconds, 0);
}

TEST_F(NamesTest, ThatMayBeOnATierThatIsAwayAreNotRememberedAsMissing) {
  dir_.make_file("b/f", "1");
  take_away("b");
  const auto entry = fs_->lookup(kRootId, "f");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, InodeId{});
  EXPECT_EQ(entry->entry_seconds, 0);
  bring_back("b");
  EXPECT_EQ(read_path("f"), "1");
}

TEST_F(NamesTest, OurOwnDirectoryIsHidden) {
  EXPECT_FALSE(has(kRootId, ".sluice"));
  EXPECT_TRUE(failed_with(fs_->mkdir(kRootId, ".sluice", 0755, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->create(kRootId, ".sluice", 0644, O_RDWR, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->mknod(kRootId, ".sluice", S_IFIFO, 0, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->symlink("x", kRootId, ".sluice", kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->unlink(kRootId, ".sluice"), ENOENT));
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, ".sluice"), ENOENT));
  ASSERT_TRUE(fs_->mkdir(kRootId, "d", 0755, kRoot));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "d", kRootId, ".sluice", 0), EPERM));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, ".sluice", kRootId, "x", 0), EPERM));
  EXPECT_TRUE(fs_->mkdir(id_of("d"), ".sluice", 0755, kRoot)) << "elsewhere it is a name like any";
  EXPECT_TRUE(has(id_of("d"), ".sluice"));
  EXPECT_TRUE(test::exists(at("a", ".sluice/tier.json")));
}

TEST_F(NamesTest, OfAFileOnTwoTiersTheFastestCounts) {
  dir_.make_file("b/f", "middle");
  dir_.make_file("c/f", "slow");
  EXPECT_EQ(read_path("f"), "middle");
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "b");
}

TEST_F(NamesTest, OfADirectoryOnTwoTiersAreOne) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("c/d/g", "2");
  EXPECT_EQ(id_of("d"), id_of("d"));
  EXPECT_EQ(read_path("d/f"), "1");
  EXPECT_EQ(read_path("d/g"), "2");
  EXPECT_EQ(xattr("d", "user.sluice.tier"), "a,c");
  EXPECT_EQ(entry_of("d").st.st_nlink, 1u);
}

TEST_F(NamesTest, ANewFileIsMadeOnTheFastestTierAsItsCaller) {
  const auto made = fs_->create(kRootId, "f", 0666, O_RDWR, Caller{1234, 5678, 027});
  ASSERT_TRUE(made);
  const struct stat st = test::lstat_of(at("a", "f"));
  EXPECT_EQ(st.st_uid, 1234u);
  EXPECT_EQ(st.st_gid, 5678u);
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  EXPECT_EQ(made->first.id, id_of("f"));
  EXPECT_EQ(fs_->open_files(), 1u);
  fs_->release(made->first.id, O_RDWR);
  EXPECT_EQ(fs_->open_files(), 0u);
}

TEST_F(NamesTest, CreatingWhatExistsFailsOrOpensIt) {
  dir_.make_file("a/f", "old");
  EXPECT_TRUE(failed_with(fs_->create(kRootId, "f", 0644, O_RDWR | O_EXCL, kRoot), EEXIST));
  const auto opened = fs_->create(kRootId, "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(opened);
  EXPECT_EQ(read_all(opened->first.id), "old");
}

TEST_F(NamesTest, EveryTypeOfFileCanBeMade) {
  ASSERT_TRUE(fs_->mkdir(kRootId, "dir", 0777, Caller{1, 2, 022}));
  ASSERT_TRUE(fs_->symlink("some/target", kRootId, "link", Caller{3, 4, 0}));
  ASSERT_TRUE(fs_->mknod(kRootId, "fifo", S_IFIFO | 0622, 0, Caller{5, 6, 0}));
  EXPECT_EQ(test::lstat_of(at("a", "dir")).st_mode, S_IFDIR | 0755u);
  EXPECT_EQ(test::lstat_of(at("a", "dir")).st_uid, 1u);
  EXPECT_EQ(test::lstat_of(at("a", "link")).st_gid, 4u);
  EXPECT_EQ(test::lstat_of(at("a", "fifo")).st_mode, S_IFIFO | 0622u);
  EXPECT_EQ(*fs_->readlink(id_of("link")), "some/target");
  EXPECT_TRUE(failed_with(fs_->mkdir(kRootId, "dir", 0755, kRoot), EEXIST));
}

TEST_F(NamesTest, ALinkIsMadeOnTheTierOfItsFile) {
  dir_.make_file("b/f", "1");
  dir_.make_dir("a/d");
  const auto linked = fs_->link(id_of("f"), id_of("d"), "g");
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->id, id_of("f"));
  EXPECT_EQ(linked->st.st_nlink, 2u);
  EXPECT_EQ(test::lstat_of(at("b", "d/g")).st_ino, test::lstat_of(at("b", "f")).st_ino);
}

TEST_F(NamesTest, ANewFileBringsItsDirectoriesToItsTier) {
  dir_.make_dir("c/d/e");
  ASSERT_EQ(::chown(at("c", "d").c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(at("c", "d").c_str(), 02771), 0);
  ASSERT_EQ(::setxattr(at("c", "d").c_str(), "user.k", "v", 1, 0), 0);
  const InodeId d = id_of("d"), e = id_of("d/e");
  ASSERT_TRUE(fs_->create(e, "f", 0644, O_RDWR, kRoot));
  EXPECT_TRUE(test::exists(at("a", "d/e/f")));
  EXPECT_EQ(test::lstat_of(at("a", "d")).st_mode, test::lstat_of(at("c", "d")).st_mode);
  EXPECT_EQ(test::lstat_of(at("a", "d")).st_uid, 12u);
  EXPECT_EQ(test::xattr_of(at("a", "d"), "user.k"), "v");
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
  EXPECT_TRUE(test::names_in(at("a", ".sluice/tmp")).empty());
  // The same after a remount, when only the disks remember.
  mount(make_tiers("abc"));
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
}

TEST_F(NamesTest, UnlinkRemovesTheFile) {
  dir_.make_file("b/f", "1");
  ASSERT_TRUE(fs_->unlink(kRootId, "f"));
  EXPECT_FALSE(test::exists(at("b", "f")));
  EXPECT_FALSE(has(kRootId, "f"));
  EXPECT_TRUE(failed_with(fs_->unlink(kRootId, "f"), ENOENT));
}

TEST_F(NamesTest, RmdirRemovesEveryCopy) {
  for (const char* tier : {"a", "b", "c"}) dir_.make_dir(std::string(tier) + "/d");
  id_of("d");
  ASSERT_TRUE(fs_->rmdir(kRootId, "d"));
  for (const char* tier : {"a", "b", "c"}) EXPECT_FALSE(test::exists(at(tier, "d"))) << tier;
}

TEST_F(NamesTest, RmdirLeavesADirectoryWithSomethingOnAnyTier) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  dir_.make_file("c/d/f", "1");
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, "d"), ENOTEMPTY));
  for (const char* tier : {"a", "b", "c"}) EXPECT_TRUE(test::exists(at(tier, "d"))) << tier;
  EXPECT_TRUE(failed_with(fs_->rmdir(id_of("d"), "f"), ENOTDIR));
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, "missing"), ENOENT));
}

TEST_F(NamesTest, RmdirWaitsForATierThatIsAway) {
  dir_.make_dir("a/d");
  dir_.make_file("b/d/f", "1");
  id_of("d");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, "d"), EIO));
  EXPECT_TRUE(test::exists(at("a", "d")));
}

TEST_F(NamesTest, RemovedDirectoriesCanStillBeAskedFor) {
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->rmdir(kRootId, "d"));
  EXPECT_TRUE(fs_->getattr(d)) << "somebody's working directory";
  EXPECT_TRUE(failed_with(fs_->create(d, "f", 0644, O_RDWR, kRoot), ENOENT));
}

TEST_F(NamesTest, ForgottenInodesAreGoneFromMemory) {
  dir_.make_file("a/f", "1");
  const std::size_t before = fs_->known_inodes();
  const InodeId id = id_of("f");
  id_of("f");
  EXPECT_EQ(fs_->known_inodes(), before + 1);
  fs_->forget(id, 1);
  EXPECT_EQ(fs_->known_inodes(), before + 1);
  fs_->forget(id, 1);
  EXPECT_EQ(fs_->known_inodes(), before);
}

TEST_F(NamesTest, AForgottenIdStillNamesItsFile) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  dir_.make_file("b/d/f", "1");
  const InodeId d = id_of("d"), f = id_of("d/f");
  mount(make_tiers("abc"));
  EXPECT_EQ(fs_->getattr(f)->st.st_size, 1);
  EXPECT_TRUE(S_ISDIR(fs_->getattr(d)->st.st_mode));
  EXPECT_EQ(fs_->lookup(d, ".")->id, d);
  ASSERT_EQ(::unlink(at("b", "d/f").c_str()), 0);
  mount(make_tiers("abc"));
  EXPECT_TRUE(failed_with(fs_->getattr(f), ESTALE));
  EXPECT_TRUE(failed_with(fs_->getattr(InodeId{12345}), ESTALE));
}

TEST_F(NamesTest, AnIdDoesNotReachFilesOutsideTheTier) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  const std::string outside = dir_.make_file("outside", "secret");
  const std::string ours = at("a", ".sluice/tier.json");
  for (const std::string& path : {outside, ours}) {
    int mount_id = 0;
    const auto handle = handle_at(AT_FDCWD, path.c_str(), &mount_id);
    ASSERT_TRUE(handle);
    const Identity forged = natural_identity(HandleKind::Ext4, (*pool_)[0].member().slot, *handle);
    EXPECT_TRUE(failed_with(fs_->getattr(forged.id), ESTALE)) << path;
  }
}

TEST_F(NamesTest, ADirectoryLearnsOfItsCopyOnATierThatComesBack) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away-b").c_str()), 0);
  mount({tier("a", dir_ / "a"), tier("b", dir_ / "b"), tier("c", dir_ / "c")},
        Pool::Missing::Tolerate);
  const Entry d = entry_of("d");
  bring_back("b");
  // The kernel asks for "d" again only if it was told not to remember it.
  if (d.entry_seconds == 0) entry_of("d");
  EXPECT_TRUE(has(d.id, "g"));
  EXPECT_EQ(names(d.id), (Names{".", "..", "f", "g"}));
}

class RenameTest : public FilesystemTest {};

TEST_F(RenameTest, OnOneTierKeepsTheFileThere) {
  dir_.make_file("b/f", "1");
  const InodeId id = id_of("f");
  ASSERT_TRUE(fs_->rename(kRootId, "f", kRootId, "g", 0));
  EXPECT_EQ(test::read_file(at("b", "g")), "1");
  EXPECT_EQ(id_of("g"), id);
  EXPECT_FALSE(has(kRootId, "f"));
  EXPECT_EQ(xattr("g", "user.sluice.location"), at("b", "g"));
}

TEST_F(RenameTest, IntoADirectoryOfAnotherTierBringsThatAlong) {
  dir_.make_file("b/f", "1");
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->rename(kRootId, "f", d, "g", 0));
  EXPECT_EQ(test::read_file(at("b", "d/g")), "1");
  EXPECT_EQ(id_of("d"), d);
}

TEST_F(RenameTest, OfADirectoryRenamesEveryCopy) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_dir("c/to");
  const InodeId d = id_of("d"), to = id_of("to");
  ASSERT_TRUE(fs_->rename(kRootId, "d", to, "e", 0));
  EXPECT_EQ(test::read_file(at("a", "to/e/f")), "1");
  EXPECT_EQ(test::read_file(at("b", "to/e/g")), "2");
  EXPECT_FALSE(test::exists(at("a", "d")) || test::exists(at("b", "d")));
  EXPECT_EQ(id_of("to/e"), d);
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(RenameTest, OverAFileOnAnotherTierReplacesIt) {
  for (const auto& [from, to] : {std::pair("a", "b"), std::pair("c", "b")}) {
    dir_.make_file(std::string(from) + "/src", "new");
    dir_.make_file(std::string(to) + "/dst", "old");
    const InodeId id = id_of("src");
    id_of("dst");
    ASSERT_TRUE(fs_->rename(kRootId, "src", kRootId, "dst", 0));
    EXPECT_EQ(test::read_file(at(from, "dst")), "new");
    EXPECT_FALSE(test::exists(at(to, "dst")));
    EXPECT_EQ(id_of("dst"), id);
    EXPECT_EQ(read_path("dst"), "new");
    ASSERT_TRUE(fs_->unlink(kRootId, "dst"));
  }
}

TEST_F(RenameTest, ExchangesAcrossTiers) {
  dir_.make_file("a/x", "1");
  dir_.make_file("b/y", "2");
  const InodeId x = id_of("x"), y = id_of("y");
  ASSERT_TRUE(fs_->rename(kRootId, "x", kRootId, "y", RENAME_EXCHANGE));
  EXPECT_EQ(read_path("x"), "2");
  EXPECT_EQ(read_path("y"), "1");
  EXPECT_EQ(id_of("x"), y);
  EXPECT_EQ(id_of("y"), x);
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "x", kRootId, "nothing", RENAME_EXCHANGE), ENOENT));
}

TEST_F(RenameTest, RefusesWhatTheRulesForbid) {
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "2");
  dir_.make_dir("a/empty");
  dir_.make_dir("a/full");
  dir_.make_file("c/full/x", "3");
  const std::string before = shown("abc");
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "f", kRootId, "g", RENAME_NOREPLACE), EEXIST));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "missing", kRootId, "g", 0), ENOENT));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "f", kRootId, "empty", 0), EISDIR));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "empty", kRootId, "f", 0), ENOTDIR));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "empty", kRootId, "full", 0), ENOTEMPTY));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "f", kRootId, "h", RENAME_WHITEOUT), EINVAL));
  EXPECT_EQ(shown("abc"), before);
}

TEST_F(RenameTest, OverAnEmptyMergedDirectoryReplacesEveryCopy) {
  dir_.make_file("a/d/f", "1");
  dir_.make_dir("b/e");
  dir_.make_dir("c/e");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->rename(kRootId, "d", kRootId, "e", 0));
  EXPECT_EQ(read_path("e/f"), "1");
  EXPECT_EQ(id_of("e"), d);
  EXPECT_FALSE(test::exists(at("b", "e")) || test::exists(at("c", "e")));
}

TEST_F(RenameTest, OfADirectoryPartOfWhichIsAwayIsRefused) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  id_of("d");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "d", kRootId, "e", 0), EIO));
  bring_back("b");
  EXPECT_FALSE(test::exists(at("a", "e")) && test::exists(at("b", "d")))
      << "one directory has become two";
}

TEST_F(RenameTest, OverADirectoryPartOfWhichIsAwayIsRefused) {
  dir_.make_file("a/d/f", "1");
  dir_.make_dir("a/e");
  dir_.make_file("b/e/hidden", "2");
  id_of("e");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "d", kRootId, "e", 0), EIO))
      << "it is not known to be empty";
}

TEST_F(RenameTest, IsAllOrNothingWhicheverCallOfTheStoreFails) {
  for (std::uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 20u);
    const std::string from = "d" + std::to_string(nth), to = "e" + std::to_string(nth);
    dir_.make_file("a/" + from + "/f", "1");
    dir_.make_file("b/" + from + "/g", "2");
    id_of(from);
    store_.fail_call(nth);
    const auto done = fs_->rename(kRootId, from.c_str(), kRootId, to.c_str(), 0);
    const bool failed = store_.has_failed();
    store_.fail_call(0);
    const std::string& now = done ? to : from;
    EXPECT_TRUE(has(kRootId, now.c_str())) << "call " << nth;
    if (has(kRootId, now.c_str())) {
      EXPECT_EQ(names(id_of(now)), (Names{".", "..", "f", "g"})) << "call " << nth;
    }
    if (!failed) break;
  }
}

class ListingTest : public FilesystemTest {};

TEST_F(ListingTest, OfOneTierShowsEveryName) {
  Names expected{".", ".."};
  for (int i = 0; i < 300; ++i) {
    expected.push_back("file" + std::to_string(i));
    dir_.make_file("b/d/" + expected.back(), "");
  }
  std::ranges::sort(expected);
  for (const std::size_t batch : {1000u, 7u, 1u}) EXPECT_EQ(names(id_of("d"), batch), expected);
}

TEST_F(ListingTest, OfSeveralTiersShowsEveryNameOnce) {
  Names expected{".", ".."};
  for (int i = 0; i < 100; ++i) {
    const std::string name = "file" + std::to_string(i);
    expected.push_back(name);
    if (i % 2 == 0 || i % 3 == 0) dir_.make_file("a/d/" + name, "");
    if (i % 3 != 1) dir_.make_file("b/d/" + name, "");
    if (i % 2 == 1) dir_.make_file("c/d/" + name, "");
    if (!test::exists(at("a", "d/" + name)) && !test::exists(at("b", "d/" + name)) &&
        !test::exists(at("c", "d/" + name))) {
      expected.pop_back();
    }
  }
  std::ranges::sort(expected);
  for (const std::size_t batch : {1000u, 7u, 1u}) EXPECT_EQ(names(id_of("d"), batch), expected);
}

TEST_F(ListingTest, OfTheRootHidesOurDirectory) {
  dir_.make_file("a/f", "");
  dir_.make_file("c/g", "");
  EXPECT_EQ(names(kRootId), (Names{".", "..", "f", "g"}));
  EXPECT_EQ(names(kRootId, 1), (Names{".", "..", "f", "g"}));
}

TEST_F(ListingTest, OfTheRootOfOneTierHidesOurDirectory) {
  dir_.make_file("solo/f", "");
  mount({tier("solo", dir_ / "solo")});
  EXPECT_EQ(names(kRootId, 1), (Names{".", "..", "f"}));
}

TEST_F(ListingTest, TellsTheNumbersThatStatTells) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  dir_.make_dir("c/d/sub");
  const InodeId d = id_of("d");
  std::set<std::uint64_t> numbers;
  for (const auto& item : list(d)) {
    EXPECT_TRUE(numbers.insert(item.inode_number).second) << item.name;
    if (item.name == ".") {
      EXPECT_EQ(item.inode_number, to_number(d));
    } else if (item.name == "..") {
      EXPECT_EQ(item.inode_number, to_number(kRootId));
    } else {
      EXPECT_EQ(item.inode_number, to_number(id_of("d/" + item.name))) << item.name;
      EXPECT_EQ(item.type, item.name == "sub" ? DT_DIR : DT_REG) << item.name;
    }
  }
}

TEST_F(ListingTest, FromTheStartSeesWhatIsNew) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  const auto stream = *fs_->open_directory(id_of("d"));
  const auto count = [&] {
    int items = 0;
    EXPECT_TRUE(stream->read(0, DirectoryStream::Numbers::NotWanted,
                             [&](const DirectoryStream::Item&) { return ++items, true; }));
    return items;
  };
  EXPECT_EQ(count(), 4);
  dir_.make_file("a/d/h", "");
  EXPECT_EQ(count(), 5);
  ASSERT_EQ(::unlink(at("b", "d/g").c_str()), 0);
  EXPECT_EQ(count(), 4);
}

TEST_F(ListingTest, OfADirectoryPartOfWhichIsAwayEndsInAnError) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  const InodeId d = id_of("d");
  take_away("b");
  int code = 0;
  const auto items = list(d, 1000, &code);
  EXPECT_EQ(code, EIO);
  EXPECT_EQ(items.size(), 3u);
  bring_back("b");
  EXPECT_EQ(names(d), (Names{".", "..", "f", "g"}));
}

class AttributesTest : public FilesystemTest {};

TEST_F(AttributesTest, SluiceTellsWhereAFileIsAndHowOftenItWasOpened) {
  dir_.make_file("b/d/f", "1");
  EXPECT_EQ(xattr("d/f", "user.sluice.tier"), "b");
  EXPECT_EQ(xattr("d/f", "user.sluice.location"), at("b", "d/f"));
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "0");
  const InodeId id = id_of("d/f");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(fs_->open(id, O_RDONLY, kOpener, std::nullopt));
    fs_->release(id, O_RDONLY);
  }
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "3");
  EXPECT_EQ(fs_->opens(), 3u);
  ASSERT_TRUE(fs_->flush_heat());
  EXPECT_EQ(store_.heat(id)->opens, 3u);
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "3");
  EXPECT_EQ(xattr("d", "user.sluice.accesses"), "error: ENODATA");
  EXPECT_EQ(xattr("d/f", "user.sluice.nonsense"), "error: ENODATA");
}

TEST_F(AttributesTest, WhatSluiceTellsIsNotListedAndCannotBeSet) {
  dir_.make_file("a/f", "1");
  const InodeId id = id_of("f");
  EXPECT_EQ(*fs_->listxattr(id, kRoot), "");
  EXPECT_TRUE(failed_with(fs_->setxattr(id, "user.sluice.location", "b", 1, 0, kRoot), EPERM));
}

TEST_F(AttributesTest, TheCarriedIdentityIsInvisible) {
  dir_.make_dir("c/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->create(d, "f", 0644, O_RDWR, kRoot));
  ASSERT_TRUE(test::xattr_of(at("a", "d"), kIdentityXattr)) << "nothing is there to hide";
  EXPECT_EQ(*fs_->listxattr(d, kRoot), "");
  EXPECT_TRUE(failed_with(fs_->getxattr(d, kIdentityXattr), ENODATA));
  EXPECT_TRUE(failed_with(fs_->setxattr(d, kIdentityXattr, "x", 1, 0, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->removexattr(d, kIdentityXattr), ENODATA));
  EXPECT_TRUE(test::xattr_of(at("a", "d"), kIdentityXattr));
}

TEST_F(AttributesTest, XattrsComeAndGo) {
  dir_.make_file("a/f", "1");
  const InodeId id = id_of("f");
  EXPECT_TRUE(failed_with(fs_->getxattr(id, "user.k"), ENODATA));
  ASSERT_TRUE(fs_->setxattr(id, "user.k", "value", 5, 0, kRoot));
  EXPECT_EQ(*fs_->getxattr(id, "user.k"), "value");
  EXPECT_EQ(*fs_->listxattr(id, kRoot), std::string("user.k\0", 7));
  EXPECT_TRUE(failed_with(fs_->setxattr(id, "user.k", "x", 1, XATTR_CREATE, kRoot), EEXIST));
  const std::string large = test::pattern(2000, 1);
  ASSERT_TRUE(fs_->setxattr(id, "user.large", large.data(), large.size(), 0, kRoot));
  EXPECT_EQ(*fs_->getxattr(id, "user.large"), large);
  ASSERT_TRUE(fs_->removexattr(id, "user.k"));
  EXPECT_TRUE(failed_with(fs_->getxattr(id, "user.k"), ENODATA));
}

TEST_F(AttributesTest, OfADirectoryAreSetOnEveryCopy) {
  dir_.make_dir("a/d");
  dir_.make_dir("c/d");
  const InodeId d = id_of("d");
  AttributeChange change;
  change.mode = 02750;
  change.uid = 12;
  change.gid = 34;
  ASSERT_TRUE(fs_->setattr(d, change));
  ASSERT_TRUE(fs_->setxattr(d, "user.k", "v", 1, 0, kRoot));
  for (const char* tier : {"a", "c"}) {
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_mode & 07777, 02750u) << tier;
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_uid, 12u) << tier;
    EXPECT_EQ(test::xattr_of(at(tier, "d"), "user.k"), "v") << tier;
  }
  ASSERT_TRUE(fs_->removexattr(d, "user.k"));
  EXPECT_EQ(test::xattr_of(at("c", "d"), "user.k"), std::nullopt);
  EXPECT_TRUE(failed_with(fs_->removexattr(d, "user.k"), ENODATA));
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(AttributesTest, OfAFileAreSet) {
  dir_.make_file("b/f", "123456");
  const InodeId id = id_of("f");
  AttributeChange change;
  change.mode = 0600;
  change.uid = 7;
  change.size = 3;
  change.mtime = timespec{1000, 5};
  const auto after = fs_->setattr(id, change);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->st.st_size, 3);
  EXPECT_EQ(after->st.st_mode & 07777, 0600u);
  EXPECT_EQ(after->st.st_mtim.tv_sec, 1000);
  EXPECT_EQ(after->st.st_mtim.tv_nsec, 5);
  EXPECT_EQ(test::read_file(at("b", "f")), "123");
  EXPECT_EQ(test::lstat_of(at("b", "f")).st_uid, 7u);
}

TEST_F(AttributesTest, TiersOnOneFilesystemShareItsRoom) {
  struct statvfs native {};
  ASSERT_EQ(::statvfs(dir_.path().c_str(), &native), 0);
  const auto ours = fs_->statfs();
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->f_blocks * ours->f_frsize, native.f_blocks * native.f_frsize);
  EXPECT_LE(ours->f_bavail, ours->f_blocks);
}

// What the kernel does itself (passthrough: a backing id) and what it asks us for.
class OpenTest : public FilesystemTest {
 protected:
  void prepare() override {
    FilesystemTest::prepare();
    dir_.make_file("a/small", "content");
    test::write_file(at("a", "large"), test::pattern(256 << 10, 1));
    small_ = id_of("small");
    large_ = id_of("large");
  }
  Opened open(InodeId id, int flags) {
    const auto opened = fs_->open(id, flags, kOpener, std::nullopt);
    if (!opened) throw std::runtime_error(opened.error().operation);
    return *opened;
  }

  InodeId small_{}, large_{};
};

TEST_F(OpenTest, ASmallFileForReadingStaysInThePageCache) {
  const Opened opened = open(small_, O_RDONLY);
  EXPECT_EQ(opened.backing_id, 0);
  EXPECT_TRUE(opened.keep_pages);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_EQ(read_all(small_), "content");
  fs_->release(small_, O_RDONLY);
}

TEST_F(OpenTest, ALargeFileIsPassedThrough) {
  const Opened opened = open(large_, O_RDONLY);
  EXPECT_NE(opened.backing_id, 0);
  ASSERT_EQ(kernel_.live.size(), 1u);
  EXPECT_EQ(kernel_.live.at(opened.backing_id), test::lstat_of(at("a", "large")).st_ino);
  fs_->release(large_, O_RDONLY);
  EXPECT_TRUE(kernel_.live.empty());
}

TEST_F(OpenTest, AFileForWritingIsPassedThroughWhateverItsSize) {
  for (const int flags : {O_WRONLY, O_RDWR}) {
    EXPECT_NE(open(small_, flags).backing_id, 0);
    fs_->release(small_, flags);
  }
  const auto made = fs_->create(kRootId, "new", 0644, O_WRONLY, kRoot);
  ASSERT_TRUE(made);
  EXPECT_NE(made->second.backing_id, 0);
  fs_->release(made->first.id, O_WRONLY);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_TRUE(kernel_.all_read_only) << "a writable backing file would defeat every lease";
}

TEST_F(OpenTest, TheSecondOpenSharesTheFirstOnesWay) {
  EXPECT_EQ(open(small_, O_RDONLY).backing_id, 0);
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0) << "pages are cached already";
  fs_->release(small_, O_RDONLY);
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0);
  fs_->release(small_, O_RDWR);
  fs_->release(small_, O_RDWR);

  const std::int32_t id = open(small_, O_RDWR).backing_id;
  EXPECT_NE(id, 0) << "after the last close the choice is free again";
  EXPECT_EQ(open(small_, O_RDONLY).backing_id, id);
  EXPECT_EQ(kernel_.live.size(), 1u);
  fs_->release(small_, O_RDWR);
  EXPECT_EQ(kernel_.live.size(), 1u);
  fs_->release(small_, O_RDONLY);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_EQ(fs_->open_files(), 0u);
}

TEST_F(OpenTest, PagesAreStaleAfterAPassthroughWriter) {
  EXPECT_TRUE(open(small_, O_RDONLY).keep_pages);
  fs_->release(small_, O_RDONLY);
  open(small_, O_RDWR);
  fs_->release(small_, O_RDWR);
  EXPECT_FALSE(open(small_, O_RDONLY).keep_pages);
  fs_->release(small_, O_RDONLY);
  EXPECT_TRUE(open(small_, O_RDONLY).keep_pages) << "they were dropped by the open before";
  fs_->release(small_, O_RDONLY);
}

TEST_F(OpenTest, AttributesOfAFileWithAPassthroughWriterAreNotRemembered) {
  EXPECT_GT(fs_->getattr(small_)->seconds, 0);
  open(small_, O_RDWR);
  EXPECT_EQ(fs_->getattr(small_)->seconds, 0);
  fs_->release(small_, O_RDWR);
  EXPECT_GT(fs_->getattr(small_)->seconds, 0);
}

TEST_F(OpenTest, OnACrowdedTierWeSeeTheWrites) {
  auto settings = make_tiers("abc");
  settings[0].reserve = UINT64_MAX;
  mount(settings);
  small_ = id_of("small");
  large_ = id_of("large");
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0);
  EXPECT_NE(open(large_, O_RDONLY).backing_id, 0) << "reading needs no room";
  ASSERT_TRUE(fs_->write(small_, "CON", 3, 0, std::nullopt));
  EXPECT_EQ(test::read_file(at("a", "small")), "CONtent");
  fs_->release(small_, O_RDWR);
  fs_->release(large_, O_RDONLY);
}

TEST_F(OpenTest, WithoutPassthroughWeServeEverything) {
  kernel_.refuse = true;
  EXPECT_EQ(open(large_, O_RDONLY).backing_id, 0);
  EXPECT_EQ(read_all(large_), test::pattern(256 << 10, 1));
  fs_->release(large_, O_RDONLY);
  kernel_.refuse = false;
  fs_->serve_everything();
  EXPECT_EQ(open(large_, O_RDWR).backing_id, 0);
  fs_->release(large_, O_RDWR);
}

TEST_F(OpenTest, AFileThatIsOpenButWasNeverReadSurvivesItsName) {
  open(small_, O_RDONLY);
  ASSERT_TRUE(fs_->unlink(kRootId, "small"));
  EXPECT_FALSE(test::exists(at("a", "small")));
  EXPECT_EQ(read_all(small_), "content");
  EXPECT_EQ(fs_->getattr(small_)->st.st_nlink, 0u);
  fs_->release(small_, O_RDONLY);
}

TEST_F(OpenTest, AFileThatIsOpenButWasNeverReadSurvivesBeingReplaced) {
  for (const char* tier : {"a", "b"}) {
    dir_.make_file("a/victim", "content");
    dir_.make_file(std::string(tier) + "/other", "other");
    const InodeId victim = id_of("victim");
    open(victim, O_RDONLY);
    ASSERT_TRUE(fs_->rename(kRootId, "other", kRootId, "victim", 0));
    EXPECT_EQ(read_all(victim), "content") << tier;
    EXPECT_EQ(read_path("victim"), "other") << tier;
    fs_->release(victim, O_RDONLY);
    ASSERT_TRUE(fs_->unlink(kRootId, "victim"));
  }
}

TEST_F(OpenTest, AnUnlinkedFileWorksUntilItIsClosed) {
  for (const bool passthrough : {true, false}) {
    kernel_.refuse = !passthrough;
    const auto made = fs_->create(kRootId, "f", 0644, O_RDWR, kRoot);
    ASSERT_TRUE(made);
    const InodeId id = made->first.id;
    ASSERT_TRUE(fs_->unlink(kRootId, "f"));
    ASSERT_TRUE(fs_->write(id, "written", 7, 0, std::nullopt));
    EXPECT_EQ(read_all(id), "written");
    AttributeChange change;
    change.size = 4;
    change.mode = 0600;
    ASSERT_TRUE(fs_->setattr(id, change));
    EXPECT_EQ(read_all(id), "writ");
    EXPECT_EQ(fs_->getattr(id)->st.st_nlink, 0u);
    fs_->release(id, O_RDWR);
    fs_->forget(id, 1);
    EXPECT_TRUE(failed_with(fs_->getattr(id), ESTALE));
  }
}

TEST_F(OpenTest, AnUnnamedFileCanBeUsedAndNamed) {
  const auto made = fs_->create_unnamed(kRootId, 0600, O_RDWR, Caller{12, 34, 0});
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_TRUE(fs_->write(id, "x", 1, 0, std::nullopt));
  EXPECT_EQ(fs_->getattr(id)->st.st_uid, 12u);
  EXPECT_EQ(names(kRootId), (Names{".", "..", "large", "small"}));
  ASSERT_TRUE(fs_->link(id, kRootId, "named"));
  EXPECT_EQ(read_path("named"), "x");
  EXPECT_EQ(id_of("named"), id);
  fs_->release(id, O_RDWR);
}

TEST_F(OpenTest, TruncatingEmptiesAndDropsSetuid) {
  ASSERT_EQ(::chmod(at("a", "small").c_str(), 06755), 0);
  ASSERT_TRUE(fs_->open(small_, O_WRONLY | O_TRUNC, kOpener, kUser));
  EXPECT_EQ(test::lstat_of(at("a", "small")).st_size, 0);
  EXPECT_EQ(test::lstat_of(at("a", "small")).st_mode & 07777, 0755u);
  fs_->release(small_, O_WRONLY);
}

TEST_F(OpenTest, OnATierThatIsAwayFails) {
  dir_.make_file("b/f", "1");
  const InodeId id = id_of("f");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->open(id, O_RDONLY, kOpener, std::nullopt), EIO));
  EXPECT_TRUE(failed_with(fs_->getattr(id), EIO));
  EXPECT_EQ(fs_->open_files(), 0u);
  bring_back("b");
  EXPECT_TRUE(fs_->open(id, O_RDONLY, kOpener, std::nullopt));
  EXPECT_EQ(read_all(id), "1");
  fs_->release(id, O_RDONLY);
}

class BytesTest : public FilesystemTest {
 protected:
  InodeId make(const char* name) {
    const auto made = fs_->create(kRootId, name, 0644, O_RDWR, kRoot);
    if (!made) throw std::runtime_error(made.error().operation);
    return made->first.id;
  }
};

TEST_F(BytesTest, AreReadBackAsWritten) {
  const InodeId id = make("f");
  EXPECT_EQ(*fs_->write(id, "world", 5, 6, std::nullopt), 5u);
  EXPECT_EQ(*fs_->write(id, "hello ", 6, 0, std::nullopt), 6u);
  EXPECT_EQ(read_all(id), "hello world");
  char buffer[8];
  EXPECT_EQ(*fs_->read(id, buffer, sizeof buffer, 8, O_RDONLY), 3u)
      << "short at the end of the file";
  EXPECT_EQ(*fs_->read(id, buffer, sizeof buffer, 100, O_RDONLY), 0u);
  EXPECT_TRUE(fs_->sync(id, false));
  EXPECT_TRUE(fs_->sync(id, true));
  fs_->release(id, O_RDWR);
}

TEST_F(BytesTest, AWriterWithoutPrivilegeDropsSetuid) {
  const InodeId id = make("f");
  ASSERT_EQ(::chmod(at("a", "f").c_str(), 04755), 0);
  ASSERT_TRUE(fs_->write(id, "x", 1, 0, std::nullopt));
  EXPECT_EQ(test::lstat_of(at("a", "f")).st_mode & 07777, 04755u);
  ASSERT_TRUE(fs_->write(id, "x", 1, 0, kUser));
  EXPECT_EQ(test::lstat_of(at("a", "f")).st_mode & 07777, 0755u);
  fs_->release(id, O_RDWR);
}

TEST_F(BytesTest, HolesAreFoundAndFilled) {
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->write(id, "x", 1, kMiB, std::nullopt));
  EXPECT_EQ(*fs_->seek(id, 0, SEEK_DATA), static_cast<off_t>(kMiB));
  ASSERT_TRUE(fs_->allocate(id, 0, 0, 2 * kMiB));
  EXPECT_EQ(fs_->getattr(id)->st.st_size, static_cast<off_t>(2 * kMiB));
  EXPECT_TRUE(failed_with(fs_->seek(id, 3 * kMiB, SEEK_DATA), ENXIO));
  fs_->release(id, O_RDWR);
}

TEST_F(BytesTest, AreCopiedBetweenFiles) {
  const InodeId from = make("from"), to = make("to");
  ASSERT_TRUE(fs_->write(from, "0123456789", 10, 0, std::nullopt));
  EXPECT_EQ(*fs_->copy_range(from, 2, to, 0, 5), 5u);
  EXPECT_EQ(read_all(to), "23456");
  fs_->release(from, O_RDWR);
  fs_->release(to, O_RDWR);
}

// Small disks of their own, because only they can be full.
class SpillTest : public FilesystemTest {
 protected:
  void prepare() override {
    if (!test::require_loop("unit", "ext4")) return;
    fast_ = std::make_unique<test::LoopFs>(dir_ / "fast", "ext4", 64 * kMiB);
    slow_ = std::make_unique<test::LoopFs>(dir_ / "slow", "ext4", 64 * kMiB);
    std::vector settings{tier("fast", fast_->path()), tier("slow", slow_->path())};
    for (TierSettings& s : settings) {
      s.high_watermark = 100;
      s.reserve = 0;
    }
    kernel_.refuse = true;  // we can move only what we serve
    mount(settings);
  }
  void TearDown() override {
    fs_.reset();
    pool_.reset();
    FilesystemTest::TearDown();
  }
  // Leaves about `bytes` of room on a disk.
  static void fill(const test::LoopFs& disk, std::uint64_t bytes) {
    const std::string path = disk.path() + "/ballast";
    test::write_file(path, "");
    struct statfs fs {};
    ASSERT_EQ(::statfs(disk.path().c_str(), &fs), 0);
    const std::uint64_t free = fs.f_bavail * static_cast<std::uint64_t>(fs.f_bsize);
    ASSERT_EQ(::posix_fallocate(test::open_file(path).get(), 0, static_cast<off_t>(free - bytes)),
              0);
  }
  InodeId make(const char* name) {
    const auto made = fs_->create(kRootId, name, 0640, O_RDWR, Caller{12, 34, 0});
    if (!made) throw std::runtime_error(made.error().operation);
    return made->first.id;
  }
  // Writes the pattern from `from` to `to` in pieces; how far it came.
  std::size_t write(InodeId id, std::size_t from, std::size_t to) {
    constexpr std::size_t kPiece = 128 << 10;
    for (std::size_t at = from; at < to; at += kPiece) {
      const auto put = fs_->write(id, content_.data() + at, std::min(kPiece, to - at),
                                  static_cast<off_t>(at), std::nullopt);
      if (!put) {
        code_ = put.error().code;
        return at;
      }
      if (*put < std::min(kPiece, to - at)) return at + *put;
    }
    return to;
  }
  std::string head(std::size_t size) const { return content_.substr(0, size); }

  std::unique_ptr<test::LoopFs> fast_, slow_;
  const std::string content_ = test::pattern(4 * kMiB, 7);
  int code_ = 0;
};

TEST_F(SpillTest, AFileThatOutgrowsItsTierMovesOn) {
  fill(*fast_, 2 * kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->setxattr(id, "user.k", "v", 1, 0, kRoot));
  ASSERT_EQ(xattr("f", "user.sluice.tier"), "fast");
  ASSERT_EQ(write(id, 0, 4 * kMiB), 4 * kMiB) << ::strerrorname_np(code_);
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "slow");
  EXPECT_FALSE(test::exists(fast_->path() + "/f"));
  EXPECT_TRUE(test::read_file(slow_->path() + "/f") == content_);
  EXPECT_TRUE(read_all(id) == content_);
  EXPECT_EQ(id_of("f"), id);
  EXPECT_EQ(fs_->getattr(id)->st.st_uid, 12u);
  EXPECT_EQ(fs_->getattr(id)->st.st_mode & 07777, 0640u);
  EXPECT_EQ(*fs_->getxattr(id, "user.k"), "v");
  EXPECT_EQ(intents_in(store_), 0u);
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->release(id, O_RDWR);
  ASSERT_TRUE(fs_->open(id, O_RDONLY, kOpener, std::nullopt));
  EXPECT_TRUE(read_all(id) == content_);
  fs_->release(id, O_RDONLY);
}

TEST_F(SpillTest, BringsTheDirectoryAlong) {
  ASSERT_TRUE(fs_->mkdir(kRootId, "d", 0750, kRoot));
  fill(*fast_, kMiB);
  const InodeId d = id_of("d");
  const auto made = fs_->create(d, "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  ASSERT_EQ(write(made->first.id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(test::exists(slow_->path() + "/d/f"));
  EXPECT_EQ(test::lstat_of(slow_->path() + "/d").st_mode & 07777, 0750u);
  EXPECT_EQ(id_of("d"), d);
  fs_->release(made->first.id, O_RDWR);
}

TEST_F(SpillTest, WithoutRoomAnywhereIsEnospcAndLosesNothing) {
  fill(*fast_, 2 * kMiB);
  fill(*slow_, kMiB);
  const InodeId id = make("f");
  const std::size_t written = write(id, 0, 4 * kMiB);
  EXPECT_LT(written, 4 * kMiB);
  EXPECT_GT(written, kMiB);
  EXPECT_TRUE(failed_with(
      fs_->write(id, content_.data(), kMiB, static_cast<off_t>(written), std::nullopt), ENOSPC));
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "fast");
  EXPECT_TRUE(read_all(id).substr(0, written) == head(written));
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AFileWithTwoNamesStays) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->link(id, kRootId, "g"));
  EXPECT_LT(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "fast");
  EXPECT_FALSE(test::exists(slow_->path() + "/f"));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AnUnlinkedFileMovesToo) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->unlink(kRootId, "f"));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(read_all(id) == head(3 * kMiB));
  EXPECT_FALSE(test::exists(slow_->path() + "/f"));
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AFileRenamedMeanwhileMovesUnderItsNewName) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->rename(kRootId, "f", kRootId, "g", 0));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(test::read_file(slow_->path() + "/g") == head(3 * kMiB));
  EXPECT_FALSE(test::exists(fast_->path() + "/g") || test::exists(slow_->path() + "/f"));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AllocatingMovesToo) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_EQ(write(id, 0, 1000), 1000u);
  ASSERT_TRUE(fs_->allocate(id, 0, 0, 8 * kMiB));
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "slow");
  EXPECT_EQ(read_all(id).substr(0, 1000), head(1000));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, NothingWrittenIsLostWhicheverCallOfTheStoreFails) {
  fill(*fast_, kMiB);
  for (std::uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 20u);
    const std::string name = "f" + std::to_string(nth);
    const InodeId id = make(name.c_str());
    store_.fail_call(nth);
    const std::size_t written = write(id, 0, 2 * kMiB);
    const bool failed = store_.has_failed();
    store_.fail_call(0);
    EXPECT_TRUE(read_all(id).substr(0, written) == head(written)) << "call " << nth;
    fs_->release(id, O_RDWR);
    // The kernel still knows the inode and opens it again by its id.
    const auto again = fs_->open(id, O_RDONLY, kOpener, std::nullopt);
    EXPECT_TRUE(again) << "call " << nth;
    EXPECT_TRUE(read_all(id).substr(0, written) == head(written)) << "call " << nth;
    if (again) fs_->release(id, O_RDONLY);
    ASSERT_TRUE(replay_intents(store_, *pool_));
    pool_->clear_temporaries();
    EXPECT_TRUE(read_path(name).substr(0, written) == head(written))
        << "call " << nth << ", after replay";
    EXPECT_EQ(id_of(name), id) << "call " << nth;
    if (!failed) break;
    ASSERT_TRUE(fs_->unlink(kRootId, name.c_str()));
  }
}

}  // namespace
}  // namespace sluice
