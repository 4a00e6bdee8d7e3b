// SPDX-License-Identifier: BSD-2-Clause
// open(2) with all its flags.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "tests/mount/parity.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class OpenParityTest : public DataParityTest {};
SLUICE_IN_EVERY_MODE(OpenParityTest);

TEST_P(OpenParityTest, ExclusiveCreateFailsIfTheFileExists) {
  same([](Side& side) {
    side.open("f", O_RDONLY);
    side.open("f", O_CREAT | O_WRONLY, 0640);
    side.look("f");
    side.open("f", O_CREAT | O_WRONLY, 0777);
    side.look("f");
    side.open("f", O_CREAT | O_EXCL | O_WRONLY);
    side.open("g", O_CREAT | O_EXCL | O_RDWR, 0600);
    side.symlink("nowhere", "dangling");
    side.open("dangling", O_CREAT | O_EXCL | O_WRONLY);
    side.open("dangling", O_CREAT | O_WRONLY);
    side.open("missing/f", O_CREAT | O_WRONLY);
    side.open("f/g", O_CREAT | O_WRONLY);
  });
}

TEST_P(OpenParityTest, EveryModeBitOfANewFileIsKept) {
  same([](Side& side) {
    for (const mode_t mode : {0, 0400, 0600, 0644, 0755, 01644, 02755, 04755, 07777}) {
      const std::string name = "f" + std::to_string(mode);
      side.open(name, O_CREAT | O_WRONLY, mode);
      side.look(name);
    }
  });
}

TEST_P(OpenParityTest, CreatorCanWriteDespiteAReadOnlyMode) {
  same([](Side& side) {
    side.as(kNobody, [](Side& nobody) {
      const UniqueFd fd = nobody.open("f", O_CREAT | O_RDWR, 0);
      nobody.call("write", ::write(fd.get(), "x", 1));
      nobody.open("f", O_RDONLY);
      const UniqueFd other = nobody.open("g", O_CREAT | O_WRONLY, 0444);
      nobody.call("write", ::write(other.get(), "x", 1));
      nobody.open("g", O_WRONLY);
    });
  });
}

TEST_P(OpenParityTest, TruncateOnOpenEmptiesTheFile) {
  same([](Side& side) {
    side.write("f", pattern(300'000, 1));
    side.moves_times("O_TRUNC", {"f"}, [&] { side.open("f", O_WRONLY | O_TRUNC); });
    side.look("f");
    side.read("f");
    side.write("g", "abc");
    side.moves_times("O_TRUNC of a small one", {"g"}, [&] { side.open("g", O_RDWR | O_TRUNC); });
    side.read("g");
  });
}

TEST_P(OpenParityTest, AppendIgnoresThePositionAndTheOffset) {
  same([](Side& side) {
    side.write("f", "0123456789");
    const UniqueFd fd = side.open("f", O_RDWR | O_APPEND);
    side.call("seek", ::lseek(fd.get(), 2, SEEK_SET));
    side.call("write", ::write(fd.get(), "ab", 2));
    side.call("pwrite", ::pwrite(fd.get(), "cd", 2, 0));
    side.call("position", ::lseek(fd.get(), 0, SEEK_CUR));
    side.read("f");
  });
}

TEST_P(OpenParityTest, NoFollowAndDirectoryRefuseTheWrongKind) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    side.symlink("f", "to-file");
    side.symlink("d", "to-dir");
    side.symlink("to-self", "to-self");
    side.open("to-file", O_RDONLY | O_NOFOLLOW);
    side.open("to-dir", O_RDONLY | O_NOFOLLOW);
    side.open("to-dir", O_RDONLY | O_DIRECTORY);
    side.open("to-dir", O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    side.open("to-self", O_RDONLY);
    side.open("f", O_RDONLY | O_DIRECTORY);
    side.open("d", O_RDONLY | O_DIRECTORY);
    side.open("d", O_RDONLY);
    side.open("d", O_WRONLY);
    side.open("d", O_RDWR);
    side.open("d", O_RDONLY | O_CREAT);
    side.open("f/", O_RDONLY);
  });
}

TEST_P(OpenParityTest, ReadingADirectoryAsAFileFails) {
  same([](Side& side) {
    side.mkdir("d");
    const UniqueFd fd = side.open("d", O_RDONLY);
    std::array<char, 8> buffer;
    side.call("read", ::read(fd.get(), buffer.data(), buffer.size()));
    side.call("ftruncate", ::ftruncate(fd.get(), 0));
  });
}

