// SPDX-License-Identifier: BSD-2-Clause
// Requests that a successor of the daemon repeats: the answer and the files must be as if the first
// attempt had succeeded, no matter how far it came.
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>
#include <time.h>

#include "fs/core/inodes/kernel_request.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kNanoseconds = 1'000'000'000;

std::uint64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * kNanoseconds +
         static_cast<std::uint64_t>(time.tv_nsec);
}

class RepeatedRequestTest : public FilesystemTest {
 protected:
  // The first attempt, by a daemon that ends before it answers.
  template <typename Operation>
  auto try_first(Operation operation) {
    return run(operation, {&note_, false});
  }
  // Replaces the daemon.
  void succeed() { mount(make_tiers("abc")); }
  template <typename Operation>
  auto repeat(Operation operation) {
    return run(operation, {&note_, true});
  }
  // An attempt by a daemon that ends after it has stored these facts.
  void note(const std::vector<std::pair<Fact, std::uint64_t>>& facts) {
    note_ = {};
    for (const auto& [fact, value] : facts) KernelRequest(&note_, false).remember(fact, value);
  }
  void forget_note() { note_ = {}; }

  std::uint64_t identity(const std::string& tier, const std::string& path) {
    for (const auto& each : *pool_) {
      if (each->name() == tier) return to_number(identity_of(*each, at(tier, path)).id);
    }
    throw std::runtime_error("no tier " + tier);
  }
  Result<void> append(InodeId id, std::string_view data, std::size_t before = 0) {
    const auto put = fs_->files().write(id, data.data(), data.size(), 0, std::nullopt, WriteTo::End,
                                        before, request_);
    if (!put) return put.error();
    EXPECT_EQ(*put, data.size());
    return {};
  }

  RequestNote note_;
  KernelRequest request_;  // the one that runs

 private:
  template <typename Operation>
  auto run(Operation operation, const KernelRequest& request) {
    request_ = request;
    auto outcome = operation();
    request_ = {};
    return outcome;
  }
};

using Made = std::function<Result<Entry>()>;

TEST_F(RepeatedRequestTest, ANameIsMadeOnce) {
  const std::vector<std::pair<const char*, Made>> requests{
      {"file", [&] { return fs_->names().mknod(kRootId, "file", 0640, 0, kUser, request_); }},
      {"pipe",
       [&] { return fs_->names().mknod(kRootId, "pipe", S_IFIFO | 0640, 0, kUser, request_); }},
      {"dir", [&] { return fs_->names().mkdir(kRootId, "dir", 0750, kUser, request_); }},
      {"link", [&] { return fs_->names().symlink("to", kRootId, "link", kUser, request_); }},
  };
  for (const auto& [name, request] : requests) {
    forget_note();
    const auto first = try_first(request);
    ASSERT_TRUE(first) << name;
    const std::string tree = shown("abc");
    succeed();
    const auto second = repeat(request);
    ASSERT_TRUE(second) << name;
    EXPECT_EQ(second->id, first->id) << name;
    EXPECT_EQ(second->st.st_mode, first->st.st_mode) << name;
    EXPECT_EQ(shown("abc"), tree) << name;
    EXPECT_EQ(id_of(name), first->id);
  }
  EXPECT_EQ(entry_of("pipe").st.st_uid, kUser.uid);
}

TEST_F(RepeatedRequestTest, ANameThatWasNotMadeIsMade) {
  for (const bool began : {false, true}) {
    note({});
    if (began) note({{Fact::Began, now()}});
    const char* name = began ? "d1" : "d0";
    ASSERT_TRUE(repeat([&] { return fs_->names().mkdir(kRootId, name, 0755, kRoot, request_); }));
    EXPECT_TRUE(has(kRootId, name));
  }
}

