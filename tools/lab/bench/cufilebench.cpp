// SPDX-License-Identifier: BSD-2-Clause
// `sluice-lab cufilebench` reads records at random offsets of a file into GPU memory through
// cuFile, from threads or in batches. aibench runs it: calling cuFile from Python would be too slow
// for a fair comparison. Every byte is compared with what pread() returns.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/cufile_api.hpp"
#include "gpu/device.hpp"
#include "tools/lab/commands.hpp"

namespace sluice::tools::lab::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kVerb = "cufilebench";
constexpr int kMissing = 77;
constexpr unsigned kBatchLimit = 64;  // larger ones can hang in the compatibility mode

constexpr HelpText kHelp{.usage = "sluice-lab cufilebench [options] FILE",
                         .options = R"(      --size N     bytes of a record (4096)
      --reads N    number of reads (65536)
      --threads N  threads that read (16)
      --batch N    reads in a batch, for each thread, at most 64; 0: no batches (0)
      --direct     bypass the page cache, and measure once only
  -h, --help       short help (-h) or full help (--help)
)",
                         .details = R"(
Reads records at random offsets of FILE into GPU memory through cuFile, and compares every
byte with what pread() returns. Prints one line of JSON.

Examples:
  sluice-lab cufilebench --size 4096 --threads 16 /data/file

Exit status: 0 measured; 1 failed, or bytes were wrong; 2 wrong usage; 77 there is no GPU
or no cuFile, and the line says why.
)"};

struct Options {
  std::string path;
  std::uint64_t size = 4096;
  std::uint64_t reads = 65536;
  unsigned threads = 16;
  unsigned batch = 0;
  bool direct = false;
};

int end(int code, const char* key, const std::string& words) {
  std::printf("%s\n", Json{{key, words}}.dump().c_str());
  return code;
}

