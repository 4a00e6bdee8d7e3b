// SPDX-License-Identifier: BSD-2-Clause
// Files are read into GPU memory in several ways while they are changed in every way, moved between
// tiers and dropped from the memory of the GPUs, and while the daemon is replaced. A reader must
// get the bytes of a state that the file had between the beginning and the end of its request.
//
// Each state of a file fills it with one number, and the numbers grow. So the model of a file is
// the last number that is complete, the last that has begun, and a size.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/device.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/client/gpu_memory.hpp"
#include "tests/unit/client/ring.hpp"

namespace sluice::test {
namespace {

struct StormCase {
  const char* name;
  const char* filesystem;
  std::uint64_t bytes;  // of each tier; if it is ample, the kernel writes to the tier directly
  const char* debug;    // more options
};

void PrintTo(const StormCase& given, std::ostream* out) { *out << given.name; }

class HbmStormTest : public testing::TestWithParam<StormCase> {
 protected:
  using Random = std::mt19937_64;
  static constexpr std::size_t kFiles = 4, kReaders = 3, kKinds = 5;
  static constexpr std::size_t kLeast = 1 << 20, kMost = 3 << 20;
  static constexpr std::size_t kStep = 4096;  // a number is looked at in each page
  static constexpr std::chrono::minutes kPatience{1};

  // Writers lock it, readers do not.
  struct Subject {
    std::string path;
    Mutex mutex;
    std::atomic<std::uint32_t> begun{0}, complete{0};
    std::atomic<std::size_t> size{0};
  };

  void SetUp() override {
    if (!require_mounts("mount") || !require_loop("mount", GetParam().filesystem)) return;
    Pool pool{{}, base_ / "state", base_ / "mnt", {"--hbm", "8MiB", "--no-migrate"}};
    pool.flags.insert(pool.flags.end(),
                      {"--debug", std::string("gpu_rest=50,crash_limit=0") + GetParam().debug});
    for (std::size_t i = 0; i < disks_.size(); ++i) {
      const std::string name = "t" + std::to_string(i);
      disks_[i] = std::make_unique<LoopFs>(base_ / name, GetParam().filesystem, GetParam().bytes);
      pool.tiers.push_back(name + "=" + disks_[i]->path());
    }
    mount_ = std::make_unique<Mount>(pool);
    passes_through_ = mount_->status().at("features").at("passthrough").at("on");
    Random random(seed_);
    for (std::size_t i = 0; i < kFiles; ++i) {
      subjects_[i].path = *mount_ / ("f" + std::to_string(i));
      replace(subjects_[i], random);
    }
  }

  void report(const std::string& what) {
    const MutexLock lock(mutex_);
    if (problems_.size() < 2000) problems_ += what + "\n";
  }
  std::string problems() {
    const MutexLock lock(mutex_);
    return problems_;
  }
  void check(bool good, const char* what) {
    if (!good) report(std::string(what) + ": " + errno_name(errno));
  }

