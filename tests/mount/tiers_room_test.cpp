// SPDX-License-Identifier: BSD-2-Clause
// A growing file can use the space of all tiers, not only of its own. Tested with common programs
// and sizes from half to five times the free space of each tier: a few here, all with
// SLUICE_LONG=1.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "tests/mount/tiers.hpp"
#include "tests/support/files.hpp"
#include "tests/support/parallel.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

bool is_long() {
  const char* asked = std::getenv("SLUICE_LONG");
  return asked != nullptr && std::string_view(asked) == "1";
}

constexpr std::size_t kPiece = 1 << 20;

// Writes `bytes` of `data` to `path`. Returns the problem, or an empty string.
using Writer = std::function<std::string(const std::string& source, const std::string& path,
                                         std::uint64_t bytes)>;

std::string run(const std::string& command) {
  const CommandResult done = run_command({"sh", "-c", "exec 2>&1; LC_ALL=C " + command});
  return done.ok() ? "" : done.out.empty() ? "it failed" : done.out;
}

std::string by_copy(const std::string& source, const std::string& path, std::uint64_t) {
  return run("cp --reflink=never " + source + " " + path);
}
std::string by_dd(const std::string& source, const std::string& path, std::uint64_t) {
  return run("dd bs=1M if=" + source + " of=" + path);
}
std::string by_direct_io(const std::string& source, const std::string& path, std::uint64_t) {
  return run("dd bs=1M oflag=direct if=" + source + " of=" + path);
}
std::string by_append(const std::string& source, const std::string& path, std::uint64_t bytes) {
  const std::string half = std::to_string(bytes / 2);
  return run("sh -c 'head -c " + half + " " + source + " > " + path + " && tail -c +$((" + half +
             " + 1)) " + source + " >> " + path + "'");
}
std::string in_place(const std::string& source, const std::string& path, std::uint64_t) {
  return run("sh -c 'head -c 1000000 " + source + " > " + path +
             " && dd bs=256K conv=notrunc if=" + source + " of=" + path + "'");
}
std::string by_rsync(const std::string& source, const std::string& path, std::uint64_t) {
  return run("rsync " + source + " " + path);
}
std::string by_tar(const std::string& source, const std::string& path, std::uint64_t) {
  const auto slash = path.rfind('/'), from = source.rfind('/');
  return run("sh -c 'tar -C " + source.substr(0, from) + " -cf - " + source.substr(from + 1) +
             " | tar -C " + path.substr(0, slash) + " -xf - --transform=s/.*/" +
             path.substr(slash + 1) + "/'");
}

std::string store_all(const std::string& source, int fd, std::uint64_t bytes) {
  const std::string data = read_file(source);
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return "mmap: " + errno_name(errno);
  data.copy(static_cast<char*>(at), bytes);
  const bool synced = ::msync(at, bytes, MS_SYNC) == 0;
  const std::string why = synced ? "" : "msync: " + errno_name(errno);
  ::munmap(at, bytes);
  return why;
}

std::string by_mapping(const std::string& source, const std::string& path, std::uint64_t bytes) {
  const UniqueFd fd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0)
    return "ftruncate: " + errno_name(errno);
  // In a child process: a store without space may kill it.
  return in_child([&] { return store_all(source, fd.get(), bytes); });
}
std::string by_allocation(const std::string& source, const std::string& path, std::uint64_t bytes) {
  const UniqueFd fd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) < 0)
    return errno == ENOSPC ? "No space left on device" : "fallocate: " + errno_name(errno);
  const std::string data = read_file(source);
  for (std::uint64_t at = 0; at < bytes; at += kPiece) {
    const std::size_t size = std::min<std::uint64_t>(kPiece, bytes - at);
    if (::pwrite(fd.get(), data.data() + at, size, static_cast<off_t>(at)) !=
        static_cast<ssize_t>(size))
      return "write: " + errno_name(errno);
  }
  return "";
}

struct Named {
  const char* name;
  Writer write;
};

class RoomTest : public TiersTest, public testing::WithParamInterface<bool> {
 protected:
  static constexpr std::uint64_t kNvme = 8 * kMiB, kSsd = 24 * kMiB, kHdd = 64 * kMiB;

  void begin() {
    for (const char* tier : {"nvme", "ssd", "hdd"}) set_options(tier, "high_watermark=100");
    fill("nvme", kNvme);
    fill("ssd", kSsd);
    fill("hdd", kHdd);
    start(GetParam() ? std::vector<std::string>{"--no-migrate"}
                     : std::vector<std::string>{"--no-migrate", "--debug=passthrough=off"});
  }

  std::string source(std::uint64_t bytes) {
    const std::string path = base_ / ("source" + std::to_string(bytes));
    if (!exists(path)) write_file(path, pattern(bytes, bytes));
    return path;
  }

