// SPDX-License-Identifier: BSD-2-Clause
// The ways that `sluice-lab gpu-bench` compares.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "base/mutex.hpp"
#include "tools/lab/gpu_bench/bench.hpp"

namespace sluice::tools::lab::gpu_bench {
namespace {

// Calls `work(at, size, thread)` for each piece of [0, length), by several threads.
Result<void> by_pieces(std::uint64_t length, std::uint64_t piece, unsigned threads,
                       const std::function<Result<void>(std::uint64_t at, std::uint64_t size,
                                                        unsigned thread)>& work) {
  std::atomic<std::uint64_t> next{0};  // the only thing that the threads share
  const auto pieces = (length + piece - 1) / piece;
  const auto count = static_cast<unsigned>(std::clamp<std::uint64_t>(pieces, 1, threads));
  return in_parallel(count, [&](unsigned thread) -> Result<void> {
    for (;;) {
      const std::uint64_t at = next.fetch_add(piece);
      if (at >= length) return {};
      SLUICE_TRY(work(at, std::min(piece, length - at), thread));
    }
  });
}

// Copies the same 64 MiB of pinned memory to the GPU again and again, at the speed of the bus. To
// host memory, several threads use memcpy.
class CopyWay : public Way {
 public:
  CopyWay(const Bench& bench, std::uint64_t piece)
      : Way("copy, " + std::to_string(piece / kMiB) + " MiB pieces", false),
        bench_(bench),
        piece_(piece) {}
  ~CopyWay() override {
    if (stream_ != nullptr && bench_.device->enter()) {
      bench_.device->api().cuStreamDestroy(stream_);
    }
  }

  Result<void> read(std::uint64_t, std::uint64_t length, std::uint64_t offset) override {
    if (bench_.device == nullptr) {
      return by_pieces(length, piece_, bench_.threads, [&](auto at, auto size, unsigned) {
        return bench_.target->copy_in(offset + at, bench_.staging() + at % kStaging, size);
      });
    }
    SLUICE_TRY(bench_.device->enter());
    const CudaApi& api = bench_.device->api();
    auto code = CUDA_SUCCESS;
    if (stream_ == nullptr) code = api.cuStreamCreate(&stream_, kStreamNonBlocking);
    for (std::uint64_t at = 0; at < length && code == CUDA_SUCCESS; at += piece_) {
      code = api.cuMemcpyHtoDAsync(bench_.target->address() + offset + at,
                                   bench_.staging() + at % kStaging, std::min(piece_, length - at),
                                   stream_);
    }
    if (code == CUDA_SUCCESS) code = api.cuStreamSynchronize(stream_);
    if (code != CUDA_SUCCESS) return bench_.device->failed(code, "copy from pinned memory");
    return {};
  }

 private:
  const Bench& bench_;
  const std::uint64_t piece_;
  CUstream stream_ = nullptr;
};

class MmapWay : public Way {
 public:
  MmapWay(const Bench& bench, std::byte* mapping)
      : Way(bench.device ? "mmap + cuMemcpyHtoD" : "mmap + memcpy", true),
        bench_(bench),
        mapping_(mapping) {}
  ~MmapWay() override { ::munmap(mapping_, bench_.file.size); }

  Result<void> read(std::uint64_t file_offset, std::uint64_t length,
                    std::uint64_t offset) override {
    return bench_.target->copy_in(offset, mapping_ + file_offset, length);
  }
  void rest() override { ::madvise(mapping_, bench_.file.size, MADV_DONTNEED); }

 private:
  const Bench& bench_;
  std::byte* const mapping_;
};

class DiskWay : public Way {
 public:
  DiskWay(const Bench& bench, UniqueFd fd, std::uint64_t piece)
      : Way("disk, O_DIRECT, " + std::to_string(bench.threads) + " x " +
                std::to_string(piece / kMiB) + " MiB",
            false),
        bench_(bench),
        fd_(std::move(fd)),
        piece_(piece) {}

