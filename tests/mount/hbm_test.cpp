// SPDX-License-Identifier: BSD-2-Clause
// Files in the memory of the GPUs of the fake libcuda, on a real mount, read in every way that
// programs have: the bytes come from there, and never from before a change.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.hpp"
#include "tests/mount/dropin.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/unit/client/gpu_memory.hpp"
#include "tests/unit/client/ring.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kRecord = 4096;
constexpr std::size_t kSize = 1100 * kRecord + 1234;

class HbmWaysTest : public TieringTest {
 protected:
  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    put("nvme", "file", content_);
    start({"--hbm", "64MiB", "--debug", "gpu_rest=100"});
  }

  std::string path() const { return *this / "file"; }
  const CudaApi& cuda() { return devices_.all()[0]->api(); }
  std::uint64_t hits() {
    const Json devices = mount().status().at("gpu").at("devices");
    return devices.empty() ? 0 : devices.at(0).at("hbm").at("hits").get<std::uint64_t>();
  }
  // Compares memory[at, +length) with the file at `offset`.
  bool is_right(std::size_t at, std::size_t offset, std::size_t length) const {
    return memory_.bytes(at, length) == content_.substr(offset, length);
  }
  static std::string named(const struct sluice_result& result, bool is_right) {
    if (!is_right) return std::string("wrong bytes by ") + sluice_route_name(result.route);
    return result.in_process != 0 ? "in the process" : sluice_route_name(result.route);
  }

  // Each way returns the name of the route, or what is wrong.
  std::string read() {
    const auto file = open_file(path());
    struct sluice_result result {};
    const auto done = sluice_read(file.get(), buffer_.get(), 0, kSize, 0, &result);
    if (done != static_cast<ssize_t>(content_.size())) return sluice_error();
    return named(result, is_right(0, 0, content_.size()));
  }
  std::string read_little() {
    const auto file = open_file(path());
    struct sluice_result result {};
    if (sluice_read(file.get(), buffer_.get(), 0, 3000, 70'001, &result) != 3000)
      return sluice_error();
    return named(result, is_right(0, 70'001, 3000));
  }
  std::string read_vector() {
    const auto file = open_file(path());
    std::vector<struct sluice_segment> segments;
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < 100; ++i, at += 5000)
      segments.push_back({at, 2'000'000 - i * 7919, 5000});
    segments.push_back({at, 123'456, kMiB});
    struct sluice_result result {};
    const auto done =
        sluice_readv(file.get(), buffer_.get(), segments.data(), segments.size(), &result);
    if (done != static_cast<ssize_t>(at + kMiB)) return sluice_error();
    bool right = true;
    for (const auto& each : segments)
      right = right && is_right(each.buffer_offset, each.file_offset, each.length);
    return named(result, right);
  }
  std::string gather() {
    const std::size_t records = content_.size() / kRecord;
    std::string numbers;
    for (std::uint64_t i = records; i-- > 0;)
      numbers.append(reinterpret_cast<const char*>(&i), sizeof i);
    const GpuMemory index(*devices_.all()[0], numbers.size());
    index.fill(numbers);
    const auto file = open_file(path());
    struct sluice_result result {};
    const auto done = sluice_gather(file.get(), buffer_.get(), 0,
                                    static_cast<const std::uint64_t*>(index.pointer()), records,
                                    kRecord, 0, &result);
    if (done != static_cast<ssize_t>(records * kRecord)) return sluice_error();
    std::string wanted;
    for (std::size_t i = records; i-- > 0;) wanted += content_.substr(i * kRecord, kRecord);
    return named(result, memory_.bytes(0, wanted.size()) == wanted);
  }
  // Many small reads, or a large one.
  std::string read_ring(std::uint64_t count, std::uint64_t each) {
    const auto file = open_file(path());
    const auto ring = make_ring(128);
    const int from = sluice_ring_add_file(ring.get(), file.get());
    const int to = sluice_ring_add_buffer(ring.get(), buffer_.get());
    const auto offset = [](std::uint64_t i) { return i * 7919; };
    for (std::uint64_t i = 0; i < count; ++i)
      sluice_ring_read(ring.get(), from, to, i * each, each, offset(i), i);
    if (sluice_ring_submit(ring.get()) != static_cast<int>(count)) return sluice_error();
    std::string route;
    for (const auto& [i, done] : wait_for(ring, static_cast<unsigned>(count))) {
      const auto length = std::min(each, content_.size() - offset(i));
      if (done.result != static_cast<std::int64_t>(length)) return "a short read";
      struct sluice_result result {};
      result.route = done.route;
      result.in_process = (done.flags & SLUICE_RING_IN_PROCESS) != 0 ? 1 : 0;
      const std::string its = named(result, is_right(i * each, offset(i), length));
      if (i > 0 && its != route) return its + " and " + route;
      route = its;
    }
    return route;
  }
  // cuFile does not tell the route.
  std::string by_cufile(const std::function<ssize_t(CUfileHandle_t)>& read) {
    const auto before = hits();
    UniqueFd fd;
    CUfileHandle_t handle = dropin_.register_file(path(), fd);
    const ssize_t done = read(handle);
    dropin_.api.cuFileHandleDeregister(handle);
    if (done != static_cast<ssize_t>(content_.size())) return "result " + std::to_string(done);
    const bool from_hbm = hits() > before;
    if (!is_right(0, 0, content_.size())) return from_hbm ? "wrong bytes by hbm" : "wrong bytes";
    return from_hbm ? "hbm" : "another";
  }
  std::string read_cufile() {
    return by_cufile([&](CUfileHandle_t handle) {
      return dropin_.api.cuFileRead(handle, memory_.pointer(), kSize, 0, 0);
    });
  }
  std::string read_cufile_in_a_stream() {
    return by_cufile([&](CUfileHandle_t handle) -> ssize_t {
      CUstream stream = nullptr;
      std::size_t size = kSize;
      off_t file_offset = 0, base_offset = 0;
      ssize_t done = 0;
      EXPECT_EQ(cuda().cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
      EXPECT_EQ(dropin_.api
                    .cuFileReadAsync(handle, memory_.pointer(), &size, &file_offset, &base_offset,
                                     &done, stream)
                    .err,
                CU_FILE_SUCCESS);
      EXPECT_EQ(cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
      cuda().cuStreamDestroy(stream);
      return done;
    });
  }

  struct Way {
    const char* name;
    std::function<std::string()> read;
  };
  const std::vector<Way> ways_ = {
      {"read", [&] { return read(); }},
      {"little", [&] { return read_little(); }},
      {"vector", [&] { return read_vector(); }},
      {"gather", [&] { return gather(); }},
      {"ring, small", [&] { return read_ring(100, 4096); }},
      {"ring, large", [&] { return read_ring(1, kSize); }},
      {"cuFile", [&] { return read_cufile(); }},
      {"cuFile in a stream", [&] { return read_cufile_in_a_stream(); }},
  };

  // Reads in all ways, beginning with the given one.
  void expect_right_bytes(std::size_t first) {
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      const Way& way = ways_[(first + i) % ways_.size()];
      memory_.fill(std::string(kSize, '.'));
      const std::string route = way.read();
      EXPECT_EQ(route.find("wrong"), std::string::npos) << way.name << ": " << route;
    }
  }
  // As soon as the file has rested.
  void expect_all_from_gpu_memory() {
    ASSERT_TRUE(eventually([&] { return read() == "hbm"; })) << read();
    for (const Way& way : ways_) {
      memory_.fill(std::string(kSize, '.'));
      EXPECT_EQ(way.read(), "hbm") << way.name;
    }
  }

  std::string content_ = random_bytes(kSize);
  Dropin dropin_;
  Devices devices_;
  const GpuMemory memory_{*devices_.all()[0], kSize};
  const BufferHandle buffer_ = register_memory(memory_.pointer(), kSize);
};

TEST_F(HbmWaysTest, EveryWayReadsFromGpuMemoryAndSeesEveryChange) {
  expect_all_from_gpu_memory();
  const auto put_new = [&](std::size_t at, const std::string& bytes) {
    content_.replace(at, bytes.size(), bytes);
    return bytes;
  };
  const std::vector<std::function<void()>> changes = {
      [&] {  // a write
        const UniqueFd file(::open(path().c_str(), O_WRONLY | O_CLOEXEC));
        const std::string bytes = put_new(70'000, pattern(2 * kMiB, 1));
        ASSERT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), 70'000),
                  static_cast<ssize_t>(bytes.size()));
      },
      [&] {  // a store to a mapping; of a file that the daemon serves, it is seen after msync
        const UniqueFd file(::open(path().c_str(), O_RDWR | O_CLOEXEC));
        auto* const bytes = static_cast<char*>(
            ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
        ASSERT_NE(bytes, MAP_FAILED);
        put_new(70'000, pattern(2 * kMiB, 2)).copy(bytes + 70'000, 2 * kMiB);
        EXPECT_EQ(::msync(bytes, kSize, MS_SYNC), 0);
        ::munmap(bytes, kSize);
      },
      [&] { move("file", "hdd"); },
      [&] {  // another file takes the name
        content_ = pattern(kSize, 3);
        write_file(*this / "new", content_);
        ASSERT_EQ(::rename((*this / "new").c_str(), path().c_str()), 0);
      },
      [&] {  // a write from GPU memory
        const std::string bytes = put_new(0, pattern(3 * kMiB, 4));
        memory_.fill(bytes);
        const auto file = open_file(path(), O_RDWR);
        ASSERT_EQ(sluice_write(file.get(), buffer_.get(), 0, bytes.size(), 0, nullptr),
                  static_cast<ssize_t>(bytes.size()));
      },
      [&] {
        content_.resize(kSize - 3 * kRecord);
        ASSERT_EQ(::truncate(path().c_str(), static_cast<off_t>(content_.size())), 0);
      },
      [&] {
        content_.resize(kSize);
        ASSERT_EQ(::truncate(path().c_str(), kSize), 0);
      },
      [&] {
        const auto said = tell({"restart"});
        ASSERT_TRUE(said.ok()) << said.err;
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE("change " + std::to_string(i));
    changes[i]();
    expect_right_bytes(i);
    expect_all_from_gpu_memory();
  }
}

// Four files of 4 MiB in GPU memory, while the limits change.
class HbmReloadTest : public TieringTest {
 protected:
  static constexpr int kFiles = 4;
  static constexpr std::uint64_t kEach = 4 * kMiB;

  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (int i = 0; i < kFiles; ++i) put("nvme", name(i), pattern(kEach, i));
    configure("hbm = \"64MiB\"\n");
    pool_ =
        std::make_unique<Mount>(Pool{{}, base_ / "state", base_ / "mnt", {"--config", config_}});
    unused_ = allocated();
    for (int i = 0; i < kFiles; ++i) EXPECT_EQ(prefetch(i), "ok");
    ASSERT_TRUE(eventually([&] { return served() == kFiles; })) << hbm();
  }
  static std::string name(int i) { return "f" + std::to_string(i); }
  void configure(const std::string& options) {
    std::string text = "migrate = false\n" + options;
    for (const char* tier : {"nvme", "ssd", "hdd"})
      text +=
          "[[tier]]\nname = \"" + std::string(tier) + "\"\npath = \"" + disk(tier).path() + "\"\n";
    write_file(config_, text + "[debug]\ngpu_rest = 100\n");
  }
  CommandResult reload(const std::string& options) {
    configure(options);
    return sluice({"reload", pool_->path()});
  }
  std::string prefetch(int i) {
    const int done = ::setxattr((*pool_ / name(i)).c_str(), "user.sluice.prefetch", "hbm", 3, 0);
    return errno_name(done < 0 ? errno : 0);
  }
  Json hbm() {
    const Json devices = pool_->status().at("gpu").at("devices");
    return devices.at(0).value("hbm", Json());
  }
  std::uint64_t files() { return hbm().at("files"); }
  std::uint64_t allocated() { return FakeGpu::count(FakeCount::AllocatedBytes, pool_->pid()); }
  // The number of files that are read from GPU memory.
  int served() {
    Devices devices;
    const GpuMemory memory(*devices.all()[0], kEach);
    const auto buffer = register_memory(memory.pointer(), kEach);
    int count = 0;
    for (int i = 0; i < kFiles; ++i) {
      const auto file = open_file(*pool_ / name(i));
      struct sluice_result result {};
      // By a small read, which puts nothing there.
      EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, 4096, 0, &result), 4096);
      EXPECT_EQ(memory.bytes(0, 4096), pattern(kEach, i).substr(0, 4096));
      count += result.route == SLUICE_ROUTE_HBM ? 1 : 0;
    }
    return count;
  }

  const std::string config_ = base_ / "pool.toml";
  std::unique_ptr<Mount> pool_;
  std::uint64_t unused_ = 0;
};

TEST_F(HbmReloadTest, FilesGoUntilTheyFitAndComeBackWhenThereIsRoom) {
  EXPECT_EQ(reload("hbm = \"9MiB\"\n").out, "hbm: 64MiB -> 9MiB\n");
  EXPECT_EQ(files(), 2u);
  EXPECT_EQ(hbm().at("bytes"), 2 * kEach);
  EXPECT_EQ(hbm().at("limit"), 9 * kMiB);
  EXPECT_EQ(allocated(), unused_ + 2 * kEach);
  EXPECT_EQ(served(), 2);

  EXPECT_EQ(reload("hbm = \"12MiB\"\n").exit_code, 0);
  EXPECT_EQ(files(), 2u);
  for (int i = 0; i < kFiles; ++i) EXPECT_EQ(prefetch(i), "ok");
  EXPECT_TRUE(eventually([&] { return served() == 3; })) << hbm();

  EXPECT_EQ(reload("hbm = \"0\"\n").out, "hbm: 12MiB -> 0\n");
  EXPECT_EQ(hbm(), Json()) << "status shows it";
  EXPECT_TRUE(eventually([&] { return allocated() == unused_; }));
  EXPECT_EQ(served(), 0);
  EXPECT_EQ(prefetch(0), "EOPNOTSUPP");

  EXPECT_EQ(reload("hbm = \"1GiB\"\n").exit_code, 0);
  for (int i = 0; i < kFiles; ++i) EXPECT_EQ(prefetch(i), "ok");
  EXPECT_TRUE(eventually([&] { return served() == kFiles; })) << hbm();
}

TEST_F(HbmReloadTest, PinnedFileStaysLongestAndComesBackByItself) {
  const std::string path = *pool_ / name(2);
  const auto is_alone = [&] { return hbm().at("pinned") == 1 && files() == 1; };
  ASSERT_EQ(::setxattr(path.c_str(), "user.sluice.hbm", "1", 1, 0), 0);
  ASSERT_TRUE(eventually([&] { return hbm().at("pinned") == 1; }));
  EXPECT_EQ(reload("hbm = \"5MiB\"\n").exit_code, 0);
  EXPECT_TRUE(eventually(is_alone)) << hbm();
  EXPECT_EQ(reload("hbm = \"3MiB\"\n").exit_code, 0);
  EXPECT_EQ(files(), 0u);
  EXPECT_EQ(reload("hbm = \"4MiB\"\n").exit_code, 0);
  EXPECT_TRUE(eventually(is_alone)) << hbm();
}

TEST_F(HbmReloadTest, LargerReserveTakesTheMemoryBack) {
  EXPECT_EQ(reload("hbm = \"64MiB\"\nhbm_reserve = \"100%\"\n").out, "hbm_reserve: 10% -> 100%\n");
  EXPECT_TRUE(eventually([&] { return files() == 0; })) << hbm();
  EXPECT_TRUE(eventually([&] { return allocated() == unused_; }));
  EXPECT_EQ(served(), 0);
  EXPECT_EQ(prefetch(0), "ok");
  EXPECT_EQ(reload("hbm = \"64MiB\"\nhbm_reserve = \"1MiB\"\n").exit_code, 0);
  EXPECT_EQ(prefetch(0), "ok");
  EXPECT_TRUE(eventually([&] { return files() == 1; })) << hbm();
}

TEST_F(HbmReloadTest, MistakeChangesNothing) {
  const Json before = hbm();
  for (const char* wrong : {"hbm = \"lots\"\n", "hbm = \"101%\"\n", "hbm = \"-1\"\n",
                            "hbm = \"8MiB\"\nhbm_reserve = \"some\"\n"}) {
    const CommandResult result = reload(wrong);
    EXPECT_EQ(result.exit_code, 1) << wrong;
    EXPECT_NE(result.err.find(config_ + ":"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("hbm"), std::string::npos) << result.err;
    EXPECT_EQ(hbm(), before) << wrong;
  }
  EXPECT_EQ(served(), kFiles);
}

}  // namespace
}  // namespace sluice::test
