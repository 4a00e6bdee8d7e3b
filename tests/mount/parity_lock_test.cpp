// SPDX-License-Identifier: BSD-2-Clause
// Advisory locks between processes and between open files.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "tests/mount/parity.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class LockParityTest : public ParityTest {};

struct flock range(short type, off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  return lock;
}

// The result for another process.
std::string try_elsewhere(const Side& side, int command, struct flock lock) {
  return in_child([&]() -> std::string {
    const UniqueFd fd(::open((side / "f").c_str(), O_RDWR | O_CLOEXEC));
    return ::fcntl(fd.get(), command, &lock) < 0 ? errno_name(errno) : "ok";
  });
}

// The result of F_GETLK in another process; records only whether the pid of the owner is ours.
std::string ask_elsewhere(const Side& side, struct flock lock, pid_t owner) {
  return in_child([&]() -> std::string {
    const UniqueFd fd(::open((side / "f").c_str(), O_RDWR | O_CLOEXEC));
    if (::fcntl(fd.get(), F_GETLK, &lock) < 0) return errno_name(errno);
    if (lock.l_type == F_UNLCK) return "free";
    return std::to_string(lock.l_type) + " " + std::to_string(lock.l_start) + "+" +
           std::to_string(lock.l_len) + (lock.l_pid == owner ? " ours" : " not ours");
  });
}

