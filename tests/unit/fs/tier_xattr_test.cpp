// SPDX-License-Identifier: BSD-2-Clause
// The virtual xattrs user.sluice.*, with which users see and choose the tier of a file.

#include <nlohmann/json.hpp>

#include "tests/support/wait.hpp"
#include "tests/unit/fs/moving_filesystem.hpp"
#include "tiering/pool/pin.hpp"

namespace sluice {
namespace {

using test::eventually;

class TierXattrTest : public FileMoveTest {};

TEST_F(TierXattrTest, SettingTheTierMovesTheFile) {
  dir_.make_file("a/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "c"), 0);
  EXPECT_TRUE(eventually([&] { return where("f") == "c"; }));
  EXPECT_TRUE(eventually([&] { return xattr("f", "user.sluice.tier") == "c"; }));
  EXPECT_TRUE(eventually([&] { return store_.receipts(1)->size() == 1; }));
  EXPECT_EQ(store_.receipts(1)->at(0).path, "/f");
}

TEST_F(TierXattrTest, SettingTheCurrentTierChangesNothing) {
  dir_.make_file("a/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "a"), 0);
  EXPECT_EQ(fs_->migration()->mover().destination(id_of("f")), std::nullopt);
  EXPECT_EQ(where("f"), "a");
}

TEST_F(TierXattrTest, RemovingTheTierWithdrawsTheMove) {
  dir_.make_file("a/f", "content");
  migrate();
  const InodeId id = id_of("f");
  const auto remove = [&] {
    const auto removed = fs_->xattrs().remove(id, "user.sluice.tier", {});
    return removed ? 0 : removed.error().code;
  };
  EXPECT_EQ(remove(), ENODATA);
  open_file(id, O_RDWR);
  ASSERT_EQ(set_xattr("f", "user.sluice.tier", "b"), 0);
  ASSERT_TRUE(eventually([&] { return fs_->migration()->mover().is_waiting(id); }));
  EXPECT_EQ(remove(), 0);
  EXPECT_EQ(remove(), ENODATA);
  fs_->files().release(id, O_RDWR);
  fs_->migration()->mover().wait_idle([] { return false; });
  EXPECT_EQ(where("f"), "a");
}

TEST_F(TierXattrTest, AFileThatIsDeletedHasNoMoveAnyMore) {
  for (const char* name : {"f", "kept", "name"}) dir_.make_file(std::string("a/") + name, "x");
  dir_.make_file("a/new", "x");
  migrate();
  Mover& mover = fs_->migration()->mover();
  const InodeId f = id_of("f"), kept = id_of("kept"), replaced = id_of("name");
  id_of("new");  // a rename needs names that the kernel has looked up
  for (const InodeId id : {f, kept, replaced}) open_file(id, O_RDWR);
  for (const char* name : {"f", "kept", "name"})
    ASSERT_EQ(set_xattr(name, "user.sluice.tier", "b"), 0);
  for (const InodeId id : {f, kept, replaced})
    ASSERT_TRUE(eventually([&] { return mover.is_waiting(id); }));
  ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
  ASSERT_TRUE(fs_->names().rename(kRootId, "new", kRootId, "name", 0));
  EXPECT_FALSE(mover.is_waiting(f));
  EXPECT_FALSE(mover.is_waiting(replaced));
  EXPECT_TRUE(mover.is_waiting(kept));
  EXPECT_FALSE(*store_.has_request(f));
  EXPECT_TRUE(*store_.has_request(kept));
  for (const InodeId id : {f, kept, replaced}) fs_->files().release(id, O_RDWR);
}

TEST_F(TierXattrTest, ADirectoryHasNoMoveToWithdraw) {
  dir_.make_file("a/d/f", "content");
  const auto remove = [&](const char* path) {
    return fs_->xattrs().remove(id_of(path), "user.sluice.tier", {});
  };
  EXPECT_TRUE(failed_with(remove("d"), EISDIR));
  EXPECT_TRUE(failed_with(remove("d/f"), EOPNOTSUPP)) << "without migration";
}

TEST_F(TierXattrTest, AnUnknownTierIsRefused) {
  dir_.make_file("a/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "d"), EINVAL);
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", ""), EINVAL);
}

TEST_F(TierXattrTest, TheTierOfADirectoryCannotBeSet) {
  dir_.make_file("a/d/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("d", "user.sluice.tier", "b"), EISDIR);
}

TEST_F(TierXattrTest, AnOfflineTierIsRefused) {
  dir_.make_file("a/f", "content");
  migrate();
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  fs_->tick();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "b"), EIO);
}

TEST_F(TierXattrTest, TheTierCannotBeSetWithoutMigration) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "b"), EOPNOTSUPP);
}

TEST_F(TierXattrTest, APinCanBeSetAndRemoved) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "error: ENODATA");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "b");
  EXPECT_EQ(test::xattr_of(at("a", "f"), kPinXattr), "b");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "c"), 0);
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "c");
  ASSERT_TRUE(fs_->xattrs().remove(id_of("f"), "user.sluice.pin", {}));
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "error: ENODATA");
  EXPECT_TRUE(failed_with(fs_->xattrs().remove(id_of("f"), "user.sluice.pin", {}), ENODATA));
}