TEST_F(RepeatedRequestTest, ANameOfSomeoneElseIsNotTaken) {
  const auto make_directory = [&] {
    return fs_->names().mkdir(kRootId, "d", 0755, kRoot, request_);
  };
  dir_.make_dir("a/d");
  note({{Fact::Began, now() + 10 * kNanoseconds}});
  EXPECT_TRUE(failed_with(repeat(make_directory), EEXIST)) << "it is older";
  note({{Fact::Began, now() - 10 * kNanoseconds}});
  EXPECT_TRUE(repeat(make_directory)) << "it is as expected";
  note({});
  EXPECT_TRUE(failed_with(repeat(make_directory), EEXIST)) << "the request was not begun";
  note({{Fact::Began, now() - 10 * kNanoseconds}});
  EXPECT_TRUE(failed_with(try_first(make_directory), EEXIST)) << "it is not repeated";
  EXPECT_TRUE(failed_with(
      repeat([&] { return fs_->names().mknod(kRootId, "d", 0644, 0, kRoot, request_); }), EEXIST))
      << "it has another type";
  EXPECT_TRUE(failed_with(
      repeat([&] { return fs_->names().mkdir(kRootId, "d", 0755, kUser, request_); }), EEXIST))
      << "it has another owner";
}

TEST_F(RepeatedRequestTest, CreateOpensTheFileThatTheFirstAttemptCreated) {
  for (const int flags : {O_RDWR | O_CREAT | O_EXCL, O_WRONLY | O_CREAT}) {
    forget_note();
    const auto create = [&] {
      return fs_->files().create(kRootId, "f", 0400, flags, kUser, request_);
    };
    const auto first = try_first(create);
    ASSERT_TRUE(first);
    succeed();
    const auto second = repeat(create);
    ASSERT_TRUE(second);
    EXPECT_EQ(second->first.id, first->first.id);
    EXPECT_NE(second->second.backing_id, 0);
    EXPECT_EQ(fs_->files().open_files(), 1u);
    EXPECT_EQ(shown("abc"), "a/f 400 \"\"\n");
    fs_->files().release(second->first.id, flags);
    ASSERT_TRUE(unlink(kRootId, "f"));
  }
}

TEST_F(RepeatedRequestTest, CreateFindsItsFileOnTheTierThatWasChosen) {
  dir_.make_dir("a/d");
  dir_.make_file("b/d/f", "");
  note({{Fact::Began, now() - kNanoseconds}});
  const InodeId d = id_of("d");
  const auto create = [&] {
    return fs_->files().create(d, "f", 0644, O_RDWR | O_CREAT | O_EXCL, kRoot, request_);
  };
  ASSERT_TRUE(repeat(create));
  EXPECT_FALSE(test::exists(at("a", "d/f")));
  EXPECT_EQ(xattr("d/f", "user.sluice.tier"), "b");
  dir_.make_file("b/d/g", "");
  note({{Fact::Began, now() + 10 * kNanoseconds}});
  EXPECT_TRUE(failed_with(
      repeat([&] { return fs_->files().create(d, "g", 0644, O_RDWR | O_CREAT, kRoot, request_); }),
      ESTALE))
      << "the kernel must look up a file that the first attempt did not create";
}

TEST_F(RepeatedRequestTest, ALinkIsMadeOnce) {
  dir_.make_file("b/f", "1");
  const auto link = [&] { return fs_->names().link(id_of("f"), kRootId, "g", request_); };
  ASSERT_TRUE(try_first(link));
  succeed();
  const auto second = repeat(link);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->id, id_of("f"));
  EXPECT_EQ(second->st.st_nlink, 2u);
  EXPECT_TRUE(failed_with(try_first(link), EEXIST)) << "this is another request";
  note({{Fact::Began, now()}});
  ASSERT_TRUE(repeat([&] { return fs_->names().link(id_of("f"), kRootId, "h", request_); }));
  dir_.make_file("a/other", "2");
  EXPECT_TRUE(failed_with(
      repeat([&] { return fs_->names().link(id_of("f"), kRootId, "other", request_); }), EEXIST));
}

TEST_F(RepeatedRequestTest, AFileIsUnlinkedOnce) {
  dir_.make_file("b/f", "1");
  const auto remove = [&] { return fs_->names().unlink(kRootId, "f", request_); };
  id_of("f");
  ASSERT_TRUE(try_first(remove));
  succeed();
  EXPECT_TRUE(repeat(remove));
  dir_.make_file("a/f", "another");
  id_of("f");
  EXPECT_TRUE(repeat(remove));
  EXPECT_EQ(read_path("f"), "another") << "it has the name of the file that is gone";
  note({{Fact::Victim, identity("a", "f")}});
  EXPECT_TRUE(repeat(remove)) << "the first attempt had only noted it";
  EXPECT_EQ(shown("abc"), "");
  note({});
  EXPECT_TRUE(failed_with(repeat(remove), ENOENT)) << "the first attempt had not found it";
}