  // Returns the problem with the result of `writer`, or an empty string. A file that fits a tier
  // must be written completely; one that does not must fail with ENOSPC and keep the bytes written
  // before.
  std::string try_one(const Named& writer, std::uint64_t bytes) {
    const std::string path = *this / (std::string(writer.name) + std::to_string(bytes));
    const std::string from = source(bytes);
    const std::string failed = writer.write(from, path, bytes);
    const std::string wanted = read_file(from);
    std::string wrong;
    // For sizes in between, root may use the blocks that ext4 reserves.
    const bool fits = bytes<kHdd * 15 / 16, does_not = bytes> kHdd * 3 / 2;
    if (failed.empty() ? does_not : fits) {
      wrong = failed.empty() ? "it was not told" : failed;
    } else if (failed.empty() && read_file(path) != wanted) {
      wrong = "other bytes";
    } else if (!failed.empty() && failed.find("No space left on device") == std::string::npos) {
      wrong = failed;
    } else if (!failed.empty() && exists(path) && std::string_view(writer.name) != "allocation" &&
               !wanted.starts_with(read_file(path))) {
      wrong = "bytes written before were lost";
    }
    ::unlink(path.c_str());
    return wrong.empty() ? ""
                         : std::string(writer.name) + " " + std::to_string(bytes) + ": " + wrong;
  }

  // Expects that no file and no abandoned copy is left on any tier.
  void expect_nothing_left() {
    for (const char* tier : {"nvme", "ssd", "hdd"})
      EXPECT_EQ(names_in(on(tier, ".sluice/tmp")), std::vector<std::string>{}) << tier;
    EXPECT_EQ(names_in(*this / ""), std::vector<std::string>{".filler"});
  }

  const std::vector<Named> writers_ = {
      {"copy", by_copy},     {"dd", by_dd},           {"direct", by_direct_io},
      {"append", by_append}, {"inplace", in_place},   {"rsync", by_rsync},
      {"tar", by_tar},       {"mapping", by_mapping}, {"allocation", by_allocation}};
};

TEST_P(RoomTest, FileThatFitsATierCanBeWrittenByAnyProgram) {
  begin();
  for (const Named& writer : writers_) {
    EXPECT_EQ(try_one(writer, 40 * kMiB + 4096), "");
  }
  expect_nothing_left();
}

TEST_P(RoomTest, SizesAroundTheRoomOfEachTier) {
  begin();
  for (const Named& writer : writers_) {
    if (!is_long() && std::string_view(writer.name) != "copy") continue;
    for (const std::uint64_t room : {kNvme, kSsd, kHdd}) {
      for (const double times : {0.5, 0.9, 1.1, 2.0, 5.0}) {
        const auto bytes = static_cast<std::uint64_t>(static_cast<double>(room) * times) & ~4095ull;
        if (!is_long() && (times < 1 || bytes > 130 * kMiB)) continue;
        // Stores through a mapping reach the daemon late: the program gets ENOSPC from msync.
        if (std::string_view(writer.name) == "mapping" && bytes > kHdd / 2) continue;
        EXPECT_EQ(try_one(writer, bytes), "");
      }
    }
  }
  expect_nothing_left();
  EXPECT_NE(mount().log().find("a file cannot grow, ENOSPC: path=/copy"), std::string::npos)
      << "the log says why";
}

TEST_P(RoomTest, FourFilesAtOnce) {
  begin();
  // Together they fit only the last tier; each is larger than the first.
  const std::uint64_t bytes = 13 * kMiB;
  source(bytes);
  const auto wrong = in_parallel(4, 4, 4, [&](std::uint64_t i) {
    return try_one({i == 0   ? "a"
                    : i == 1 ? "b"
                    : i == 2 ? "c"
                             : "d",
                    i % 2 == 0 ? by_copy : by_rsync},
                   bytes);
  });
  for (const auto& [i, text] : wrong) ADD_FAILURE() << text;
  expect_nothing_left();
}

TEST_P(RoomTest, SpilledUnnamedFileCanBeLinked) {
  begin();
  const UniqueFd fd(::open((*this / "").c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644));
  ASSERT_TRUE(fd) << errno_name(errno);
  const std::string data = pattern(20 * kMiB, 5);
  for (std::size_t at = 0; at < data.size(); at += kPiece)
    ASSERT_EQ(::pwrite(fd.get(), &data[at], kPiece, static_cast<off_t>(at)),
              static_cast<ssize_t>(kPiece))
        << errno_name(errno);
  ASSERT_EQ(::linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(fd.get())).c_str(), AT_FDCWD,
                     (*this / "named").c_str(), AT_SYMLINK_FOLLOW),
            0)
      << errno_name(errno);
  EXPECT_EQ(read_file(*this / "named") == data, true);
  EXPECT_EQ(tier_of("named"), "hdd");
}

TEST_P(RoomTest, ReaderSeesConcurrentWrites) {
  begin();
  const UniqueFd writer(::open((*this / "f").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  ASSERT_EQ(::pwrite(writer.get(), "first", 5, 0), 5);
  const UniqueFd reader(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
  std::string got(5, '\0');
  for (const char* text : {"secnd", "third", "forth"}) {
    ASSERT_EQ(::pread(reader.get(), got.data(), 5, 0), 5);
    ASSERT_EQ(::pwrite(writer.get(), text, 5, 0), 5);
    ASSERT_EQ(::pread(reader.get(), got.data(), 5, 0), 5);
    EXPECT_EQ(got, text);
  }
}

INSTANTIATE_TEST_SUITE_P(Passthrough, RoomTest, testing::Bool());

}  // namespace
}  // namespace sluice::test
