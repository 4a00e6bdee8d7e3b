// SPDX-License-Identifier: BSD-2-Clause
// Mapped files, and programs run from the mount.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "tests/mount/parity.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class MmapParityTest : public DataParityTest {};
SLUICE_IN_EVERY_MODE(MmapParityTest);

// A mapping of a whole file; the destructor unmaps it.
class Mapping {
 public:
  Mapping(int fd, std::size_t size, int protection, int flags)
      : size_(size), address_(::mmap(nullptr, size, protection, flags, fd, 0)) {}
  ~Mapping() {
    if (ok()) ::munmap(address_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool ok() const { return address_ != MAP_FAILED; }
  char* bytes() const { return static_cast<char*>(address_); }
  int sync() const { return ::msync(address_, size_, MS_SYNC); }

 private:
  std::size_t size_;
  void* address_;
};

constexpr std::size_t kSizes[] = {4096, 300'000};
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

TEST_P(MmapParityTest, SharedMappingsAndReadsAndWritesSeeEachOther) {
  same([](Side& side) {
    for (const std::size_t size : kSizes) {
      side.write("f", pattern(size, 1));
      const UniqueFd fd = side.open("f", O_RDWR);
      const Mapping map(fd.get(), size, kReadWrite, MAP_SHARED);
      side.note("mmap", map.ok());
      if (!map.ok()) return;
      side.note("mapped is written", std::string(map.bytes(), size) == pattern(size, 1));
      side.call("write", ::pwrite(fd.get(), "written", 7, 1000));
      side.note("seen in the mapping", std::string(map.bytes() + 1000, 7));
      std::string("stored").copy(map.bytes() + 2000, 6);
      std::array<char, 7> got{};
      side.call("read", ::pread(fd.get(), got.data(), 6, 2000));
      side.note("seen by read", got.data());
      const UniqueFd other = side.open("f", O_RDONLY);
      side.call("read", ::pread(other.get(), got.data(), 6, 2000));
      side.note("seen through another descriptor", got.data());
      const Mapping second(other.get(), size, PROT_READ, MAP_SHARED);
      side.note("seen in another mapping", std::string(second.bytes() + 2000, 6));
      side.done("msync", map.sync());
      side.read("f");
    }
  });
}

// docs/testing.md, "Kernel defects": FUSE filesystems fail this on Linux 6.18. Sluice passes with
// passthrough.
TEST_P(MmapParityTest, AppendsBesideAMappingAreKept) {
  if (GetParam() == Mode::DaemonServed) GTEST_SKIP() << "Linux 6.18 loses such bytes";
  same([](Side& side) {
    side.write("f", std::string(100, 'x'));
    const UniqueFd fd = side.open("f", O_RDWR | O_APPEND);
    std::atomic<off_t> end = 100;
    std::jthread mapper([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const off_t page = (end - 1) / 4096 * 4096;
        void* map = ::mmap(nullptr, 4096, kReadWrite, MAP_SHARED, fd.get(), page);
        *static_cast<volatile char*>(map) = 'x';
        ::munmap(map, 4096);  // writes the page back, with the file's end in it
      }
    });
    for (int i = 0; i < 1000; ++i) {
      const std::string data(1 + static_cast<std::size_t>(i) * 7919 % 3000, 'x');
      if (::write(fd.get(), data.data(), data.size()) < 0) break;
      end += static_cast<off_t>(data.size());
    }
    mapper.request_stop();
    mapper.join();
    const std::string found = read_file(side / "f");
    side.note("size", found.size());
    side.note("other bytes than were written", found.find_first_not_of('x') != std::string::npos);
  });
}

TEST_P(MmapParityTest, PrivateMappingsStayPrivate) {
  same([](Side& side) {
    for (const std::size_t size : kSizes) {
      side.write("f", pattern(size, 1));
      const UniqueFd fd = side.open("f", O_RDONLY);
      const Mapping map(fd.get(), size, kReadWrite, MAP_PRIVATE);
      side.note("mmap", map.ok());
      if (!map.ok()) return;
      std::string("mine").copy(map.bytes(), 4);
      side.note("mapped", std::string(map.bytes(), 4));
      side.read("f");
    }
  });
}

TEST_P(MmapParityTest, StoresOutliveTheDescriptorAndTheMapping) {
  same([](Side& side) {
    for (const std::size_t size : kSizes) {
      side.write("f", pattern(size, 1));
      {
        UniqueFd fd = side.open("f", O_RDWR);
        const Mapping map(fd.get(), size, kReadWrite, MAP_SHARED);
        fd.reset();
        if (!map.ok()) return;
        std::string("after close").copy(map.bytes() + 100, 11);
        side.read("f");
      }
      side.read("f");
    }
  });
}

TEST_P(MmapParityTest, StoresChangeTheModificationTime) {
  same([](Side& side) {
    for (const std::size_t size : kSizes) {
      side.write("f", pattern(size, 1));
      const UniqueFd fd = side.open("f", O_RDWR);
      const Mapping map(fd.get(), size, kReadWrite, MAP_SHARED);
      if (!map.ok()) return;
      side.moves_times("store and msync", {"f"}, [&] {
        map.bytes()[5] = 'x';
        side.done("msync", map.sync());
      });
    }
  });
}

TEST_P(MmapParityTest, StoresThenCloseChangeTheModificationTime) {
  same([](Side& side) {
    for (const std::size_t size : kSizes) {
      side.write("f", pattern(size, 1));
      side.moves_times("map, store, unmap, close", {"f"}, [&] {
        const UniqueFd fd = side.open("f", O_RDWR);
        const Mapping map(fd.get(), size, kReadWrite, MAP_SHARED);
        if (map.ok()) map.bytes()[7] = 'y';
      });
    }
  });
}

TEST_P(MmapParityTest, ProtectionFollowsTheOpenMode) {
  same([](Side& side) {
    side.write("f", pattern(4096, 1));
    const UniqueFd reader = side.open("f", O_RDONLY);
    const UniqueFd writer = side.open("f", O_WRONLY);
    side.note("write through a reader", Mapping(reader.get(), 4096, kReadWrite, MAP_SHARED).ok());
    side.note("read through a writer", Mapping(writer.get(), 4096, PROT_READ, MAP_SHARED).ok());
    side.note("read through a reader", Mapping(reader.get(), 4096, PROT_READ, MAP_SHARED).ok());
    side.note("execute", Mapping(reader.get(), 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE).ok());
  });
}

TEST_P(MmapParityTest, TouchingPagesPastTheEndIsABusError) {
  same([](Side& side) {
    side.write("f", pattern(10'000, 1));
    side.note("child", in_child([&]() -> std::string {
                const UniqueFd fd(::open((side / "f").c_str(), O_RDWR | O_CLOEXEC));
                const Mapping map(fd.get(), 40'960, kReadWrite, MAP_SHARED);
                return std::string(1, map.bytes()[20'000]);
              }));
    side.note("tail of the last page", in_child([&]() -> std::string {
                const UniqueFd fd(::open((side / "f").c_str(), O_RDWR | O_CLOEXEC));
                const Mapping map(fd.get(), 40'960, kReadWrite, MAP_SHARED);
                return std::to_string(map.bytes()[10'001]);
              }));
  });
}

TEST_P(MmapParityTest, TruncationRemovesMappedPages) {
  same([](Side& side) {
    side.write("f", pattern(300'000, 1));
    side.note("child", in_child([&]() -> std::string {
                const UniqueFd fd(::open((side / "f").c_str(), O_RDWR | O_CLOEXEC));
                const Mapping map(fd.get(), 300'000, kReadWrite, MAP_SHARED);
                map.bytes()[200'000] = 'x';
                if (::ftruncate(fd.get(), 100'000) < 0) return "ftruncate";
                if (::ftruncate(fd.get(), 300'000) < 0) return "ftruncate";
                return std::to_string(map.bytes()[200'000]);
              }));
    side.read("f");
  });
}

TEST_P(MmapParityTest, ProgramsAndScriptsCanBeExecuted) {
  same([](Side& side) {
    side.write("script", "#!/bin/sh\necho ran with $1\n");
    side.chmod("script", 0755);
    side.note("script", run_command({side / "script", "argument"}).out);
    write_file(side / "program", read_file("/bin/true"));
    side.chmod("program", 0755);
    side.note("program", run_command({side / "program"}).exit_code);
    side.chmod("program", 0644);
    side.note("without the bit", run_command({side / "program"}).exit_code);
  });
}

TEST_P(MmapParityTest, RunningProgramCannotBeWritten) {
  same([](Side& side) {
    write_file(side / "program", read_file("/bin/sleep"));
    side.chmod("program", 0755);
    {
      const UniqueFd writer = side.open("program", O_WRONLY);
      side.note("run while written", in_child([&]() -> std::string {
                  ::execl((side / "program").c_str(), "sleep", "0", nullptr);
                  return errno_name(errno);
                }));
    }
    std::array<int, 2> ends{};
    side.done("pipe", ::pipe2(ends.data(), O_CLOEXEC));
    const UniqueFd started(ends[0]);
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl((side / "program").c_str(), "sleep", "60", nullptr);
      ::_exit(1);
    }
    ::close(ends[1]);
    char byte = 0;
    side.call("wait for exec", ::read(started.get(), &byte, 1));  // exec closes the other end
    side.open("program", O_WRONLY);
    side.open("program", O_RDONLY);
    side.truncate("program", 0);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    side.open("program", O_WRONLY);
  });
}

}  // namespace
}  // namespace sluice::test