TEST_F(LockParityTest, RecordLocksExcludeOtherProcessesByRange) {
  same([](Side& side) {
    side.write("f", pattern(1000, 1));
    const UniqueFd fd = side.open("f", O_RDWR);
    auto lock = range(F_WRLCK, 100, 100);
    side.done("lock", ::fcntl(fd.get(), F_SETLK, &lock));
    side.note("same range", try_elsewhere(side, F_SETLK, range(F_WRLCK, 100, 100)));
    side.note("read", try_elsewhere(side, F_SETLK, range(F_RDLCK, 150, 1)));
    side.note("beside", try_elsewhere(side, F_SETLK, range(F_WRLCK, 200, 100)));
    side.note("whole", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
    side.note("who", ask_elsewhere(side, range(F_WRLCK, 0, 0), ::getpid()));
    side.note("who, beside", ask_elsewhere(side, range(F_WRLCK, 300, 10), ::getpid()));
    auto part = range(F_UNLCK, 120, 20);
    side.done("unlock the middle", ::fcntl(fd.get(), F_SETLK, &part));
    side.note("middle", try_elsewhere(side, F_SETLK, range(F_WRLCK, 120, 20)));
    side.note("head", try_elsewhere(side, F_SETLK, range(F_WRLCK, 100, 20)));
    auto shared = range(F_RDLCK, 500, 10);
    side.done("shared", ::fcntl(fd.get(), F_SETLK, &shared));
    side.note("shared with shared", try_elsewhere(side, F_SETLK, range(F_RDLCK, 500, 10)));
    side.note("shared with exclusive", try_elsewhere(side, F_SETLK, range(F_WRLCK, 500, 10)));
  });
}

TEST_F(LockParityTest, ClosingAnyDescriptorOfTheFileReleasesRecordLocks) {
  same([](Side& side) {
    side.write("f", "x");
    const UniqueFd fd = side.open("f", O_RDWR);
    auto lock = range(F_WRLCK, 0, 0);
    side.done("lock", ::fcntl(fd.get(), F_SETLK, &lock));
    side.note("held", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
    side.open("f", O_RDONLY);  // closed at once, which releases the locks (POSIX)
    side.note("after the close", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
  });
}

TEST_F(LockParityTest, RecordLocksNeedTheRightOpenMode) {
  same([](Side& side) {
    side.write("f", "x");
    const UniqueFd reader = side.open("f", O_RDONLY);
    const UniqueFd writer = side.open("f", O_WRONLY);
    auto write_lock = range(F_WRLCK, 0, 0);
    auto read_lock = range(F_RDLCK, 0, 0);
    side.done("write lock on a reader", ::fcntl(reader.get(), F_SETLK, &write_lock));
    side.done("read lock on a writer", ::fcntl(writer.get(), F_SETLK, &read_lock));
    side.done("read lock on a reader", ::fcntl(reader.get(), F_SETLK, &read_lock));
    auto bad = range(F_WRLCK, -5, 2);
    side.done("negative", ::fcntl(writer.get(), F_SETLK, &bad));
  });
}

TEST_F(LockParityTest, ProcessThatDiesReleasesItsLocks) {
  same([](Side& side) {
    side.write("f", "x");
    side.note("child", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
    side.note("after it died", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
    const UniqueFd fd = side.open("f", O_RDWR);
    side.note("flock by a child", in_child([&]() -> std::string {
                const UniqueFd own(::open((side / "f").c_str(), O_RDWR | O_CLOEXEC));
                return ::flock(own.get(), LOCK_EX | LOCK_NB) < 0 ? errno_name(errno) : "ok";
              }));
    side.done("flock after it died", ::flock(fd.get(), LOCK_EX | LOCK_NB));
  });
}

TEST_F(LockParityTest, WaiterGetsTheLockWhenItIsReleased) {
  same([](Side& side) {
    side.write("f", "x");
    const UniqueFd fd = side.open("f", O_RDWR);
    auto lock = range(F_WRLCK, 0, 0);
    side.done("lock", ::fcntl(fd.get(), F_SETLK, &lock));
    std::array<int, 2> ends{};
    side.done("pipe", ::pipe2(ends.data(), O_CLOEXEC));
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      const UniqueFd own(::open((side / "f").c_str(), O_RDWR | O_CLOEXEC));
      auto wanted = range(F_WRLCK, 0, 0);
      ::write(write_end.get(), "w", 1);  // about to wait
      const int result = ::fcntl(own.get(), F_SETLKW, &wanted);
      ::write(write_end.get(), result == 0 ? "g" : "f", 1);
      ::_exit(0);
    }
    write_end.reset();
    char byte = 0;
    side.call("child waits", ::read(read_end.get(), &byte, 1));
    side.note("signal", std::string(1, byte));
    auto unlock = range(F_UNLCK, 0, 0);
    side.done("unlock", ::fcntl(fd.get(), F_SETLK, &unlock));
    side.call("child answers", ::read(read_end.get(), &byte, 1));
    side.note("signal", std::string(1, byte));
    ::waitpid(child, nullptr, 0);
  });
}

TEST_F(LockParityTest, OpenFileDescriptionLocksBelongToTheOpenFile) {
  same([](Side& side) {
    side.write("f", pattern(100, 1));
    UniqueFd first = side.open("f", O_RDWR);
    const UniqueFd second = side.open("f", O_RDWR);
    auto lock = range(F_WRLCK, 0, 10);
    side.done("first", ::fcntl(first.get(), F_OFD_SETLK, &lock));
    auto same_range = range(F_WRLCK, 5, 10);
    side.done("second, same process", ::fcntl(second.get(), F_OFD_SETLK, &same_range));
    auto beside = range(F_WRLCK, 10, 10);
    side.done("second, beside", ::fcntl(second.get(), F_OFD_SETLK, &beside));
    auto question = range(F_WRLCK, 0, 5);
    side.done("ask", ::fcntl(second.get(), F_OFD_GETLK, &question));
    side.note("answer", std::to_string(question.l_type) + " " + std::to_string(question.l_pid));
    side.note("traditional, elsewhere", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 5)));
    UniqueFd copy(::dup(first.get()));
    first.reset();
    side.done("a copy keeps it", ::fcntl(second.get(), F_OFD_SETLK, &same_range));
    copy.reset();
    side.done("the last close frees it", ::fcntl(second.get(), F_OFD_SETLK, &same_range));
  });
}

TEST_F(LockParityTest, FlockIsPerOpenFile) {
  same([](Side& side) {
    side.write("f", "x");
    UniqueFd first = side.open("f", O_RDONLY);
    const UniqueFd second = side.open("f", O_RDONLY);
    side.done("exclusive", ::flock(first.get(), LOCK_EX | LOCK_NB));
    side.done("exclusive again", ::flock(second.get(), LOCK_EX | LOCK_NB));
    side.done("shared", ::flock(second.get(), LOCK_SH | LOCK_NB));
    side.done("downgrade", ::flock(first.get(), LOCK_SH | LOCK_NB));
    side.done("shared", ::flock(second.get(), LOCK_SH | LOCK_NB));
    side.done("upgrade", ::flock(first.get(), LOCK_EX | LOCK_NB));
    side.done("unlock", ::flock(second.get(), LOCK_UN));
    side.done("upgrade", ::flock(first.get(), LOCK_EX | LOCK_NB));
    first.reset();
    side.done("after the close", ::flock(second.get(), LOCK_EX | LOCK_NB));
    side.mkdir("d");
    const UniqueFd directory = side.open("d", O_RDONLY | O_DIRECTORY);
    side.done("a directory", ::flock(directory.get(), LOCK_EX | LOCK_NB));
    const UniqueFd directory_again = side.open("d", O_RDONLY | O_DIRECTORY);
    side.done("a directory again", ::flock(directory_again.get(), LOCK_EX | LOCK_NB));
  });
}

TEST_F(LockParityTest, FlockAndRecordLocksAreIndependent) {
  same([](Side& side) {
    side.write("f", "x");
    const UniqueFd fd = side.open("f", O_RDWR);
    side.done("flock", ::flock(fd.get(), LOCK_EX | LOCK_NB));
    side.note("record", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
  });
}

TEST_F(LockParityTest, LocksApplyToAllNamesOfAFile) {
  same([](Side& side) {
    side.write("g", "x");
    side.link("g", "f");
    const UniqueFd fd = side.open("g", O_RDWR);
    auto lock = range(F_WRLCK, 0, 0);
    side.done("lock", ::fcntl(fd.get(), F_SETLK, &lock));
    side.note("through f", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
    side.rename("f", "h");
    side.rename("h", "f");
    side.note("after renames", try_elsewhere(side, F_SETLK, range(F_WRLCK, 0, 0)));
  });
}

}  // namespace
}  // namespace sluice::test