TEST_P(OpenParityTest, PathDescriptorsCannotReadOrWrite) {
  same([](Side& side) {
    side.write("f", "content");
    side.symlink("f", "s");
    side.mkdir("d");
    const UniqueFd fd = side.open("f", O_PATH);
    std::array<char, 8> buffer{};
    side.call("read", ::read(fd.get(), buffer.data(), buffer.size()));
    side.call("fchmod", ::fchmod(fd.get(), 0600));
    struct stat st {};
    side.done("fstat", ::fstat(fd.get(), &st));
    side.look("f by O_PATH", st);
    const UniqueFd again(
        ::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDONLY | O_CLOEXEC));
    side.call("read reopened", ::read(again.get(), buffer.data(), 7));
    const UniqueFd link = side.open("s", O_PATH | O_NOFOLLOW);
    side.done("fstat link", ::fstat(link.get(), &st));
    side.look("s by O_PATH", st);
    side.call("readlinkat", ::readlinkat(link.get(), "", buffer.data(), buffer.size()));
    const UniqueFd directory = side.open("d", O_PATH | O_DIRECTORY);
    side.done("mkdirat", ::mkdirat(directory.get(), "e", 0755));
  });
}

TEST_P(OpenParityTest, TemporaryFileHasNoNameUntilItIsLinked) {
  same([](Side& side) {
    const UniqueFd fd = side.open(".", O_TMPFILE | O_RDWR, 0640);
    struct stat st {};
    side.done("fstat", ::fstat(fd.get(), &st));
    side.look("O_TMPFILE", st);
    const std::string content = pattern(200'000, 2);
    side.call("write", ::write(fd.get(), content.data(), content.size()));
    side.list(".");
    const std::string proc = "/proc/self/fd/" + std::to_string(fd.get());
    side.done("linkat", ::linkat(AT_FDCWD, proc.c_str(), AT_FDCWD, (side / "named").c_str(),
                                 AT_SYMLINK_FOLLOW));
    side.done("linkat again", ::linkat(AT_FDCWD, proc.c_str(), AT_FDCWD, (side / "named").c_str(),
                                       AT_SYMLINK_FOLLOW));
    side.look("named");
    side.read("named");
    side.list(".");
    side.done("linkat a second name",
              ::linkat(fd.get(), "", AT_FDCWD, (side / "second").c_str(), AT_EMPTY_PATH));
    side.look("second");
  });
}

TEST_P(OpenParityTest, ExclusiveTemporaryFileCannotBeLinked) {
  same([](Side& side) {
    const UniqueFd fd = side.open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600);
    side.done("linkat", ::linkat(fd.get(), "", AT_FDCWD, (side / "f").c_str(), AT_EMPTY_PATH));
    side.open(".", O_TMPFILE | O_RDONLY, 0600);
    side.open("missing", O_TMPFILE | O_RDWR, 0600);
    side.write("f", "");
    side.open("f", O_TMPFILE | O_RDWR, 0600);
  });
}

TEST_P(OpenParityTest, TemporaryFileHasTheOwnerAndGroupOfANewFile) {
  same([](Side& side) {
    side.mkdir("d", 0777);
    side.chown("d", 0, 555);
    side.chmod("d", 02777);
    side.as(kAlice, [](Side& alice) {
      ::umask(027);
      const UniqueFd fd = alice.open("d", O_TMPFILE | O_RDWR, 0666);
      struct stat st {};
      alice.done("fstat", ::fstat(fd.get(), &st));
      alice.look("O_TMPFILE", st);
    });
  });
}

TEST_P(OpenParityTest, AccessModeRestrictsReadsAndWrites) {
  same([](Side& side) {
    side.write("f", "abc");
    std::array<char, 4> buffer{};
    const UniqueFd reader = side.open("f", O_RDONLY);
    const UniqueFd writer = side.open("f", O_WRONLY);
    side.call("write to a reader", ::write(reader.get(), "x", 1));
    side.call("read from a writer", ::read(writer.get(), buffer.data(), 1));
    side.call("ftruncate a reader", ::ftruncate(reader.get(), 0));
    side.call("pread at a negative offset", ::pread(reader.get(), buffer.data(), 1, -1));
    side.call("flags of the reader", ::fcntl(reader.get(), F_GETFL) & O_ACCMODE);
    side.call("read past the end", ::pread(reader.get(), buffer.data(), 4, 100));
    side.call("read across the end", ::pread(reader.get(), buffer.data(), 4, 1));
  });
}

TEST_P(OpenParityTest, AppendCanBeSetLater) {
  same([](Side& side) {
    side.write("f", "abc");
    const UniqueFd fd = side.open("f", O_RDWR);
    side.call("set O_APPEND", ::fcntl(fd.get(), F_SETFL, O_APPEND));
    side.call("pwrite", ::pwrite(fd.get(), "d", 1, 0));
    side.read("f");
    side.call("clear O_APPEND", ::fcntl(fd.get(), F_SETFL, 0));
    side.call("pwrite", ::pwrite(fd.get(), "X", 1, 0));
    side.read("f");
  });
}

TEST_P(OpenParityTest, OpeningASocketOrAnIdleFifoFails) {
  same([](Side& side) {
    side.mknod("socket", S_IFSOCK | 0600);
    side.mknod("fifo", S_IFIFO | 0600);
    side.open("socket", O_RDONLY);
    side.open("fifo", O_WRONLY | O_NONBLOCK);
    side.open("fifo", O_RDONLY | O_NONBLOCK);
  });
}

}  // namespace
}  // namespace sluice::test