TEST_F(RepeatedRequestTest, UnlinkIsUnsureWhileTheTierOfTheFileIsOffline) {
  mount(make_tiers("abc"), Pool::Missing::Tolerate);
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "1");
  const InodeId f = id_of("f"), g = id_of("g");
  note({{Fact::Victim, identity("b", "g")}});
  take_away("b");
  EXPECT_TRUE(
      failed_with(repeat([&] { return fs_->names().unlink(kRootId, "g", request_); }), EIO));
  note({{Fact::Victim, identity("a", "f")}});
  ASSERT_EQ(::unlink(at("a", "f").c_str()), 0);
  EXPECT_TRUE(repeat([&] { return fs_->names().unlink(kRootId, "f", request_); }));
  EXPECT_NE(f, g);
}

TEST_F(RepeatedRequestTest, ADirectoryIsRemovedOnce) {
  const auto remove = [&] { return fs_->names().rmdir(kRootId, "d", request_); };
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  id_of("d");
  ASSERT_TRUE(try_first(remove));
  succeed();
  EXPECT_TRUE(repeat(remove));

  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  id_of("d");
  note({{Fact::Victim, identity("a", "d")}});
  ASSERT_EQ(::rmdir(at("b", "d").c_str()), 0);
  EXPECT_TRUE(repeat(remove)) << "the first attempt had removed one copy";
  EXPECT_EQ(shown("abc"), "");
}

TEST_F(RepeatedRequestTest, ARemovedDirectoryIsKnownToBeRemoved) {
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  note({{Fact::Victim, identity("a", "d")}});
  const UniqueFd held = test::open_directory(at("a", "d"));
  ASSERT_EQ(::rmdir(at("a", "d").c_str()), 0);
  ASSERT_TRUE(repeat([&] { return fs_->names().rmdir(kRootId, "d", request_); }));
  EXPECT_TRUE(failed_with(fs_->names().mkdir(d, "x", 0755, kRoot, request_), ENOENT));
}

// One rename, in all states in which the first attempt may have left it.
struct RenameCase {
  const char* what;
  const char* source;  // tier and name; a slash at the end means a directory
  const char* target;  // the same; "" for none
  unsigned flags;
};

class RepeatedRenameTest : public RepeatedRequestTest {
 protected:
  void make(const std::string& path) {
    if (path.ends_with('/')) {
      dir_.make_dir(path.substr(0, path.size() - 1));
    } else if (!path.empty()) {
      dir_.make_file(path, path);
    }
  }
  void prepare_case(const RenameCase& each) {
    note_ = {};
    dir_.make_dir("a/to");
    dir_.make_dir("b/to");
    make(each.source);
    make(each.target);
    id_of("x");
    id_of("to");
    if (*each.target) id_of("to/y");
  }
  Result<void> request(const RenameCase& each) {
    return fs_->names().rename(kRootId, "x", id_of("to"), "y", each.flags, request_);
  }
  void clear() {
    for (const char* path : {"a/x", "b/x", "a/to/y", "b/to/y"}) ::remove((dir_ / path).c_str());
  }

  static constexpr RenameCase kCases[] = {
      {"to a new name", "a/x", "", 0},
      {"to a new name only", "b/x", "", RENAME_NOREPLACE},
      {"over a file", "a/x", "a/to/y", 0},
      {"over a file of another tier", "a/x", "b/to/y", 0},
      {"with a file", "a/x", "a/to/y", RENAME_EXCHANGE},
      {"with a file of another tier", "a/x", "b/to/y", RENAME_EXCHANGE},
      {"of a directory", "a/x/", "", 0},
      {"over an empty directory", "a/x/", "a/to/y/", 0},
      {"over an empty directory of another tier", "b/x/", "a/to/y/", 0},
      {"with a directory", "a/x", "a/to/y/", RENAME_EXCHANGE},
  };
};

TEST_F(RepeatedRenameTest, IsDoneOnce) {
  for (const RenameCase& each : kCases) {
    SCOPED_TRACE(each.what);
    prepare_case(each);
    const InodeId source = id_of("x");
    ASSERT_TRUE(try_first([&] { return request(each); }));
    const std::string tree = shown("abc");
    succeed();
    EXPECT_TRUE(repeat([&] { return request(each); }));
    EXPECT_EQ(shown("abc"), tree);
    EXPECT_EQ(id_of("to/y"), source);
    EXPECT_EQ(has(kRootId, "x"), (each.flags & RENAME_EXCHANGE) != 0);
    clear();
  }
}