  static std::string filled(std::uint32_t state, std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; i += 4) std::memcpy(bytes.data() + i, &state, 4);
    return bytes;
  }
  static std::size_t any_size(Random& random) {
    return (kLeast + random() % (kMost - kLeast)) / 4 * 4;
  }
  static void wait_a_little(Random& random, unsigned most_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % most_ms));
  }

  // The changes. The caller has locked the file, and is told the new state and size.
  void put(const UniqueFd& file, const std::string& bytes) {
    check(::pwrite(file.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
          "write");
  }
  void write(Subject& subject, std::uint32_t state, std::size_t size) {
    const UniqueFd file(::open(subject.path.c_str(), O_WRONLY | O_CLOEXEC));
    put(file, filled(state, std::max<std::size_t>(size, subject.size)));
    check(::ftruncate(file.get(), static_cast<off_t>(size)) == 0, "truncate");
  }
  void empty_and_write(Subject& subject, std::uint32_t state, std::size_t size) {
    const UniqueFd file(::open(subject.path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
    put(file, filled(state, size));
  }
  void put_over(Subject& subject, std::uint32_t state, std::size_t size) {
    write_file(subject.path + ".new", filled(state, size));
    check(::rename((subject.path + ".new").c_str(), subject.path.c_str()) == 0, "rename");
  }
  void write_from_gpu(Subject& subject, std::uint32_t state, std::size_t size) {
    const GpuMemory memory(*devices_.all()[0], kMost);
    const auto buffer = register_memory(memory.pointer(), kMost);
    const auto file = open_file(subject.path, O_RDWR);
    const std::size_t all = std::max<std::size_t>(size, subject.size);
    memory.fill(filled(state, all));
    if (sluice_write(file.get(), buffer.get(), 0, all, 0, nullptr) != static_cast<ssize_t>(all))
      report(sluice_error());
    check(::truncate(subject.path.c_str(), static_cast<off_t>(size)) == 0, "truncate");
  }
  void replace(Subject& subject, Random& random) {
    const MutexLock lock(subject.mutex);
    change(subject, random, [&](auto state, auto size) { put_over(subject, state, size); });
  }
  static void change(Subject& subject, Random& random,
                     const std::function<void(std::uint32_t, std::size_t)>& act) {
    const std::uint32_t state = subject.complete + 1;
    const std::size_t size = any_size(random);
    subject.begun = state;
    act(state, size);
    subject.size = size;
    subject.complete = state;
  }
  // Whether stores reach the tier's file at once, because the kernel has mapped that. It stores to
  // a place that readers do not look at, repeatedly: what the daemon serves may be written back
  // just then.
  bool is_of_the_tier(char* bytes, const Subject& subject) const {
    const std::string name = subject.path.substr(subject.path.rfind('/') + 1);
    const auto is_there = [&](std::uint32_t word) {
      return std::any_of(disks_.begin(), disks_.end(), [&](const auto& disk) {
        const UniqueFd file(::open((disk->path() + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
        std::uint32_t found = 0;
        return file && ::pread(file.get(), &found, 4, 4) == 4 && found == word;
      });
    };
    for (std::uint32_t word = 1'000'000'000; word < 1'000'000'003; ++word) {
      std::memcpy(bytes + 4, &word, 4);
      if (!is_there(word)) return false;
    }
    return true;
  }
  // Stores several times to pages that stay mapped and dirty, so that the times of the file tell
  // only the first. If the daemon serves the file, others see them after msync.
  void store(Subject& subject, Random& random) {
    const std::size_t size = subject.size;
    UniqueFd file(::open(subject.path.c_str(), O_RDWR | O_CLOEXEC));
    auto* const bytes = static_cast<char*>(
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    check(bytes != MAP_FAILED, "map");
    if (bytes == MAP_FAILED) return;
    if (random() % 2 == 0) file.reset();
    const bool is_seen_at_once = is_of_the_tier(bytes, subject);
    for (int i = 0; i < 3; ++i) {
      const std::uint32_t state = subject.complete + 1;
      subject.begun = state;
      for (std::size_t at = 0; at < size; at += 4) std::memcpy(bytes + at, &state, 4);
      if (!is_seen_at_once) check(::msync(bytes, size, MS_SYNC) == 0, "msync");
      unsynced_ += is_seen_at_once ? 1 : 0;
      subject.complete = state;
      // Usually long enough for a copy to be made, if that were not prevented.
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      wait_a_little(random, 120);
    }
    ::munmap(bytes, size);
  }
  void change_something(Random& random) {
    Subject& subject = subjects_[random() % kFiles];
    const std::size_t kind = random() % kKinds;
    const MutexLock lock(subject.mutex);
    const auto by = [&](void (HbmStormTest::*act)(Subject&, std::uint32_t, std::size_t)) {
      change(subject, random, [&](auto state, auto size) { (this->*act)(subject, state, size); });
    };
    switch (kind) {
      case 0:
        by(&HbmStormTest::write);
        break;
      case 1:
        by(&HbmStormTest::empty_and_write);
        break;
      case 2:
        by(&HbmStormTest::put_over);
        break;
      case 3:
        by(&HbmStormTest::write_from_gpu);
        break;
      default:
        store(subject, random);
        break;
    }
    ++changes_[kind];
  }
  void move_something(Random& random) {
    const std::string tier = "t" + std::to_string(random() % disks_.size());
    const std::string& path = subjects_[random() % kFiles].path;
    // It may fail: the file may be renamed over just then.
    ::setxattr(path.c_str(), "user.sluice.tier", tier.data(), tier.size(), 0);
  }

  // What a reader has got: bytes of the file from an offset.
  struct Got {
    std::string bytes;
    std::size_t offset = 0;
    std::string how;
    bool is_all = true;  // up to the end of the file
    std::string error = {};
  };
  static Got failed(const std::string& error) { return {"", 0, "", false, error}; }
  struct Reader {
    explicit Reader(Device& device) : memory(device, kMost) {}
    GpuMemory memory;
    BufferHandle buffer = register_memory(memory.pointer(), kMost);
  };
  static bool is_in_gpu_memory(std::uint32_t route) { return route == SLUICE_ROUTE_HBM; }

  Got read(Reader& reader, const std::string& path, Random& random) {
    const auto file = open_file(path);
    const bool is_small = random() % 4 == 0;
    const std::size_t offset = is_small ? random() % kLeast / kStep * kStep : 0;
    struct sluice_result result {};
    const ssize_t done = sluice_read(file.get(), reader.buffer.get(), 0, is_small ? kStep : kMost,
                                     static_cast<off_t>(offset), &result);
    if (done < 0) return failed(sluice_error());
    hits_ += is_in_gpu_memory(result.route) ? 1 : 0;
    return {reader.memory.bytes(0, static_cast<std::size_t>(done)), offset,
            std::string("read by ") + sluice_route_name(result.route), !is_small};
  }
  Got read_vector(Reader& reader, const std::string& path, Random&) {
    const auto file = open_file(path);
    std::vector<struct sluice_segment> segments;
    for (std::uint64_t at = 0; at < kLeast; at += 2 * kStep)
      segments.push_back({at / 2, at, kStep});
    struct sluice_result result {};
    const ssize_t done =
        sluice_readv(file.get(), reader.buffer.get(), segments.data(), segments.size(), &result);
    if (done < 0) return failed(sluice_error());
    hits_ += is_in_gpu_memory(result.route) ? 1 : 0;
    return {reader.memory.bytes(0, static_cast<std::size_t>(done)), 0,
            std::string("readv by ") + sluice_route_name(result.route), false};
  }
  Got read_ring(Reader& reader, const std::string& path, Random&) {
    const auto file = open_file(path);
    const auto ring = make_ring(64);
    const int from = sluice_ring_add_file(ring.get(), file.get());
    const int to = sluice_ring_add_buffer(ring.get(), reader.buffer.get());
    constexpr unsigned kCount = 50;
    for (std::uint64_t i = 0; i < kCount; ++i)
      sluice_ring_read(ring.get(), from, to, i * kStep, kStep, i * 5 * kStep, i);
    if (sluice_ring_submit(ring.get()) != static_cast<int>(kCount)) return failed(sluice_error());
    std::size_t least = kCount;
    for (const auto& [i, done] : wait_for(ring, kCount)) {
      if (done.result < 0) return failed("ring: " + errno_name(static_cast<int>(-done.result)));
      hits_ += is_in_gpu_memory(done.route) ? 1 : 0;
      if (done.result < static_cast<std::int64_t>(kStep)) least = std::min<std::size_t>(least, i);
    }
    return {reader.memory.bytes(0, least * kStep), 0, "read by a ring", false};
  }
  // The copy itself, if it can be mapped now.
  Got map(Reader&, const std::string& path, Random&) {
    const auto file = open_file(path);
    sluice_mapping* mapping = nullptr;
    if (sluice_map(file.get(), nullptr, &mapping) != 0) return {"", 0, "", false};
    Got got{std::string(sluice_mapping_size(mapping), '\0'), 0, "mapped"};
    const CudaApi& api = devices_.all()[0]->api();
    const auto address = reinterpret_cast<CUdeviceptr>(sluice_mapping_address(mapping));
    if (api.cuMemcpyDtoH(got.bytes.data(), address, got.bytes.size()) != CUDA_SUCCESS)
      report("a mapping can't be read");
    sluice_unmap(mapping);
    ++mapped_;
    return got;
  }
  void read_and_compare(Reader& reader, Random& random) {
    static constexpr std::array kWays = {&HbmStormTest::read, &HbmStormTest::read,
                                         &HbmStormTest::read_vector, &HbmStormTest::read_ring,
                                         &HbmStormTest::map};
    Subject& subject = subjects_[random() % kFiles];
    const auto way = kWays[random() % kWays.size()];
    const std::uint32_t least = subject.complete;
    const Got got = (this->*way)(reader, subject.path, random);
    const std::size_t size = subject.size;
    const std::uint32_t most = subject.begun;
    const bool was_quiet = most == least;
    ++reads_;
    if (!got.error.empty()) report(got.error);
    if (was_quiet && got.is_all && got.bytes.size() != size)
      report(subject.path + ": " + std::to_string(got.bytes.size()) + " bytes instead of " +
             std::to_string(size) + ", " + got.how);
    for (std::size_t at = 0; at + 4 <= got.bytes.size(); at += kStep) {
      std::uint32_t state = 0;
      std::memcpy(&state, got.bytes.data() + at, 4);
      // Zeros are what is not written yet after a file was emptied.
      if ((state >= least && state <= most) || (state == 0 && !was_quiet)) continue;
      return report(subject.path + " at " + std::to_string(got.offset + at) + ": state " +
                    std::to_string(state) + " instead of " + std::to_string(least) + " to " +
                    std::to_string(most) + ", " + got.how);
    }
  }

  // Until the files have been read from GPU memory a few times since it was called.
  bool runs_on() {
    const auto hits = hits_.load(), mapped = mapped_.load();
    return eventually(
        [&] { return (hits_ > hits + 100 && mapped_ > mapped + 5) || !problems().empty(); },
        kPatience);
  }
  // Until the files were changed in every way.
  bool was_changed() {
    return eventually(
        [&] {
          const bool all = std::all_of(changes_.begin(), changes_.end(),
                                       [](const auto& count) { return count > 0; });
          return (all && (unsynced_ > 0 || !passes_through_)) || !problems().empty();
        },
        kPatience);
  }

  const std::uint64_t seed_ = test_seed();
  TempDir base_;
  std::array<std::unique_ptr<LoopFs>, 2> disks_;
  std::unique_ptr<Mount> mount_;
  Devices devices_;
  bool passes_through_ = false;
  std::array<Subject, kFiles> subjects_;
  std::array<std::atomic<std::uint64_t>, kKinds> changes_{};
  std::atomic<std::uint64_t> reads_{0}, hits_{0}, mapped_{0}, unsynced_{0};
  Mutex mutex_;
  std::string problems_ GUARDED_BY(mutex_);
};

TEST_P(HbmStormTest, NoReaderSeesOldBytes) {
  std::vector<std::jthread> threads;
  const auto start = [&](const std::function<void(Random&)>& act, unsigned pause_ms) {
    threads.emplace_back([=, this, number = threads.size()](const std::stop_token& stop) {
      EXPECT_TRUE(devices_.all()[0]->enter());
      Random random(seed_ + number);
      while (!stop.stop_requested() && problems().empty()) {
        act(random);
        if (pause_ms > 0) wait_a_little(random, pause_ms);
      }
    });
  };
  std::vector<std::unique_ptr<Reader>> readers;
  for (std::size_t i = 0; i < kReaders; ++i) {
    readers.push_back(std::make_unique<Reader>(*devices_.all()[0]));
    start([this,
           reader = readers.back().get()](Random& random) { read_and_compare(*reader, random); },
          0);
  }
  start([this](Random& random) { change_something(random); }, 60);
  start([this](Random& random) { move_something(random); }, 300);
  for (int round = 0; round < rounds(1, 50); ++round) {
    EXPECT_TRUE(runs_on()) << "before the release";
    // Nothing goes into GPU memory for ten seconds, except by another daemon.
    EXPECT_TRUE(sluice({"gpu", "release", mount_->path()}).ok());
    const CommandResult said = sluice({"restart", mount_->path()});
    EXPECT_TRUE(said.ok()) << said.err;
    EXPECT_TRUE(runs_on()) << "after the restart";
    mount_->crash_daemon();
    EXPECT_TRUE(runs_on()) << "after a crash";
  }
  EXPECT_TRUE(was_changed());
  for (auto& each : threads) each.request_stop();
  threads.clear();
  std::printf("%llu reads, %llu from GPU memory, %llu mapped, %llu stores without msync\n",
              static_cast<unsigned long long>(reads_), static_cast<unsigned long long>(hits_),
              static_cast<unsigned long long>(mapped_), static_cast<unsigned long long>(unsynced_));
  EXPECT_EQ(problems(), "");
  for (const Subject& each : subjects_)
    EXPECT_TRUE(read_file(each.path) == filled(each.complete, each.size)) << each.path;
}

INSTANTIATE_TEST_SUITE_P(
    With, HbmStormTest,
    testing::Values(StormCase{"EveryFileServed", "ext4", 96 << 20, ",passthrough=off"},
                    StormCase{"Passthrough", "xfs", std::uint64_t{200} << 30, ""}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace sluice::test
