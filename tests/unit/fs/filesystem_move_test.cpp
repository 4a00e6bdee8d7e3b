// SPDX-License-Identifier: BSD-2-Clause
// Moves between tiers: what stays the same, which users can continue, and which prevent a move.
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tests/support/wait.hpp"
#include "tests/unit/fs/moving_filesystem.hpp"

// Replace libc's functions, so that tests can act just before or after them.
extern "C" int name_to_handle_at(int directory, const char* name, file_handle* handle,
                                 int* mount_id, int flags) noexcept {
  auto& at = sluice::syscall_hook;
  if (at.before_naming && --at.calls == 0) std::exchange(at.before_naming, nullptr)();
  return static_cast<int>(
      ::syscall(SYS_name_to_handle_at, directory, name, handle, mount_id, flags));
}

extern "C" int open_by_handle_at(int mount_fd, file_handle* handle, int flags) {
  const auto fd = static_cast<int>(::syscall(SYS_open_by_handle_at, mount_fd, handle, flags));
  auto& at = sluice::syscall_hook;
  if (at.after_opening && (flags & ~(O_CLOEXEC | O_NONBLOCK)) == O_RDONLY)
    std::exchange(at.after_opening, nullptr)();
  return fd;
}

namespace sluice {
namespace {

using test::eventually;

TEST_F(FileMoveTest, MovesAFileToAnotherTier) {
  dir_.make_file("a/f", "content");
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(where("f"), "b");
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "b");
  EXPECT_EQ(read_all(id_of("f")), "content");
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(FileMoveTest, KeepsIdGenerationAndAttributes) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(::chmod(at("a", "f").c_str(), 04751), 0);
  ASSERT_EQ(::chown(at("a", "f").c_str(), 12, 34), 0);
  ASSERT_EQ(::setxattr(at("a", "f").c_str(), "user.k", "v", 1, 0), 0);
  const Entry before = entry_of("f");
  ASSERT_TRUE(move("f"));
  const Entry after = entry_of("f");
  EXPECT_EQ(after.id, before.id);
  EXPECT_EQ(after.generation, before.generation);
  EXPECT_EQ(after.st.st_ino, before.st.st_ino);
  EXPECT_EQ(after.st.st_mode, before.st.st_mode);
  EXPECT_EQ(after.st.st_uid, before.st.st_uid);
  EXPECT_EQ(after.st.st_mtim.tv_nsec, before.st.st_mtim.tv_nsec);
  EXPECT_EQ(xattr("f", "user.k"), "v");
  mount();
  EXPECT_EQ(entry_of("f").id, before.id) << "after a remount";
  EXPECT_EQ(entry_of("f").generation, before.generation);
}

TEST_F(FileMoveTest, AFileCanMoveThereAndBack) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  for (const TierIndex to : {kB, kC, kA, kC}) {
    ASSERT_TRUE(move("f", to)) << int{to};
    EXPECT_EQ(where("f"), (*pool_)[to].name());
    EXPECT_EQ(id_of("f"), id);
    EXPECT_EQ(read_all(id), "content");
  }
}

TEST_F(FileMoveTest, MakesMissingDirectoryCopies) {
  dir_.make_file("a/d/e/f", "content");
  ASSERT_EQ(::chmod(at("a", "d").c_str(), 02750), 0);
  const InodeId d = id_of("d"), e = id_of("d/e");
  ASSERT_TRUE(move("d/e/f"));
  EXPECT_EQ(where("d/e/f"), "b");
  EXPECT_EQ(test::lstat_of(at("b", "d")).st_mode & 07777, 02750u);
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
}

TEST_F(FileMoveTest, DropsTheAttributesThatTheKernelCached) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(kernel_.dropped(), std::vector{id});
}