TEST_F(RepeatedRenameTest, IsDoneIfItWasOnlyNoted) {
  for (const RenameCase& each : kCases) {
    SCOPED_TRACE(each.what);
    prepare_case(each);
    const InodeId source = id_of("x");
    const InodeId target = *each.target ? id_of("to/y") : InodeId{};
    note({{Fact::Source, to_number(source)}, {Fact::Victim, to_number(target)}});
    EXPECT_TRUE(repeat([&] { return request(each); }));
    EXPECT_EQ(id_of("to/y"), source);
    if (each.flags & RENAME_EXCHANGE) {
      EXPECT_EQ(id_of("x"), target);
    }
    clear();
  }
}

// A successor knows the files by their old names.
TEST_F(RepeatedRenameTest, TheNewNameIsKnownAfterwards) {
  prepare_case({"", "a/x", "a/to/y", RENAME_EXCHANGE});
  const InodeId x = id_of("x"), y = id_of("to/y");
  note({{Fact::Source, to_number(x)}, {Fact::Victim, to_number(y)}});
  ASSERT_EQ(::renameat2(AT_FDCWD, at("a", "x").c_str(), AT_FDCWD, at("a", "to/y").c_str(),
                        RENAME_EXCHANGE),
            0);
  ASSERT_TRUE(repeat([&] {
    return fs_->names().rename(kRootId, "x", id_of("to"), "y", RENAME_EXCHANGE, request_);
  }));
  const auto location = [&](InodeId id) { return *fs_->xattrs().get(id, "user.sluice.location"); };
  EXPECT_EQ(location(x), at("a", "to/y"));
  EXPECT_EQ(location(y), at("a", "x"));
  EXPECT_TRUE(fs_->names().unlink(id_of("to"), "y", request_)) << "without a lookup before";
}

TEST_F(RepeatedRenameTest, AReplacedDirectoryIsKnownToBeRemoved) {
  prepare_case({"", "a/x/", "a/to/y/", 0});
  const InodeId x = id_of("x"), y = id_of("to/y");
  note({{Fact::Source, to_number(x)}, {Fact::Victim, to_number(y)}});
  const UniqueFd held = test::open_directory(at("a", "to/y"));
  ASSERT_EQ(::rename(at("a", "x").c_str(), at("a", "to/y").c_str()), 0);
  ASSERT_TRUE(
      repeat([&] { return fs_->names().rename(kRootId, "x", id_of("to"), "y", 0, request_); }));
  EXPECT_TRUE(failed_with(fs_->names().mkdir(y, "new", 0755, kRoot, request_), ENOENT));
  EXPECT_TRUE(fs_->names().mkdir(x, "new", 0755, kRoot, request_));
}

TEST_F(RepeatedRenameTest, OfHardLinksDoesNothing) {
  prepare_case({"", "a/x", "", 0});
  ASSERT_EQ(::link(at("a", "x").c_str(), at("a", "to/y").c_str()), 0);
  const auto request = [&] { return rename(kRootId, "x", id_of("to"), "y", 0, request_); };
  ASSERT_TRUE(try_first(request));
  succeed();
  EXPECT_TRUE(repeat(request));
  EXPECT_TRUE(test::exists(at("a", "x")) && test::exists(at("a", "to/y")));
}

TEST_F(RepeatedRenameTest, AnswersAsBeforeIfNothingWasNoted) {
  prepare_case({"", "a/x", "a/to/y", 0});
  const auto request = [&](const char* name, unsigned flags) {
    return repeat([&] { return rename(kRootId, name, id_of("to"), "y", flags, request_); });
  };
  EXPECT_TRUE(failed_with(request("x", RENAME_NOREPLACE), EEXIST));
  EXPECT_TRUE(failed_with(request("none", 0), ENOENT));
}

TEST_F(RepeatedRequestTest, AnAppendGoesWhereTheFirstAttemptPutIt) {
  dir_.make_file("a/f", "1");
  ASSERT_TRUE(try_first([&] { return append(id_of("f"), "23"); }));
  succeed();
  EXPECT_TRUE(repeat([&] { return append(id_of("f"), "23"); }));
  EXPECT_EQ(read_path("f"), "123");
  for (const std::string there : {"12", "123"}) {
    test::write_file(at("a", "f"), there);
    note({{Fact::Size, 1}});
    EXPECT_TRUE(repeat([&] { return append(id_of("f"), "23"); }));
    EXPECT_EQ(read_path("f"), "123") << there;
    EXPECT_TRUE(repeat([&] { return append(id_of("f"), "3", 1); })) << "in two parts";
    EXPECT_EQ(read_path("f"), "123") << there;
  }
}