  Result<void> read(std::uint64_t file_offset, std::uint64_t length, std::uint64_t) override {
    return by_pieces(length, piece_, bench_.threads,
                     [&](auto at, auto size, unsigned thread) -> Result<void> {
                       std::byte* slot = bench_.staging() + thread * piece_;
                       const auto from = static_cast<off_t>(file_offset + at);
                       const ssize_t got = ::pread(fd_.get(), slot, size, from);
                       if (got < 0) return Error::last("read with O_DIRECT");
                       if (static_cast<std::uint64_t>(got) != size) {
                         return Error(EIO, "read a whole piece with O_DIRECT");
                       }
                       return {};
                     });
  }

 private:
  const Bench& bench_;
  const UniqueFd fd_;
  const std::uint64_t piece_;
};

// cuFile as an application would use it, with this number of threads and size of pieces.
class CuFileWay : public Way {
 public:
  CuFileWay(const Bench& bench, UniqueFd fd, std::unique_ptr<CuFileHandle> handle, unsigned threads,
            std::uint64_t piece)
      : Way("cuFile, " + std::to_string(threads) + " x " + std::to_string(piece / kMiB) + " MiB",
            true),
        bench_(bench),
        fd_(std::move(fd)),
        handle_(std::move(handle)),
        threads_(threads),
        piece_(piece) {}

  Result<void> read(std::uint64_t file_offset, std::uint64_t length,
                    std::uint64_t offset) override {
    return by_pieces(length, piece_, threads_,
                     [&](std::uint64_t at, std::uint64_t size, unsigned) -> Result<void> {
                       SLUICE_TRY(bench_.device->enter());
                       for (std::uint64_t done = 0; done < size;) {
                         const auto got =
                             SLUICE_TRY(handle_->read(bench_.target->address(), offset + at + done,
                                                      size - done, file_offset + at + done));
                         if (got == 0) return Error(EIO, "cuFile returned fewer bytes");
                         done += got;
                       }
                       return {};
                     });
  }

 private:
  const Bench& bench_;
  const UniqueFd fd_;
  const std::unique_ptr<CuFileHandle> handle_;  // destroyed before the descriptor
  const unsigned threads_;
  const std::uint64_t piece_;
};

// A way of ours, which reports its route.
class RoutedWay : public Way {
 public:
  using Way::Way;
  std::string route() const override {
    const auto last = last_.load();
    return std::string(name_of(last.route)) + ": " + std::string(text_of(last.why));
  }

 protected:
  struct Last {
    Route route = Route::Auto;
    Why why = Why::Asked;
  };
  std::atomic<Last> last_{};  // of any thread
};

// One request may read less than requested, see ioctl.h. Returns the last reply.
Result<sluice_transfer> read_all(const UniqueFd& fd, sluice_transfer rest) {
  for (;;) {
    sluice_transfer asked = rest;
    if (::ioctl(fd.get(), SLUICE_IOC_READ, &asked) < 0) return Error::last("request to the daemon");
    if (asked.done == 0 && rest.length > 0) return Error(EIO, "the daemon returned fewer bytes");
    if (asked.done >= rest.length) return asked;
    rest.buffer_offset += asked.done;
    rest.file_offset += asked.done;
    rest.length -= asked.done;
  }
}

class DaemonWay : public RoutedWay {
 public:
  DaemonWay(UniqueFd fd, std::uint64_t buffer, Route wanted)
      : RoutedWay("daemon " + std::string(name_of(wanted)), true),
        fd_(std::move(fd)),
        buffer_(buffer),
        wanted_(wanted) {}

  Result<void> read(std::uint64_t file_offset, std::uint64_t length,
                    std::uint64_t offset) override {
    sluice_transfer transfer{};
    transfer.buffer = buffer_;
    transfer.buffer_offset = offset;
    transfer.file_offset = file_offset;
    transfer.length = length;
    transfer.route = static_cast<std::uint32_t>(wanted_);
    const auto done = SLUICE_TRY(read_all(fd_, transfer));
    last_ = Last{Route{done.route}, Why{done.why}};
    return {};
  }