// The file and the memory, registered with cuFile.
class Reader {
 public:
  Reader(const CuFileApi& api, Device& device, const Options& options)
      : api_(api), device_(device), options_(options) {}
  ~Reader() {
    if (handle_ != nullptr) api_.cuFileHandleDeregister(handle_);
    if (registered_) api_.cuFileBufDeregister(base());
    if (memory_ != 0) device_.api().cuMemFree(memory_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Result<void> open() {
    fd_.reset(
        ::open(options_.path.c_str(), O_RDONLY | O_CLOEXEC | (options_.direct ? O_DIRECT : 0)));
    struct stat status {};
    if (!fd_ || ::fstat(fd_.get(), &status) < 0) return Error::last("open the file");
    const std::uint64_t records = static_cast<std::uint64_t>(status.st_size) / options_.size;
    if (records == 0) return Error{EINVAL, "the file is smaller than a record"};
    std::mt19937_64 random(1);
    offsets_.resize(options_.reads);
    for (auto& offset : offsets_) offset = random() % records * options_.size;

    const std::uint64_t bytes = options_.reads * options_.size;
    if (const auto code = device_.api().cuMemAlloc(&memory_, bytes); code != CUDA_SUCCESS) {
      return device_.failed(code, "allocate GPU memory");
    }
    // If GPU memory cannot be registered, cuFile uses its own buffers.
    registered_ = api_.cuFileBufRegister(base(), bytes, 0).err == CU_FILE_SUCCESS;
    CUfileDescr_t description{};
    description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = fd_.get();
    if (const auto error = api_.cuFileHandleRegister(&handle_, &description);
        error.err != CU_FILE_SUCCESS) {
      return Error{errno_of(error), "register the file with cuFile"};
    }
    return {};
  }

  // Reads [first, last) of the records, one after the other.
  Result<void> read(std::uint64_t first, std::uint64_t last) {
    SLUICE_TRY(device_.enter());
    for (std::uint64_t i = first; i < last; ++i) {
      const ssize_t done =
          api_.cuFileRead(handle_, base(), options_.size, static_cast<off_t>(offsets_[i]),
                          static_cast<off_t>(i * options_.size));
      if (done != static_cast<ssize_t>(options_.size)) return Error{EIO, "read by cuFile"};
    }
    return {};
  }

  // The same with batches of `depth` reads.
  Result<void> read_in_batches(std::uint64_t first, std::uint64_t last, unsigned depth) {
    SLUICE_TRY(device_.enter());
    CUfileBatchHandle_t batch = nullptr;
    if (api_.cuFileBatchIOSetUp == nullptr ||
        api_.cuFileBatchIOSetUp(&batch, depth).err != CU_FILE_SUCCESS) {
      return Error{EOPNOTSUPP, "set up a cuFile batch"};
    }
    std::vector<CUfileIOParams_t> requests(depth);
    std::vector<CUfileIOEvents_t> events(depth);
    std::optional<Error> error;
    for (std::uint64_t at = first; at < last && !error; at += depth) {
      const auto count = static_cast<unsigned>(std::min<std::uint64_t>(depth, last - at));
      for (unsigned i = 0; i < count; ++i) {
        auto& request = requests[i] = {};
        request.mode = CUFILE_BATCH;
        request.opcode = CUFILE_READ;
        request.fh = handle_;
        request.u.batch = {base(), static_cast<off_t>(offsets_[at + i]),
                           static_cast<off_t>((at + i) * options_.size), options_.size};
      }
      if (api_.cuFileBatchIOSubmit(batch, count, requests.data(), 0).err != CU_FILE_SUCCESS) {
        error = Error{EIO, "submit a batch to cuFile"};
      }
      for (unsigned done = 0; done < count && !error;) {
        unsigned got = count - done;
        if (api_.cuFileBatchIOGetStatus(batch, 1, &got, events.data(), nullptr).err !=
            CU_FILE_SUCCESS) {
          error = Error{EIO, "wait for a cuFile batch"};
        }
        for (unsigned i = 0; i < got && !error; ++i) {
          if (events[i].status != CUFILE_COMPLETE || events[i].ret != options_.size) {
            error = Error{EIO, "read by a cuFile batch"};
          }
        }
        done += got;
      }
    }
    api_.cuFileBatchIODestroy(batch);
    if (error) return *error;
    return {};
  }

  Result<void> clear() {
    const CudaApi& cuda = device_.api();
    auto code = cuda.cuMemsetD8Async(memory_, 0xa5, options_.reads * options_.size, nullptr);
    if (code == CUDA_SUCCESS) code = cuda.cuCtxSynchronize();
    if (code != CUDA_SUCCESS) return device_.failed(code, "clear GPU memory");
    return {};
  }

  // The number of records with wrong bytes.
  Result<std::uint64_t> wrong() {
    const UniqueFd plain(::open(options_.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!plain) return Error::last("open the file");
    std::vector<char> arrived(options_.reads * options_.size), expected(options_.size);
    const auto code = device_.api().cuMemcpyDtoH(arrived.data(), memory_, arrived.size());
    if (code != CUDA_SUCCESS) return device_.failed(code, "copy back from the GPU");
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < options_.reads; ++i) {
      if (::pread(plain.get(), expected.data(), options_.size, static_cast<off_t>(offsets_[i])) !=
          static_cast<ssize_t>(options_.size)) {
        return Error::last("read the file");
      }
      count += std::memcmp(&arrived[i * options_.size], expected.data(), options_.size) != 0;
    }
    return count;
  }

 private:
  // NOLINTNEXTLINE(performance-no-int-to-ptr): cuFile takes addresses as pointers.
  void* base() const { return reinterpret_cast<void*>(memory_); }

  const CuFileApi& api_;
  Device& device_;
  const Options& options_;
  UniqueFd fd_;
  CUdeviceptr memory_ = 0;
  bool registered_ = false;
  CUfileHandle_t handle_ = nullptr;
  std::vector<std::uint64_t> offsets_;
};

// The seconds that all reads took.
Result<double> measure(Reader& reader, const Options& options) {
  SLUICE_TRY(reader.clear());
  std::vector<std::thread> threads;
  std::vector<std::optional<Error>> errors(options.threads);
  std::atomic<unsigned> ready{0};
  std::atomic<bool> go{false};
  for (unsigned i = 0; i < options.threads; ++i) {
    threads.emplace_back([&, i] {
      const std::uint64_t first = options.reads * i / options.threads;
      const std::uint64_t last = options.reads * (i + 1) / options.threads;
      ++ready;
      go.wait(false);
      const auto done = options.batch > 0 ? reader.read_in_batches(first, last, options.batch)
                                          : reader.read(first, last);
      if (!done) errors[i] = done.error();
    });
  }
  while (ready < options.threads) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  go = true;
  go.notify_all();
  for (auto& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (const auto& error : errors) {
    if (error) return *error;
  }
  return took.count();
}

int run(const Options& options) {
  Devices devices;
  if (devices.all().empty()) return end(kMissing, "skipped", "no GPU: " + devices.why_none());
  Device& device = *devices.all().front();
  if (!device.enter()) return end(kMissing, "skipped", "the GPU cannot be used");
  const auto cufile = CuFile::open();
  if (!cufile) return end(kMissing, "skipped", "no cuFile: " + cufile.error().text());

  Reader reader((*cufile)->api(), device, options);
  const auto opened = reader.open();
  if (!opened) {
    return end(kMissing, "skipped", opened.error().text());
  }
  // The first pass includes setup and is not counted, except with --direct, which measures once.
  const auto seconds = options.direct ? measure(reader, options) : [&]() -> Result<double> {
    SLUICE_TRY(measure(reader, options));
    return measure(reader, options);
  }();
  if (!seconds) {
    return end(kFailed, "failed", seconds.error().text());
  }
  const auto wrong = reader.wrong();
  if (!wrong) return end(kFailed, "failed", wrong.error().operation);
  std::printf("%s\n", Json{{"reads/s", static_cast<double>(options.reads) / *seconds},
                           {"reads", options.reads},
                           {"size", options.size},
                           {"threads", options.threads},
                           {"batch", options.batch},
                           {"wrong", *wrong}}
                          .dump()
                          .c_str());
  return *wrong == 0 ? 0 : kFailed;
}

}  // namespace

int command_cufilebench(int argc, char** argv) {
  Arguments arguments;
  Options options;
  arguments.option("--size", options.size);
  arguments.option("--reads", options.reads);
  arguments.option("--threads", options.threads);
  arguments.option("--batch", options.batch);
  arguments.flag("--direct", options.direct);
  arguments.option("FILE", options.path, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (options.size < 1 || options.reads < 1 || options.threads < 1)
    return misuse(kVerb, "--size, --reads and --threads must be positive");
  if (options.batch > kBatchLimit) return misuse(kVerb, "--batch must be from 0 to 64");
  return run(options);
}

}  // namespace sluice::tools::lab::bench