TEST_F(RepeatedRequestTest, AnAppendToAnAppendOnlyFileIsCompleted) {
  const auto set_flags = [&](int flags) {
    return ::ioctl(test::open_file(at("a", "f"), O_RDONLY).get(), FS_IOC_SETFLAGS, &flags);
  };
  for (const std::string there : {"1", "12", "123"}) {
    dir_.make_file("a/f", there);
    if (set_flags(FS_APPEND_FL) < 0) GTEST_SKIP() << "the filesystem has no chattr +a";
    const InodeId f = id_of("f");
    EXPECT_TRUE(fs_->files().open(f, O_WRONLY | O_APPEND, kOpener, std::nullopt, request_));
    note({{Fact::Size, 1}});
    EXPECT_TRUE(repeat([&] { return append(f, "23"); })) << there;
    EXPECT_EQ(read_all(f), "123") << there;
    EXPECT_TRUE(repeat([&] { return append(f, "3", 1); })) << "in two parts";
    EXPECT_EQ(read_all(f), "123") << there;
    fs_->files().release(f, O_WRONLY | O_APPEND);
    ASSERT_EQ(set_flags(0), 0);
  }
}

TEST_F(RepeatedRequestTest, AnOpenTruncatesOnce) {
  dir_.make_file("a/f", "old");
  const auto open = [&] {
    return fs_->files().open(id_of("f"), O_WRONLY | O_TRUNC, kOpener, std::nullopt, request_);
  };
  ASSERT_TRUE(try_first(open));
  test::write_file(at("a", "f"), "new");  // as a writer by passthrough does
  succeed();
  EXPECT_TRUE(repeat(open));
  EXPECT_EQ(read_path("f"), "new");
  note({});
  EXPECT_TRUE(repeat(open));
  EXPECT_EQ(read_path("f"), "");
}

TEST_F(RepeatedRequestTest, AnXattrIsCreatedAndRemovedOnce) {
  dir_.make_file("a/f", "");
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  for (const char* path : {"f", "d"}) {
    SCOPED_TRACE(path);
    const auto set = [&](const char* value) {
      return fs_->xattrs().set(id_of(path), "user.k", value, 1, XATTR_CREATE, kRoot, request_);
    };
    const auto remove = [&] {
      return fs_->xattrs().remove(id_of(path), "user.k", kRoot, request_);
    };
    forget_note();
    ASSERT_TRUE(try_first([&] { return set("v"); }));
    succeed();
    EXPECT_TRUE(repeat([&] { return set("v"); }));
    EXPECT_EQ(xattr(path, "user.k"), "v");
    forget_note();
    EXPECT_TRUE(failed_with(try_first([&] { return set("w"); }), EEXIST));
    EXPECT_TRUE(failed_with(repeat([&] { return set("w"); }), EEXIST)) << "nothing was set";

    forget_note();
    ASSERT_TRUE(try_first(remove));
    succeed();
    EXPECT_TRUE(repeat(remove));
    EXPECT_EQ(xattr(path, "user.k"), "error: ENODATA");
    forget_note();
    EXPECT_TRUE(failed_with(try_first(remove), ENODATA));
    EXPECT_TRUE(failed_with(repeat(remove), ENODATA)) << "nothing was removed";
  }
}

TEST_F(RepeatedRequestTest, APinIsSetAndRemovedOnce) {
  dir_.make_file("a/f", "");
  const auto set = [&] {
    return fs_->xattrs().set(id_of("f"), "user.sluice.pin", "b", 1, 0, kRoot, request_);
  };
  const auto remove = [&] {
    return fs_->xattrs().remove(id_of("f"), "user.sluice.pin", kRoot, request_);
  };
  ASSERT_TRUE(try_first(set));
  succeed();
  EXPECT_TRUE(repeat(set));
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "b");
  forget_note();
  ASSERT_TRUE(try_first(remove));
  succeed();
  EXPECT_TRUE(repeat(remove));
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "error: ENODATA");
}

}  // namespace
}  // namespace sluice