TEST_F(TierXattrTest, APinToAnUnknownTierIsRefused) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(set_xattr("f", "user.sluice.pin", "d"), EINVAL);
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "error: ENODATA");
}

TEST_F(TierXattrTest, TheNearestPinIsInherited) {
  dir_.make_file("a/d/e/f", "content");
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(xattr("d/e/f", "user.sluice.pin"), "b");
  ASSERT_EQ(set_xattr("d/e", "user.sluice.pin", "c"), 0);
  EXPECT_EQ(xattr("d/e/f", "user.sluice.pin"), "c");
  EXPECT_TRUE(failed_with(fs_->xattrs().remove(id_of("d/e/f"), "user.sluice.pin", {}), ENODATA))
      << "it has none of its own";
}

TEST_F(TierXattrTest, APinMovesWithTheFile) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "b"), 0);
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "b");
}

TEST_F(TierXattrTest, TheStoredPinXattrIsHidden) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(*fs_->xattrs().list(id_of("f"), kRoot), "");
  EXPECT_EQ(xattr("f", kPinXattr), "error: ENODATA");
  EXPECT_EQ(set_xattr("f", kPinXattr, "c"), EPERM);
  EXPECT_TRUE(failed_with(fs_->xattrs().remove(id_of("f"), kPinXattr, {}), ENODATA));
}

TEST_F(TierXattrTest, APinIsSetOnEveryCopyOfADirectory) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "c"), 0);
  EXPECT_EQ(test::xattr_of(at("a", "d"), kPinXattr), "c");
  EXPECT_EQ(test::xattr_of(at("b", "d"), kPinXattr), "c");
}

TEST_F(TierXattrTest, APinDecidesWhereNewFilesAreMade) {
  dir_.make_dir("a/d/e");
  const InodeId e = id_of("d/e");
  ASSERT_TRUE(fs_->names().mknod(e, "before", S_IFREG | 0644, 0, kRoot));
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "c"), 0);
  ASSERT_TRUE(fs_->names().mknod(e, "after", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->files().create(e, "created", 0644, O_RDWR, kRoot));
  EXPECT_EQ(where("d/e/before"), "a");
  EXPECT_EQ(where("d/e/after"), "c");
  EXPECT_EQ(where("d/e/created"), "c");
  ASSERT_TRUE(fs_->xattrs().remove(id_of("d"), "user.sluice.pin", {}));
  ASSERT_TRUE(fs_->names().mknod(e, "again", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("d/e/again"), "a");
}

TEST_F(TierXattrTest, APinAppliesToFilesRenamedBelowIt) {
  dir_.make_dir("a/pinned");
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_EQ(set_xattr("pinned", "user.sluice.pin", "b"), 0);
  ASSERT_TRUE(fs_->names().mknod(d, "before", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->names().rename(kRootId, "d", id_of("pinned"), "d", 0));
  ASSERT_TRUE(fs_->names().mknod(d, "after", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("pinned/d/before"), "a");
  EXPECT_EQ(where("pinned/d/after"), "b");
}

TEST_F(TierXattrTest, RulesDecideWhereNewFilesAreMade) {
  Policy policy;
  policy.rules = {{"*.bin", {}, {}, {}, {}, kC}, {"/d/**", {}, {}, {}, {}, kB}};
  migrate(policy);
  dir_.make_dir("a/d");
  ASSERT_TRUE(fs_->names().mknod(kRootId, "x.bin", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->names().mknod(kRootId, "x.txt", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->names().mknod(id_of("d"), "x.txt", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("x.bin"), "c");
  EXPECT_EQ(where("x.txt"), "a");
  EXPECT_EQ(where("d/x.txt"), "b");
}

TEST_F(TierXattrTest, APinTakesPrecedenceOverARule) {
  Policy policy;
  policy.rules = {{"", {}, {}, {}, {}, kC}};
  migrate(policy);
  dir_.make_dir("a/d");
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "b"), 0);
  ASSERT_TRUE(fs_->names().mknod(id_of("d"), "f", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("d/f"), "b");
}

TEST_F(TierXattrTest, HeatCountsOpens) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "0.00");
  const InodeId id = id_of("f");
  for (int i = 0; i < 3; ++i) {
    open_file(id, O_RDONLY);
    fs_->files().release(id, O_RDONLY);
  }
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "3.00");
  ASSERT_TRUE(fs_->flush());
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "3.00");
}

TEST_F(TierXattrTest, HeatStaysWithAFileThatMoves) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  fs_->files().release(id, O_RDONLY);
  ASSERT_TRUE(fs_->flush());
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "1.00");
}

