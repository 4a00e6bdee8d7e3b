// SPDX-License-Identifier: BSD-2-Clause
// What a daemon leaves to its successor. The kernel keeps its inode numbers, open files and backing
// files; everything else is gone.
#include "fs/core/inodes/handover.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "base/crash.hpp"
#include "base/sanitizers.hpp"
#include "base/thread.hpp"
#include "fs/fuse/open_handles.hpp"
#include "tests/unit/fs/moving_filesystem.hpp"

namespace sluice {
namespace {

class HandoverTest : public FileMoveTest {
 protected:
  void prepare() override {
    FileMoveTest::prepare();
    handover_ = *Handover::create(pool_->id());
    mount_with_handover();
  }

  void mount_with_handover() {
    fs_.reset();
    pool_.reset();
    pool_ = open(make_tiers("abc"));
    Filesystem::Settings settings;
    settings.handover = handover_.get();
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, std::move(settings));
    handles_ = std::make_unique<OpenHandles>(*handover_);
  }
  // The daemon dies, and another one takes over.
  void succeed() {
    UniqueFd memory(::fcntl(handover_->fd(), F_DUPFD_CLOEXEC, 0));
    handles_.reset();
    fs_.reset();
    handover_.reset();
    auto inherited = Handover::open(std::move(memory), pool_->id());
    ASSERT_TRUE(inherited) << inherited.error().text();
    handover_ = *std::move(inherited);
    mount_with_handover();
    fs_->inherit();
    handles_->inherit([&](const OpenHandles::Open& open) {
      if (!open.is_directory)
        fs_->files().inherit(open.inode, open.flags, open.backing_id, open.direct);
    });
  }
  // As ll_open does.
  OpenId open_recorded(InodeId id, int flags) {
    const Opened opened = open_file(id, flags);
    return *handles_->add({id, flags, opened.backing_id, opened.direct});
  }
  void release(InodeId id, int flags, OpenId handle) {
    handles_->remove(handle);
    fs_->files().release(id, flags);
  }
  Entry make(const char* name, const std::string& content, int flags = O_RDWR) {
    const auto made = fs_->files().create(kRootId, name, 0644, flags, kRoot);
    EXPECT_TRUE(made);
    EXPECT_TRUE(fs_->files().write(made->first.id, content.data(), content.size(), 0, {}));
    fs_->files().release(made->first.id, flags);
    return made->first;
  }

  // A second place of a file, as a predecessor leaves it that was killed during a move.
  void add_place(InodeId id, TierIndex tier, const FileHandle& handle) {
    PlaceRecord* record = handover_->places().allocate();
    record->slot = static_cast<std::uint8_t>((*pool_)[tier].member().slot);
    record->handle_size = static_cast<std::uint8_t>(handle.bytes.size());
    handle.bytes.copy(record->handle.data(), handle.bytes.size());
    publish(record->inode, to_number(id));
  }

  std::unique_ptr<Handover> handover_;
  std::unique_ptr<OpenHandles> handles_;
};

TEST_F(HandoverTest, InodesOfThePredecessorAreUsable) {
  const InodeId id = make("f", "content").id;
  succeed();
  EXPECT_EQ(read_all(id), "content");
  const auto attributes = fs_->attributes().get(id);
  ASSERT_TRUE(attributes);
  EXPECT_EQ(attributes->st.st_ino, to_number(id));
}

TEST_F(HandoverTest, AMovedFileIsFoundByItsOldNumber) {
  const InodeId id = make("f", "content").id;
  ASSERT_TRUE(move("f"));
  ASSERT_EQ(where("f"), "b");
  succeed();
  EXPECT_EQ(read_all(id), "content");
  succeed();
  EXPECT_EQ(read_all(id), "content") << "the second successor";
}

// The kernel looked the name up before the daemon died, and removes it afterwards.
TEST_F(HandoverTest, ANameThatThePredecessorToldTheKernelCanBeRemoved) {
  make("f", "content");
  succeed();
  const auto removed = fs_->names().unlink(kRootId, "f");
  EXPECT_TRUE(removed) << removed.error().text();
  EXPECT_EQ(where("f"), "");
}

TEST_F(HandoverTest, AnotherFileUnderTheNameIsNotRemoved) {
  make("f", "content");
  ::rename(at("a", "f").c_str(), at("a", "g").c_str());
  dir_.make_file("a/f", "another");
  succeed();
  const auto removed = fs_->names().unlink(kRootId, "f");
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code, ESTALE);
}

TEST_F(HandoverTest, ADirectoryWithCopiesOnTwoTiersKeepsBoth) {
  const InodeId d = fs_->names().mkdir(kRootId, "d", 0755, kRoot)->id;
  ASSERT_TRUE(fs_->files().create(d, "f", 0644, O_RDONLY, kRoot));
  ASSERT_TRUE(fs_->files().create(d, "g", 0644, O_RDONLY, kRoot));
  fs_->files().release(id_of("d/f"), O_RDONLY);
  ASSERT_TRUE(move("d/f"));
  succeed();
  EXPECT_NE(fs_->names().lookup(d, "f")->id, InodeId{});
  EXPECT_NE(fs_->names().lookup(d, "g")->id, InodeId{});
}