TEST_F(FileMoveTest, LeavesNoReferencesBehind) {
  dir_.make_file("a/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  Move wanted{f, {"/d/f"}, kA, kB, 0, Reason::Requested, ""};
  fs_->names().forget(f, 1);
  fs_->names().forget(d, 2);
  const std::size_t before = fs_->known_inodes();
  {
    auto held = fs_->relocator().hold(wanted);
    ASSERT_TRUE(held);
    EXPECT_GT(fs_->known_inodes(), before);
  }
  EXPECT_EQ(fs_->known_inodes(), before);
}

TEST_F(FileMoveTest, AFileThatIsOnTheTierAlreadyIsNotMoved) {
  dir_.make_file("b/f", "content");
  Move there = move_of("f", kB);
  EXPECT_TRUE(failed_with(fs_->relocator().hold(there), EALREADY));
}

TEST_F(FileMoveTest, AFileThatLeftTheTierOfThePlanIsNotMoved) {
  dir_.make_file("b/f", "content");
  Move planned = move_of("f", kC);
  planned.from = kA;
  planned.reason = Reason::Cold;
  EXPECT_TRUE(failed_with(fs_->relocator().hold(planned), ESTALE));
}

TEST_F(FileMoveTest, AnotherFileWithThePlannedNameIsNotMoved) {
  dir_.make_file("a/f", "content");
  dir_.make_file("a/g", "other");
  Move planned = move_of("f");
  planned.reason = Reason::Hot;
  planned.paths = {"/g"};
  EXPECT_TRUE(failed_with(fs_->relocator().hold(planned), ESTALE));
  planned.paths = {"/gone"};
  EXPECT_TRUE(failed_with(fs_->relocator().hold(planned), ESTALE));
  planned.paths = {};
  EXPECT_TRUE(failed_with(fs_->relocator().hold(planned), ESTALE));
}

TEST_F(FileMoveTest, ARequestedMoveMeansTheIdNotThePath) {
  dir_.make_file("a/f", "content");
  dir_.make_file("a/g", "other");
  Move asked = move_of("f");
  ASSERT_EQ(asked.reason, Reason::Requested);
  asked.paths = {"/g"};
  const auto held = fs_->relocator().hold(asked);
  ASSERT_TRUE(held);
  EXPECT_EQ((*held)->identity().id, asked.id);
  EXPECT_EQ(asked.paths, std::vector<std::string>{"/f"});
}

TEST_F(FileMoveTest, ANameThatIsUnknownIsFoundForTheReceipt) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(::link(at("a", "f").c_str(), at("a", "g").c_str()), 0);
  Move asked = move_of("g");
  ASSERT_TRUE(unlink(kRootId, "g"));
  asked.paths = {""};
  ASSERT_TRUE(fs_->relocator().hold(asked));
  EXPECT_EQ(asked.paths, std::vector<std::string>{"/f"});
}

TEST_F(FileMoveTest, AFileThatWasRenamedIsNotSaidToBeHidden) {
  dir_.make_file("a/f", "content");
  Flight flight = begun("f", kC);
  ASSERT_TRUE(rename(kRootId, "f", kRootId, "g", 0));
  dir_.make_file("b/f", "another file, on a faster tier than c");
  EXPECT_TRUE(failed_with(end(flight), ECANCELED));
  EXPECT_EQ(where("g"), "a");
}

TEST_F(FileMoveTest, AFileHasOneMoveAtATime) {
  dir_.make_file("a/f", "content");
  const Flight first = begun("f");
  Move second = move_of("f", kC);
  EXPECT_TRUE(failed_with(fs_->relocator().hold(second), EBUSY));
  discard(first.copy, (*pool_)[kB]);
}

TEST_F(FileMoveTest, AnAbandonedMoveLeavesTheFileUnlocked) {
  dir_.make_file("a/f", "content");
  {
    const Flight flight = begun("f");
    discard(flight.copy, (*pool_)[kB]);
  }
  EXPECT_TRUE(move("f", kC));
}

TEST_F(FileMoveTest, IsRefusedWhenAFasterTierHasTheSameName) {
  dir_.make_file("a/f", "content");
  dir_.make_file("b/f", "another");  // an adopted tree may contain this
  EXPECT_TRUE(failed_with(move("f", kC), EEXIST));
  mount();
  EXPECT_EQ(read_all(id_of("f")), "content");
}

TEST_F(FileMoveTest, AServedReaderContinuesReading) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  ASSERT_EQ(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_EQ(read_all(id), "content");
  auto flight = begun("f");
  EXPECT_EQ(read_all(id), "content") << "during the copy";
  ASSERT_TRUE(end(flight));
  EXPECT_EQ(where("f"), "b");
  EXPECT_EQ(read_all(id), "content") << "after it";
  fs_->files().release(id, O_RDONLY);
  EXPECT_EQ(read_all(id), "content") << "closed";
}

TEST_F(FileMoveTest, AReaderSeesWhatIsWrittenAfterTheMove) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  auto flight = begun("f");
  EXPECT_EQ(read_all(id), "content");
  ASSERT_TRUE(end(flight));
  open_file(id, O_RDWR);
  ASSERT_TRUE(fs_->files().write(id, "CONTENT", 7, 0, std::nullopt));
  EXPECT_EQ(read_all(id), "CONTENT");
  EXPECT_EQ(test::read_file(at("b", "f")), "CONTENT");
  fs_->files().release(id, O_RDWR);
  fs_->files().release(id, O_RDONLY);
}

TEST_F(FileMoveTest, AReaderDoesNotPreventAMoveOnceTheWritersHaveClosed) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  open_file(id, O_RDWR);
  ASSERT_TRUE(fs_->files().write(id, "CONTENT", 7, 0, std::nullopt));
  EXPECT_TRUE(failed_with(begin("f"), EBUSY));
  fs_->files().release(id, O_RDWR);
  AttributeChange shorter;
  shorter.size = 4;
  ASSERT_TRUE(fs_->attributes().set(id, shorter));
  EXPECT_TRUE(move("f"));
  EXPECT_EQ(read_all(id), "CONT");
  fs_->files().release(id, O_RDONLY);
}