 private:
  const UniqueFd fd_;
  const std::uint64_t buffer_;
  const Route wanted_;
};

class EngineWay : public RoutedWay {
 public:
  EngineWay(const Bench& bench, UniqueFd fd, Route wanted)
      : RoutedWay("in-process " + std::string(name_of(wanted)), true),
        engine_(*bench.engine),
        fd_(std::move(fd)),
        memory_(bench.target->memory()),
        wanted_(wanted) {}

  Result<void> read(std::uint64_t file_offset, std::uint64_t length,
                    std::uint64_t offset) override {
    const auto done = SLUICE_TRY(engine_.read(
        {.fd = fd_.get()}, *memory_, std::array{Segment{offset, file_offset, length}}, wanted_));
    last_ = Last{done.route, done.why};
    if (done.bytes != length) return Error(EIO, "the engine returned fewer bytes");
    return {};
  }

 private:
  Engine& engine_;
  const UniqueFd fd_;
  const std::unique_ptr<Memory> memory_;
  const Route wanted_;
};

Result<UniqueFd> open_for_reading(const std::string& path, int flags = 0) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (!fd) return Error::last("open the test file");
  return fd;
}

Result<std::uint64_t> register_with(const UniqueFd& fd, const Target& target) {
  auto request = SLUICE_TRY(target.exported());
  if (::ioctl(fd.get(), SLUICE_IOC_BUFFER_REGISTER, &request) < 0) {
    return Error::last("register the buffer with the daemon");
  }
  return request.buffer;
}

}  // namespace

std::byte* Bench::staging() const {
  // The plain buffer has an extra page for alignment.
  if (pinned) return pinned->bytes().data();
  const auto at = reinterpret_cast<std::uintptr_t>(plain.data());
  return reinterpret_cast<std::byte*>((at + 4095) & ~std::uintptr_t{4095});
}

Result<void> in_parallel(unsigned count, const std::function<Result<void>(unsigned)>& work) {
  if (count == 1) return work(0);
  std::vector<Result<void>> results(count);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < count; ++i) {
      threads.emplace_back([&, i] { results[i] = work(i); });
    }
  }
  for (const auto& result : results) {
    if (!result) return result;
  }
  return {};
}

Result<WayPtr> copy_way(const Bench& bench, std::uint64_t piece) {
  return WayPtr(std::make_unique<CopyWay>(bench, piece));
}

Result<WayPtr> mmap_way(const Bench& bench) {
  const auto fd = SLUICE_TRY(open_for_reading(bench.file.path));
  void* at = ::mmap(nullptr, bench.file.size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return Error::last("map the test file");
  return WayPtr(std::make_unique<MmapWay>(bench, static_cast<std::byte*>(at)));
}

Result<WayPtr> disk_way(const Bench& bench, std::uint64_t piece) {
  auto fd = SLUICE_TRY(open_for_reading(bench.file.on_tier, O_DIRECT));
  return WayPtr(std::make_unique<DiskWay>(bench, std::move(fd), piece));
}

Result<WayPtr> cufile_way(const Bench& bench, unsigned threads, std::uint64_t piece,
                          int open_flags) {
  if (!bench.cufile) return Error(EOPNOTSUPP, "use cuFile");
  auto fd = SLUICE_TRY(open_for_reading(bench.file.on_tier, open_flags));
  auto handle = SLUICE_TRY(CuFileHandle::create(*bench.cufile, fd.get()));
  return WayPtr(
      std::make_unique<CuFileWay>(bench, std::move(fd), std::move(handle), threads, piece));
}

Result<WayPtr> daemon_way(const Bench& bench, Route route) {
  if (bench.file.mount.empty()) return Error(ENOTTY, "the file is not on a Sluice mount");
  auto fd = SLUICE_TRY(open_for_reading(bench.file.path));
  const auto buffer = SLUICE_TRY(register_with(fd, *bench.target));
  return WayPtr(std::make_unique<DaemonWay>(std::move(fd), buffer, route));
}

Result<WayPtr> engine_way(const Bench& bench, Route route) {
  auto fd = SLUICE_TRY(open_for_reading(bench.file.path));
  return WayPtr(std::make_unique<EngineWay>(bench, std::move(fd), route));
}

}  // namespace sluice::tools::lab::gpu_bench
