// SPDX-License-Identifier: BSD-2-Clause
// rename(2): every kind onto every kind, with every flag.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <array>

#include "tests/mount/parity.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class RenameParityTest : public ParityTest {};

constexpr std::array kKinds{"missing", "file", "link", "dir", "full", "fifo"};

// Creates a file of each kind in `place`; "missing" is not created.
void make_kinds(Side& side, const std::string& place) {
  side.mkdir(place);
  side.write(place + "/file", place);
  side.symlink("target of " + place, place + "/link");
  side.mkdir(place + "/dir", 0700);
  side.mkdir(place + "/full");
  side.write(place + "/full/inside", place);
  side.mknod(place + "/fifo", S_IFIFO | 0600);
}

void every_kind_onto_every_kind(Side& side, unsigned flags) {
  int round = 0;
  for (const std::string from : kKinds) {
    for (const std::string to : kKinds) {
      const std::string here = "a" + std::to_string(round);
      const std::string there = "b" + std::to_string(round++);
      make_kinds(side, here);
      make_kinds(side, there);
      side.rename(here + "/" + from, there + "/" + to, flags);
      side.list(here);
      side.list(there);
      side.look(here);
      side.look(there);
    }
  }
}

TEST_F(RenameParityTest, EveryKindOntoEveryKind) {
  same([](Side& side) { every_kind_onto_every_kind(side, 0); });
}

TEST_F(RenameParityTest, NoReplaceNeverReplaces) {
  same([](Side& side) { every_kind_onto_every_kind(side, RENAME_NOREPLACE); });
}

TEST_F(RenameParityTest, ExchangeSwapsAnyTwoThings) {
  same([](Side& side) { every_kind_onto_every_kind(side, RENAME_EXCHANGE); });
}

TEST_F(RenameParityTest, UnknownOrContradictoryFlagsAreRefused) {
  same([](Side& side) {
    side.write("a", "a");
    side.write("b", "b");
    side.rename("a", "b", RENAME_NOREPLACE | RENAME_EXCHANGE);
    side.rename("a", "b", 1U << 10);
  });
}

TEST_F(RenameParityTest, WithinOneDirectory) {
  same([](Side& side) {
    make_kinds(side, "d");
    side.rename("d/file", "d/file2");
    side.rename("d/link", "d/link2");
    side.rename("d/dir", "d/dir2");
    side.rename("d/full", "d/full2");
    side.rename("d/file2", "d/link2");
    side.rename("d/full2", "d/dir2");
    side.read("d/dir2/inside");
    side.list("d");
    side.look("d");
  });
}

TEST_F(RenameParityTest, OntoItselfChangesNothing) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    side.rename("f", "f");
    side.rename("d", "d");
    side.rename("f", "f", RENAME_NOREPLACE);
    side.rename("f", "f", RENAME_EXCHANGE);
    side.rename("f", "./f");
    side.look("f");
  });
}

TEST_F(RenameParityTest, OntoAnotherNameOfTheSameFileKeepsBoth) {
  same([](Side& side) {
    side.write("a", "x");
    side.link("a", "b");
    side.rename("a", "b");
    side.list(".");
    side.look("a");
    side.look("b");
    side.rename("a", "b", RENAME_EXCHANGE);
    side.list(".");
  });
}

TEST_F(RenameParityTest, DirectoryCannotMoveIntoItself) {
  same([](Side& side) {
    side.mkdir("d");
    side.mkdir("d/e");
    side.mkdir("d/e/f");
    side.rename("d", "d/e/g");
    side.rename("d", "d/g");
    side.rename("d", "d/e");
    side.rename("d/e/f", "d");
    side.rename("d/e", "d/e/f", RENAME_EXCHANGE);
    side.rename("d", "d/e", RENAME_EXCHANGE);
    side.rename("d/.", "x");
    side.rename("d/..", "x");
    side.rename("d/e", "d/..");
  });
}