// The kernel does not look these names up again, and the daemon finds them on a walk of its own.
TEST_F(HandoverTest, NamesAreKnownAfterTheDaemonWalkedToThem) {
  const InodeId d = fs_->names().mkdir(kRootId, "d", 0755, kRoot)->id;
  const InodeId f = fs_->files().create(d, "f", 0644, O_RDONLY, kRoot)->first.id;
  fs_->files().release(f, O_RDONLY);
  for (const TierIndex tier : {1, 2}) {
    succeed();
    ASSERT_TRUE(move("d/f", tier));
    EXPECT_EQ(*fs_->xattrs().get(f, "user.sluice.location"), at((*pool_)[tier].name(), "d/f"));
    EXPECT_TRUE(fs_->xattrs().get(d, "user.sluice.location"));
  }
}

TEST_F(HandoverTest, OpenFilesKeepTheirBackingFilesUntilTheLastClose) {
  const InodeId id = make("f", std::string(kMiB, 'x')).id;
  [[maybe_unused]] const auto known = fs_->names().lookup(kRootId, "f");
  const OpenId first = open_recorded(id, O_RDONLY), second = open_recorded(id, O_RDONLY);
  ASSERT_EQ(kernel_.backed, 1);
  const auto backing = handles_->find(first)->backing_id;
  succeed();
  EXPECT_EQ(kernel_.backed, 1);
  const OpenId third = open_recorded(id, O_RDONLY);
  EXPECT_EQ(handles_->find(third)->backing_id, backing) << "the kernel refuses another one";
  EXPECT_NE(third, first);
  release(id, O_RDONLY, first);
  release(id, O_RDONLY, second);
  EXPECT_EQ(kernel_.backed, 1);
  release(id, O_RDONLY, third);
  EXPECT_EQ(kernel_.backed, 0);
}

TEST_F(HandoverTest, AnOpenFileWithoutANameOutlivesTheDaemon) {
  fs_->files().serve_everything();
  const InodeId id = make("f", "content").id;
  const OpenId open = open_recorded(id, O_RDONLY);
  ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
  succeed();
  EXPECT_EQ(read_all(id), "content");
  release(id, O_RDONLY, open);
  EXPECT_EQ(kernel_.backed, 0);
}

TEST_F(HandoverTest, AnUnnamedFileOutlivesTheDaemon) {
  fs_->files().serve_everything();
  const auto made = fs_->files().create_unnamed(kRootId, 0600, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  const OpenId open = *handles_->add({id, O_RDWR, made->second.backing_id});
  ASSERT_TRUE(fs_->files().write(id, "content", 7, 0, {}));
  succeed();
  EXPECT_EQ(read_all(id), "content");
  ASSERT_TRUE(fs_->files().write(id, "C", 1, 0, {}));
  EXPECT_EQ(read_all(id), "Content");
  release(id, O_RDWR, open);
  EXPECT_EQ(kernel_.backed, 0);
}

TEST_F(HandoverTest, AnOpenWriterStillPreventsMoves) {
  const InodeId id = make("f", "content").id;
  const OpenId open = open_recorded(id, O_RDWR);
  succeed();
  EXPECT_EQ(move("f").error().code, EBUSY);
  release(id, O_RDWR, open);
  EXPECT_TRUE(move("f"));
}

TEST_F(HandoverTest, InodesThatTheKernelForgotAreNotInherited) {
  const InodeId id = make("f", "content").id;
  fs_->names().forget(id, 1);
  succeed();
  EXPECT_EQ(fs_->known_inodes(), 1u) << "the root";
}

TEST_F(HandoverTest, AnInterruptedMoveLeavesOnePlace) {
  const InodeId id = make("f", "content").id;
  auto flight = begun("f");
  add_place(id, kB, flight.copy.located.handle);  // as switch_all() does before it begins
  discard(flight.copy, (*pool_)[kB]);
  flight = {};
  succeed();
  EXPECT_EQ(read_all(id), "content");
}

TEST_F(HandoverTest, TheOriginalOfAFinishedMoveIsNotUsedThoughItExists) {
  const InodeId id = make("f", "content").id;
  const UniqueFd original(::open(at("a", "f").c_str(), O_PATH | O_CLOEXEC));
  const FileHandle handle = (*pool_)[kA].identify(original.get(), "")->handle;
  ASSERT_TRUE(move("f"));
  add_place(id, kA, handle);  // the daemon was killed before it forgot that place
  succeed();
  const auto attributes = fs_->attributes().get(id);
  ASSERT_TRUE(attributes);
  EXPECT_EQ(attributes->st.st_nlink, 1u);
  EXPECT_EQ(where("f"), "b");
}

TEST(HandoverMemory, NotesOfThePredecessorAreFoundByTheRequest) {
  auto first = *Handover::create("pool");
  RequestNote* note = first->begin_note(7, 1, false);
  {
    const KernelRequest request(note, false);
    request.remember(Fact::Victim, 42);
  }
  first->end_note(first->begin_note(8, 1, false));
  UniqueFd memory(::fcntl(first->fd(), F_DUPFD_CLOEXEC, 0));
  first.reset();
  const auto second = *Handover::open(std::move(memory), "pool");
  {
    const KernelRequest request(second->begin_note(7, 1, true), true);
    EXPECT_EQ(request.remembered(Fact::Victim), 42u);
    EXPECT_EQ(request.remembered(Fact::Source), std::nullopt);
  }
  const KernelRequest other(second->begin_note(8, 1, true), true);
  EXPECT_EQ(other.remembered(Fact::Victim), std::nullopt);
}

// A daemon that crashes while it answers `request`, or in a thread that answers none (0).
std::unique_ptr<Handover> successor_of_crash(std::unique_ptr<Handover> handover,
                                             std::uint64_t request,
                                             ThreadKind kind = ThreadKind::Serving) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_DUMPABLE, 0);  // no core
    begin_thread("test", kind);
    report_crashes();
    handover->note_crashes();
    Handover::set_answered(request);
    std::abort();
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  UniqueFd memory(::fcntl(handover->fd(), F_DUPFD_CLOEXEC, 0));
  handover.reset();
  return *Handover::open(std::move(memory), "pool");
}

