// SPDX-License-Identifier: BSD-2-Clause
// File data: writing, truncating, holes, copies, direct I/O, concurrent appends.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tests/mount/parity.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class BytesParityTest : public DataParityTest {};
SLUICE_IN_EVERY_MODE(BytesParityTest);

TEST_P(BytesParityTest, WritesAtAnyOffsetReadBackAndLeaveZeroesBetween) {
  same([](Side& side) {
    const UniqueFd fd = side.open("f", O_CREAT | O_RDWR);
    for (const off_t offset : {0, 1, 4095, 4097, 65'536, 131'071, 1'000'003, 5'000'000}) {
      const std::string bytes = pattern(777, static_cast<std::uint64_t>(offset));
      side.call("pwrite", ::pwrite(fd.get(), bytes.data(), bytes.size(), offset));
      struct stat st {};
      side.done("fstat", ::fstat(fd.get(), &st));
      side.note("size", st.st_size);
    }
    side.call("pwrite of nothing", ::pwrite(fd.get(), "", 0, 9'000'000));
    side.look("f");
    side.read("f");
  });
}

TEST_P(BytesParityTest, VectorsAreReadAndWrittenInOrder) {
  same([](Side& side) {
    const UniqueFd fd = side.open("f", O_CREAT | O_RDWR);
    std::string a = pattern(10, 1), b = pattern(100'000, 2), c = pattern(3, 3);
    std::array<iovec, 3> parts{{{a.data(), a.size()}, {b.data(), b.size()}, {c.data(), c.size()}}};
    side.call("writev", ::writev(fd.get(), parts.data(), 3));
    std::string x(5, '\0'), y(99'000, '\0');
    std::array<iovec, 2> into{{{x.data(), x.size()}, {y.data(), y.size()}}};
    side.call("preadv", ::preadv(fd.get(), into.data(), 2, 4));
    side.note("same", (x + y) == (a + b + c).substr(4, 99'005));
  });
}

TEST_P(BytesParityTest, OneWriterIsSeenByEveryReaderAtOnce) {
  same([](Side& side) {
    const UniqueFd writer = side.open("f", O_CREAT | O_WRONLY);
    const UniqueFd reader = side.open("f", O_RDONLY);
    side.link("f", "g");
    const UniqueFd other = side.open("g", O_RDONLY);
    std::string got(4096, '\0');
    for (int i = 0; i < 50; ++i) {
      const std::string bytes = pattern(4096, static_cast<std::uint64_t>(i));
      ::pwrite(writer.get(), bytes.data(), bytes.size(), i * 4096L);
      ::pread(reader.get(), got.data(), got.size(), i * 4096L);
      if (got != bytes) side.note("reader differs at", i);
      ::pread(other.get(), got.data(), got.size(), i * 4096L);
      if (got != bytes) side.note("reader of the other name differs at", i);
      struct stat st {};
      ::stat((side / "g").c_str(), &st);
      if (st.st_size != (i + 1) * 4096L) side.note("stat differs at", i);
    }
  });
}

TEST_P(BytesParityTest, TruncateCutsAndGrowsWithZeroes) {
  same([](Side& side) {
    side.write("f", pattern(10'000, 1));
    for (const off_t size : {9'999, 5'000, 4'096, 4'095, 100'000, 1, 0, 3}) {
      side.truncate("f", size);
      side.look("f");
      side.read("f");
    }
    side.truncate("f", -1);
    side.truncate("missing", 0);
    side.mkdir("d");
    side.truncate("d", 0);
    side.truncate("f", 1LL << 40);
    side.look("f");
    side.truncate("f", (1LL << 62));
    side.truncate("f", 0);
  });
}

TEST_P(BytesParityTest, FtruncateOfAnOpenFileShowsEverywhere) {
  same([](Side& side) {
    side.write("f", pattern(300'000, 1));
    const UniqueFd fd = side.open("f", O_RDWR);
    const UniqueFd reader = side.open("f", O_RDONLY);
    std::string got(300'000, '\0');
    side.call("read all", ::pread(reader.get(), got.data(), got.size(), 0));
    for (const off_t size : {200'001, 7, 250'000}) {
      side.done("ftruncate", ::ftruncate(fd.get(), size));
      side.call("read", ::pread(reader.get(), got.data(), got.size(), 0));
      side.look("f");
      side.read("f");
    }
    side.moves_times("ftruncate", {"f"},
                     [&] { side.done("ftruncate", ::ftruncate(fd.get(), 10)); });
    side.moves_times("ftruncate to the same size", {"f"},
                     [&] { side.done("ftruncate", ::ftruncate(fd.get(), 10)); });
    side.moves_times("truncate to the same size", {"f"}, [&] { side.truncate("f", 10); });
  });
}

TEST_P(BytesParityTest, WritesChangeTimesAndReadsDoNot) {
  same([](Side& side) {
    for (const std::size_t size : {std::size_t{100}, std::size_t{500'000}}) {
      const std::string name = "f" + std::to_string(size);
      side.write(name, pattern(size, 1));
      const UniqueFd fd = side.open(name, O_RDWR);
      side.moves_times("write", {name},
                       [&] { side.call("pwrite", ::pwrite(fd.get(), "x", 1, 5)); });
      side.moves_times("growing write", {name}, [&] {
        side.call("pwrite", ::pwrite(fd.get(), "x", 1, static_cast<off_t>(size)));
      });
      side.moves_times("read", {name}, [&] {
        char byte = 0;
        side.call("pread", ::pread(fd.get(), &byte, 1, 5));
      });
      side.moves_times("empty write", {name},
                       [&] { side.call("pwrite", ::pwrite(fd.get(), "", 0, 5)); });
      side.moves_times("open and close", {name}, [&] { side.open(name, O_RDWR); });
    }
  });
}

TEST_P(BytesParityTest, FallocateReservesZeroesAndPunchesHoles) {
  same([](Side& side) {
    side.write("f", pattern(100'000, 1));
    const UniqueFd fd = side.open("f", O_RDWR);
    const auto allocate = [&](const char* what, int mode, off_t offset, off_t length) {
      side.done(what, ::fallocate(fd.get(), mode, offset, length));
      struct stat st {};
      side.done("fstat", ::fstat(fd.get(), &st));
      side.note("size", st.st_size);
      side.read("f");
    };
    allocate("grow", 0, 90'000, 60'000);
    allocate("keep size", FALLOC_FL_KEEP_SIZE, 100'000, 500'000);
    allocate("punch", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5'000, 20'000);
    allocate("punch past the end", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 140'000, 1 << 20);
    allocate("zero", FALLOC_FL_ZERO_RANGE, 40'000, 10'001);
    allocate("zero and grow", FALLOC_FL_ZERO_RANGE, 150'000, 30'000);
    allocate("zero, keep size", FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 170'000, 90'000);
    allocate("punch without keeping size", FALLOC_FL_PUNCH_HOLE, 0, 4096);
    allocate("nothing", 0, 0, 0);
    allocate("negative", 0, -1, 5);
    side.moves_times("fallocate", {"f"},
                     [&] { side.done("grow", ::fallocate(fd.get(), 0, 0, 400'000)); });
    side.moves_times("punch", {"f"}, [&] {
      side.done("punch",
                ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 9000));
    });
    const UniqueFd reader = side.open("f", O_RDONLY);
    side.done("read-only", ::fallocate(reader.get(), 0, 0, 10));
  });
}

TEST_P(BytesParityTest, PunchingAHoleFreesItsBlocks) {
  same([](Side& side) {
    side.write("f", pattern(1 << 20, 1));
    const UniqueFd fd = side.open("f", O_RDWR);
    side.done("fsync", ::fsync(fd.get()));
    const blkcnt_t before = lstat_of(side / "f").st_blocks;
    side.done("punch",
              ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 512 << 10));
    side.done("fsync", ::fsync(fd.get()));
    side.note("fewer blocks", before - lstat_of(side / "f").st_blocks);
  });
}

// FUSE supports neither collapse nor insert: they must be refused or be correct.
TEST_P(BytesParityTest, CollapseIsCorrectOrRefused) {
  same([](Side& side) {
    side.write("f", pattern(16'384, 1));
    const UniqueFd fd = side.open("f", O_RDWR);
    const int result = ::fallocate(fd.get(), FALLOC_FL_COLLAPSE_RANGE, 4096, 4096);
    side.note("allowed", result == 0 || errno == EOPNOTSUPP);
    const std::string whole = pattern(16'384, 1);
    const std::string expected = result == 0 ? whole.substr(0, 4096) + whole.substr(8192) : whole;
    side.note("content", read_file(side / "f") == expected);
    side.unlink("f");
  });
}

TEST_P(BytesParityTest, HolesAndDataAreFound) {
  same([](Side& side) {
    const UniqueFd fd = side.open("f", O_CREAT | O_RDWR);
    const std::string block = pattern(4096, 1);
    side.call("data", ::pwrite(fd.get(), block.data(), block.size(), 1 << 20));
    side.call("data", ::pwrite(fd.get(), block.data(), block.size(), 3 << 20));
    side.done("ftruncate", ::ftruncate(fd.get(), 4 << 20));
    side.done("fsync", ::fsync(fd.get()));
    for (const off_t from : {0, 1 << 20, (1 << 20) + 5, 2 << 20, 3 << 20, (3 << 20) + 4096,
                             (4 << 20) - 1, 4 << 20, 5 << 20}) {
      side.call("data from " + std::to_string(from), ::lseek(fd.get(), from, SEEK_DATA));
      side.call("hole from " + std::to_string(from), ::lseek(fd.get(), from, SEEK_HOLE));
    }
    side.call("end", ::lseek(fd.get(), 0, SEEK_END));
    side.call("before the end", ::lseek(fd.get(), -10, SEEK_END));
    side.call("before the beginning", ::lseek(fd.get(), -10, SEEK_SET));
    side.call("bad whence", ::lseek(fd.get(), 0, 99));
    side.note("blocks", lstat_of(side / "f").st_blocks);
  });
}

TEST_P(BytesParityTest, CopyFileRangeCopies) {
  same([](Side& side) {
    side.write("from", pattern(600'000, 1));
    const UniqueFd from = side.open("from", O_RDONLY);
    const UniqueFd to = side.open("to", O_CREAT | O_RDWR);
    off_t in = 1000, out = 50;
    long left = 500'000;
    while (left > 0) {
      const long count =
          ::copy_file_range(from.get(), &in, to.get(), &out, static_cast<std::size_t>(left), 0);
      if (count <= 0) {
        side.call("copy_file_range", count);
        break;
      }
      left -= count;
    }
    side.note("left", left);
    side.look("to");
    side.read("to");
    off_t end = 600'000;
    side.call("at the end", ::copy_file_range(from.get(), &end, to.get(), nullptr, 100, 0));
    off_t a = 0, b = 100;
    side.call("overlapping", ::copy_file_range(from.get(), &a, from.get(), &b, 1000, 0));
    side.call("into a reader", ::copy_file_range(to.get(), &a, from.get(), &b, 1000, 0));
    a = 0, b = 300'000;
    const UniqueFd both = side.open("from", O_RDWR);
    side.call("within one file", ::copy_file_range(both.get(), &a, both.get(), &b, 1000, 0));
    side.read("from");
    side.moves_times("copy", {"to"}, [&] {
      a = 0, b = 0;
      side.call("copy", ::copy_file_range(from.get(), &a, to.get(), &b, 10, 0));
    });
  });
}

TEST_P(BytesParityTest, SendfileAndSpliceTransferTheSameBytes) {
  same([](Side& side) {
    side.write("from", pattern(300'000, 1));
    {
      const UniqueFd from = side.open("from", O_RDONLY);
      const UniqueFd to = side.open("sent", O_CREAT | O_WRONLY);
      off_t at = 100;
      long sent = 0;
      while (sent < 250'000) {
        const ssize_t count =
            ::sendfile(to.get(), from.get(), &at, static_cast<std::size_t>(250'000 - sent));
        if (count <= 0) break;
        sent += count;
      }
      side.note("sent", sent);
    }
    side.read("sent");
    {
      const UniqueFd from = side.open("from", O_RDONLY);
      const UniqueFd to = side.open("spliced", O_CREAT | O_WRONLY);
      std::array<int, 2> ends{};
      side.done("pipe", ::pipe2(ends.data(), O_CLOEXEC));
      const UniqueFd read_end(ends[0]), write_end(ends[1]);
      long moved = 0;
      for (;;) {
        const ssize_t in = ::splice(from.get(), nullptr, write_end.get(), nullptr, 65536, 0);
        if (in <= 0) break;
        for (ssize_t left = in; left > 0;) {
          const ssize_t out = ::splice(read_end.get(), nullptr, to.get(), nullptr,
                                       static_cast<std::size_t>(left), SPLICE_F_MOVE);
          if (out <= 0) {
            side.call("splice out", out);
            return;
          }
          left -= out;
          moved += out;
        }
      }
      side.note("spliced", moved);
    }
    side.read("spliced");
  });
}

TEST_P(BytesParityTest, DirectReadsAndWritesAgreeWithBufferedOnes) {
  same([](Side& side) {
    constexpr std::size_t kSize = 256 << 10;
    side.write("f", pattern(kSize, 1));
    const std::unique_ptr<char, void (*)(void*)> buffer(
        static_cast<char*>(std::aligned_alloc(4096, kSize)), std::free);
    const UniqueFd direct = side.open("f", O_RDWR | O_DIRECT);
    side.call("read", ::pread(direct.get(), buffer.get(), kSize, 0));
    side.note("same", std::string(buffer.get(), kSize) == pattern(kSize, 1));
    const std::string fresh = pattern(8192, 2);
    fresh.copy(buffer.get(), fresh.size());
    side.call("write", ::pwrite(direct.get(), buffer.get(), 8192, 65536));
    side.read("f");
    const UniqueFd buffered = side.open("f", O_RDWR);
    side.call("buffered write", ::pwrite(buffered.get(), "buffered", 8, 131072));
    side.call("read", ::pread(direct.get(), buffer.get(), 4096, 131072));
    side.note("seen", std::string(buffer.get(), 8));
    side.call("append", ::pwrite(direct.get(), buffer.get(), 4096, kSize));
    side.look("f");
    side.call("read at the end", ::pread(direct.get(), buffer.get(), 8192, kSize));
    const UniqueFd created = side.open("new", O_CREAT | O_WRONLY | O_DIRECT);
    fresh.copy(buffer.get(), fresh.size());  // a short read leaves the rest of the buffer undefined
    side.call("write", ::write(created.get(), buffer.get(), 8192));
    side.look("new");
  });
}

TEST_P(BytesParityTest, ConcurrentAppendsLoseNothing) {
  same([](Side& side) {
    constexpr int kWriters = 4;
    constexpr int kRecords = 500;
    write_file(side / "log", "");
    std::vector<std::jthread> writers;
    for (int writer = 0; writer < kWriters; ++writer) {
      writers.emplace_back([&, writer] {
        const UniqueFd fd(::open((side / "log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
        for (int record = 0; record < kRecords; ++record) {
          char line[32];
          const int size = std::snprintf(line, sizeof line, "%d-%06d........\n", writer, record);
          if (::write(fd.get(), line, static_cast<std::size_t>(size)) != size) return;
        }
      });
    }
    writers.clear();
    const std::string log = read_file(side / "log");
    std::set<std::string> records;
    for (std::size_t at = 0; at + 17 <= log.size(); at += 17) records.insert(log.substr(at, 17));
    side.note("bytes", static_cast<long>(log.size()));
    side.note("records", static_cast<long>(records.size()));
    side.unlink("log");
  });
}

TEST_P(BytesParityTest, SyncsOfEveryKindSucceed) {
  same([](Side& side) {
    side.write("f", pattern(300'000, 1));
    side.mkdir("d");
    const UniqueFd fd = side.open("f", O_RDWR);
    const UniqueFd reader = side.open("f", O_RDONLY);
    const UniqueFd directory = side.open("d", O_RDONLY | O_DIRECTORY);
    side.done("fsync", ::fsync(fd.get()));
    side.done("fdatasync", ::fdatasync(fd.get()));
    side.done("fsync of a reader", ::fsync(reader.get()));
    side.done("fsync of a directory", ::fsync(directory.get()));
    side.done("fdatasync of a directory", ::fdatasync(directory.get()));
    side.done("syncfs", ::syncfs(fd.get()));
    side.done("sync_file_range", ::sync_file_range(fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE));
    const UniqueFd synchronous = side.open("f", O_WRONLY | O_SYNC);
    side.call("O_SYNC write", ::write(synchronous.get(), "x", 1));
    const UniqueFd data_only = side.open("f", O_WRONLY | O_DSYNC);
    side.call("O_DSYNC write", ::write(data_only.get(), "y", 1));
    side.done("fadvise", ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED));
    side.call("readahead", ::readahead(fd.get(), 0, 4096));
  });
}

TEST_P(BytesParityTest, UnlinkedFileExistsUntilItsLastClose) {
  same([](Side& side) {
    for (const std::size_t size : {std::size_t{50}, std::size_t{400'000}}) {
      side.write("f", pattern(size, 1));
      const UniqueFd fd = side.open("f", O_RDWR);
      side.unlink("f");
      side.list(".");
      struct stat st {};
      side.done("fstat", ::fstat(fd.get(), &st));
      side.look("unlinked", st);
      std::string got(size, '\0');
      side.call("read", ::pread(fd.get(), got.data(), got.size(), 0));
      side.note("same", got == pattern(size, 1));
      side.call("write", ::pwrite(fd.get(), "tail", 4, static_cast<off_t>(size)));
      side.done("ftruncate", ::ftruncate(fd.get(), 10));
      side.done("fchmod", ::fchmod(fd.get(), 0600));
      side.done("fchown", ::fchown(fd.get(), 1, 2));
      side.done("fsync", ::fsync(fd.get()));
      const std::array<timespec, 2> times{{{1, 2}, {3, 4}}};
      side.done("futimens", ::futimens(fd.get(), times.data()));
      side.done("fstat", ::fstat(fd.get(), &st));
      side.look("unlinked", st);
      side.note("mtime", st.st_mtim.tv_sec);
      const std::string proc = "/proc/self/fd/" + std::to_string(fd.get());
      const UniqueFd again(::open(proc.c_str(), O_RDONLY | O_CLOEXEC));
      side.done("reopen", again.get());
      side.call("read reopened", ::pread(again.get(), got.data(), 4, 0));
      side.done("link back", ::linkat(AT_FDCWD, proc.c_str(), AT_FDCWD, (side / "back").c_str(),
                                      AT_SYMLINK_FOLLOW));
      side.write("f", "a new one of the same name");
      side.read("f");
      side.done("fstat", ::fstat(fd.get(), &st));
      side.look("unlinked", st);
    }
  });
}

TEST_P(BytesParityTest, TemporaryFileCanGrowLarge) {
  same([](Side& side) {
    const UniqueFd fd = side.open(".", O_TMPFILE | O_RDWR, 0600);
    const std::string chunk = pattern(1 << 20, 1);
    long written = 0;
    for (int i = 0; i < 8; ++i) written += ::write(fd.get(), chunk.data(), chunk.size());
    side.note("written", written);
    std::string got(chunk.size(), '\0');
    side.call("read", ::pread(fd.get(), got.data(), got.size(), 5 << 20));
    side.note("same", got == chunk);
  });
}

TEST_P(BytesParityTest, FileThatOutgrowsSmallFileKeepsItsBytes) {
  same([](Side& side) {
    const UniqueFd first = side.open("f", O_CREAT | O_RDWR);
    side.call("small", ::write(first.get(), "head", 4));
    const UniqueFd second = side.open("f", O_RDWR);
    const std::string chunk = pattern(1 << 20, 7);
    side.call("grow", ::pwrite(second.get(), chunk.data(), chunk.size(), 4));
    const UniqueFd third = side.open("f", O_RDONLY);
    std::string got(chunk.size(), '\0');
    side.call("read", ::pread(third.get(), got.data(), got.size(), 4));
    side.note("same", got == chunk);
    side.read("f");
    side.done("shrink", ::ftruncate(first.get(), 10));
    side.call("read", ::pread(third.get(), got.data(), got.size(), 0));
    side.look("f");
    side.read("f");
  });
}

}  // namespace
}  // namespace sluice::test