TEST_F(FileMoveTest, AnOpenDuringAMoveIsServed) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  const InodeId id = id_of("f");
  auto flight = begun("f");
  EXPECT_EQ(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_TRUE(read_all(id) == test::pattern(kMiB, 1));
  ASSERT_TRUE(end(flight));
  EXPECT_TRUE(read_all(id) == test::pattern(kMiB, 1));
  fs_->files().release(id, O_RDONLY);
  EXPECT_NE(open_file(id, O_RDONLY).backing_id, 0) << "the next is passed through again";
  fs_->files().release(id, O_RDONLY);
}

TEST_F(FileMoveTest, APassthroughReaderPreventsAMoveUntilItCloses) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  const InodeId id = id_of("f");
  ASSERT_NE(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_TRUE(failed_with(begin("f"), EBUSY));
  fs_->files().release(id, O_RDONLY);
  EXPECT_EQ(kernel_.backed, 0);
  EXPECT_TRUE(move("f"));
}

TEST_F(FileMoveTest, AnOpenOfAFileWhoseMoveWaitsIsServed) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  ASSERT_TRUE(failed_with(begin("f"), EBUSY));
  fs_->files().release(id, O_RDONLY);
  EXPECT_EQ(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_TRUE(move("f"));
  fs_->files().release(id, O_RDONLY);
}

TEST_F(FileMoveTest, AFileInUseMovesWhenItIsClosed) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  migrate();
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  ASSERT_EQ(set_xattr("f", "user.sluice.tier", "b"), 0);
  ASSERT_TRUE(eventually([&] { return fs_->migration()->mover().is_waiting(id); }));
  EXPECT_EQ(fs_->migration()->mover().pending(id)->code, EBUSY);
  fs_->files().release(id, O_RDONLY);
  EXPECT_TRUE(eventually([&] { return where("f") == "b"; }));
}

TEST_F(FileMoveTest, AMoveCannotBeginDuringAGpuRead) {
  dir_.make_file("a/f", "content");
  Engine engine({});
  attach(engine);
  std::string buffer(7, '-');
  const auto memory = borrow_host(buffer.data(), buffer.size());
  const Segment all{0, 0, 7};
  const InodeId id = id_of("f");
  syscall_hook.after_opening = [&] {  // the read has its descriptor but no bytes yet
    const auto flight = begin("f");
    ASSERT_FALSE(flight);
    EXPECT_EQ(flight.error().code, EBUSY);
  };
  ASSERT_TRUE(fs_->gpu().read(id, *memory, {&all, 1}, Route::Auto));
  ASSERT_FALSE(syscall_hook.after_opening) << "the hook was never called";
  EXPECT_EQ(buffer, "content");
  EXPECT_TRUE(move("f"));
  EXPECT_EQ(where("f"), "b");
}

TEST_F(FileMoveTest, AFileThatAGpuReadsIsCopiedButNotSwitched) {
  dir_.make_file("a/f", "content");
  Engine engine({});
  attach(engine);
  std::string buffer(7, '-');
  const auto memory = borrow_host(buffer.data(), buffer.size());
  const Segment all{0, 0, 7};
  const InodeId id = id_of("f");
  Flight flight = begun("f");
  syscall_hook.after_opening = [&] {
    const auto ended = end(flight);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, EBUSY);
  };
  ASSERT_TRUE(fs_->gpu().read(id, *memory, {&all, 1}, Route::Auto));
  ASSERT_FALSE(syscall_hook.after_opening) << "the hook was never called";
  EXPECT_EQ(buffer, "content");
  EXPECT_EQ(where("f"), "a");
  EXPECT_TRUE(move("f"));
}

TEST_F(FileMoveTest, AWriterPreventsAMove) {
  for (const std::size_t size : {std::size_t{10}, kMiB}) {
    dir_.make_file("a/f", test::pattern(size, 1));
    const InodeId id = id_of("f");
    open_file(id, O_WRONLY);
    EXPECT_TRUE(failed_with(begin("f"), EBUSY)) << size;
    fs_->files().release(id, O_WRONLY);
    EXPECT_TRUE(move("f")) << size;
    ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
    fs_->names().forget(id, 1000);
  }
}

TEST_F(FileMoveTest, AWriterThatUsesTheTierDirectlyPreventsAMove) {
  dir_.make_file("a/f", "content");
  {
    const auto writer = test::open_file(at("a", "f"));
    EXPECT_TRUE(failed_with(begin("f"), EBUSY));
  }
  EXPECT_TRUE(move("f"));
}

}  // namespace
}  // namespace sluice