TEST(HandoverMemory, CrashesAreCountedByTheRequest) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reports faults itself";
  auto daemon = *Handover::create("pool");
  daemon->begin_note(7, 1, false);
  daemon->begin_note(8, 1, false);
  daemon = successor_of_crash(std::move(daemon), 7);
  EXPECT_EQ(daemon->count_crashes(7, 1), 1u);
  EXPECT_EQ(daemon->count_crashes(8, 1), 0u);
  for (const std::uint64_t each : {7, 8}) daemon->begin_note(each, 1, true);
  daemon = successor_of_crash(std::move(daemon), 7);
  EXPECT_EQ(daemon->count_crashes(7, 1), 2u);
  EXPECT_EQ(daemon->count_crashes(8, 1), 0u);
}

TEST(HandoverMemory, CrashesAreCountedForRequestsWithoutANote) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reports faults itself";
  auto daemon = successor_of_crash(*Handover::create("pool"), 7);
  EXPECT_EQ(daemon->count_crashes(7, 1), 1u);
  daemon->begin_note(7, 1, true);
  daemon = successor_of_crash(std::move(daemon), 7);
  EXPECT_EQ(daemon->count_crashes(7, 1), 2u);
}

TEST(HandoverMemory, ACrashOfAnotherThreadCountsForAllRequestsThatWereUnderWay) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reports faults itself";
  auto daemon = successor_of_crash(*Handover::create("pool"), 0);
  for (const std::uint64_t each : {7, 8}) EXPECT_EQ(daemon->count_crashes(each, 1), 1u);
  daemon->begin_note(7, 1, true);
  daemon->end_note(daemon->begin_note(8, 1, true));  // it was answered
  daemon = successor_of_crash(std::move(daemon), 0);
  EXPECT_EQ(daemon->count_crashes(7, 1), 2u);
  EXPECT_EQ(daemon->count_crashes(8, 1), 1u) << "another one, with the same number";
}

TEST(HandoverMemory, ACrashOfAThreadThatWorksForNoRequestCountsForNone) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reports faults itself";
  auto daemon = *Handover::create("pool");
  daemon->begin_note(7, 1, false);
  daemon = successor_of_crash(std::move(daemon), 0, ThreadKind::Background);
  EXPECT_EQ(daemon->count_crashes(7, 1), 0u);
}

TEST(HandoverMemory, AKillCountsForNoRequest) {
  auto daemon = *Handover::create("pool");
  daemon->begin_note(7, 1, false);
  UniqueFd memory(::fcntl(daemon->fd(), F_DUPFD_CLOEXEC, 0));
  daemon.reset();
  const auto second = *Handover::open(std::move(memory), "pool");
  EXPECT_EQ(second->count_crashes(7, 1), 0u);
}

TEST(HandoverMemory, ForeignMemoryIsRefused) {
  auto first = *Handover::create("pool");
  const auto open = [](int fd, const char* pool) {
    return Handover::open(UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), pool);
  };
  EXPECT_EQ(open(first->fd(), "other").error().code, EINVAL);
  const UniqueFd empty(::memfd_create("empty", MFD_CLOEXEC));
  EXPECT_EQ(open(empty.get(), "pool").error().code, EPROTONOSUPPORT);
  const std::uint32_t version = 99;
  ASSERT_EQ(::pwrite(first->fd(), &version, sizeof version, 8), 4);
  const auto newer = open(first->fd(), "pool");
  EXPECT_EQ(newer.error().code, EPROTONOSUPPORT);
  EXPECT_NE(newer.error().text().find("version 99"), std::string::npos) << newer.error().text();
}

}  // namespace
}  // namespace sluice