TEST_F(RenameParityTest, BadPathsFail) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    side.rename("missing", "g");
    side.rename("f", "missing/g");
    side.rename("missing/f", "g");
    side.rename("f/x", "g");
    side.rename("f", "f/x");
    side.rename("f", "g/");
    side.rename("d", "e/");
    side.rename("f/", "g");
    side.look("e");
  });
}

TEST_F(RenameParityTest, RenamedDirectoryKeepsItsContentAndLinkCountsAreUpdated) {
  same([](Side& side) {
    side.mkdir("a");
    side.mkdir("b");
    side.mkdir("a/d");
    side.mkdir("a/d/sub");
    side.write("a/d/sub/f", "deep");
    side.rename("a/d", "b/d");
    side.look("a");
    side.look("b");
    side.read("b/d/sub/f");
    side.list("a");
    side.mkdir("a/d");
    side.rename("b/d", "a/d");
    side.read("a/d/sub/f");
    side.look("b");
  });
}

TEST_F(RenameParityTest, ReaderOfAReplacedFileKeepsTheOldBytes) {
  same([](Side& side) {
    side.write("old", pattern(200'000, 1));
    side.write("new", pattern(150'000, 2));
    const UniqueFd fd = side.open("old", O_RDWR);
    side.rename("new", "old");
    struct stat st {};
    side.done("fstat", ::fstat(fd.get(), &st));
    side.look("the replaced file", st);
    std::string content(300'000, '\0');
    const long got = side.call("pread", ::pread(fd.get(), content.data(), content.size(), 0));
    side.note("old bytes", got == 200'000 && content.substr(0, 200'000) == pattern(200'000, 1));
    side.call("pwrite", ::pwrite(fd.get(), "x", 1, 0));
    side.look("old");
  });
}

TEST_F(RenameParityTest, OpenFileWorksAfterItsRename) {
  same([](Side& side) {
    side.mkdir("d");
    const UniqueFd fd = side.open("f", O_CREAT | O_RDWR);
    side.call("write", ::write(fd.get(), "before ", 7));
    side.rename("f", "d/g");
    side.call("write", ::write(fd.get(), "after", 5));
    side.rename("d", "e");
    side.done("fchmod", ::fchmod(fd.get(), 0600));
    side.read("e/g");
    side.look("e/g");
    side.done("ftruncate", ::ftruncate(fd.get(), 3));
    side.read("e/g");
  });
}

TEST_F(RenameParityTest, WorkingDirectoryWorksAfterItsRename) {
  same([](Side& side) {
    side.mkdir("a");
    side.mkdir("b");
    const UniqueFd fd = side.open("a", O_RDONLY | O_DIRECTORY);
    side.rename("a", "b/c");
    side.done("create", UniqueFd(::openat(fd.get(), "f", O_CREAT | O_WRONLY, 0644)).get());
    side.list("b/c");
    side.done("unlink", ::unlinkat(fd.get(), "f", 0));
  });
}

TEST_F(RenameParityTest, ChangesTheCtimeOfTheRenamedFile) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    const struct stat before = lstat_of(side / "f");
    side.moves_times("rename", {"."}, [&] { side.rename("f", "g"); });
    const struct stat after = lstat_of(side / "g");
    side.note("mtime stays", before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
    side.note("ctime moves", before.st_ctim.tv_nsec != after.st_ctim.tv_nsec);
    side.note("inode stays", before.st_ino == after.st_ino);
  });
}

TEST_F(RenameParityTest, ManyRenamesGiveTheRightResult) {
  same([](Side& side) {
    side.mkdir("a");
    side.mkdir("b");
    side.write("a/f", "x");
    for (int i = 0; i < 200; ++i) {
      side.rename(i % 2 ? "b/f" : "a/f", i % 2 ? "a/f" : "b/f");
      side.rename("a", "tmp");
      side.rename("b", "a");
      side.rename("tmp", "b");
    }
    side.list("a");
    side.list("b");
  });
}

}  // namespace
}  // namespace sluice::test