TEST_F(TierXattrTest, MovingAFileDoesNotHeatIt) {
  dir_.make_file("a/f", "content");
  ASSERT_TRUE(move("f"));
  ASSERT_TRUE(fs_->flush());
  EXPECT_EQ(xattr("f", "user.sluice.accesses"), "0");
}

TEST_F(TierXattrTest, ExplainShowsWhereAFileBelongs) {
  dir_.make_file("a/d/f", "content");
  migrate();
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "c"), 0);
  const auto explained = nlohmann::json::parse(xattr("d/f", "user.sluice.explain"));
  EXPECT_EQ(explained["path"], "/d/f");
  EXPECT_EQ(explained["tier"], "a");
  EXPECT_EQ(explained["location"], at("a", "d/f"));
  EXPECT_EQ(explained["bytes"], 7);
  EXPECT_EQ(explained["wants"], "c");
  EXPECT_EQ(explained["reason"], "pinned");
  EXPECT_EQ(explained["pin"]["tier"], "c");
  EXPECT_EQ(explained["pin"]["from"], "/d");
  EXPECT_TRUE(explained["pending"].is_null());
}

TEST_F(TierXattrTest, ExplainShowsWhatAMoveWaitsFor) {
  dir_.make_file("a/f", "content");
  migrate();
  const InodeId id = id_of("f");
  open_file(id, O_RDWR);
  ASSERT_EQ(set_xattr("f", "user.sluice.tier", "b"), 0);
  ASSERT_TRUE(eventually([&] { return fs_->migration()->mover().is_waiting(id); }));
  const auto explained = nlohmann::json::parse(xattr("f", "user.sluice.explain"));
  EXPECT_EQ(explained["pending"]["to"], "b");
  EXPECT_NE(explained["pending"]["why"], "");
  fs_->files().release(id, O_RDWR);
}

TEST_F(TierXattrTest, ExplainExistsOnlyForFilesAndWithMigration) {
  dir_.make_file("a/d/f", "content");
  EXPECT_EQ(xattr("d/f", "user.sluice.explain"), "error: ENODATA");
  migrate();
  EXPECT_EQ(xattr("d", "user.sluice.explain"), "error: ENODATA");
}

TEST_F(TierXattrTest, OtherVirtualXattrsCannotBeSetOrRemoved) {
  dir_.make_file("a/f", "content");
  for (const char* name : {"heat", "location", "accesses", "explain", "nonsense"}) {
    const std::string full = std::string("user.sluice.") + name;
    EXPECT_EQ(set_xattr("f", full.c_str(), "x"), EPERM) << name;
    EXPECT_TRUE(failed_with(fs_->xattrs().remove(id_of("f"), full.c_str(), {}), EPERM)) << name;
  }
}

}  // namespace
}  // namespace sluice
