// SPDX-License-Identifier: BSD-2-Clause
// sluice gpu read, and the table of the verbs of `sluice gpu`.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "client/include/sluice/sluice.h"
#include "gpu/checksum.hpp"
#include "gpu/device.hpp"
#include "gpu/route.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::duration;
using std::chrono::steady_clock;

constexpr std::string_view kVerb = "gpu read";

constexpr HelpText kReadHelp{
    .usage = "sluice gpu read [options] FILE...",
    .options =
        R"(      --gpu GPU      the GPU's number or UUID, as nvidia-smi -L shows them; default: the first
      --host         read into host memory instead
      --offset SIZE  where to begin; default: 0
      --length SIZE  the most to read; default: to the end
      --route ROUTE  auto (default), gds, cufile, mapped, staged, pageable, host
                     or hbm
      --check        compare the bytes in memory with those that read(2) returns
      --checksum     print the checksum of the bytes in memory, computed by the GPU, and
                     compare it with that of the bytes that read(2) returns
      --json         one JSON object per file; its members are stable
      --color WHEN   auto (default), always, never
  -h, --help         short help (-h) or full help (--help)
)",
    .details = R"(
Reads files into GPU memory with libsluice and prints for each file the number of
bytes, the rate, the route, and why this route was taken. On a Sluice mount the daemon
reads the file; elsewhere, or if the daemon cannot, this process does.

The bytes go to a buffer of at most 256 MiB that is reused, so a file may be larger
than the memory of the GPU. Only the reads are timed; the first one includes the setup.
With --route, a file that cannot take that route fails. If there is no GPU and --gpu
is not given, files are read into host memory, and the command says so.

Members of the JSON object: path, bytes, seconds, rate (bytes per second), route, why,
by ("daemon" or "process"), gpu (its UUID; null for host memory), checked, checksum (16
hexadecimal digits; null without --checksum). docs/gpu.md defines the checksum.

Examples:
  sluice gpu read /mnt/pool/model.safetensors
  sluice gpu read --check --gpu 1 --length 1GiB /mnt/pool/models/*
  sluice gpu read --route staged --json /mnt/pool/model.safetensors | jq .rate

Exit status: 0 all files were read, 1 failed for at least one file, 2 wrong usage.
)"};

constexpr HelpText kReleaseHelp{.usage = "sluice gpu release [MOUNT]",
                                .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                                .details = R"(
Frees the GPU memory that a mount uses for copies of files (option hbm), at once. Reads
that are using a copy end first. For the next ten seconds nothing is copied there.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice gpu release
  sluice gpu release /mnt/pool

Exit status: 0 done, 1 failed, 2 wrong usage.
)"};

constexpr std::uint64_t kBufferSize = 256 << 20;

struct ReadOptions {
  std::vector<std::string> paths;
  std::string gpu;  // empty: the first one, or host memory if there is no GPU
  bool host = false;
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> length;
  Route route = Route::Auto;
  bool check = false, checksum = false;
  bool json = false;
};

// The memory to read into, GPU or host memory, registered with libsluice.
class Target {
 public:
  // Reports an error and returns null if the memory cannot be allocated.
  static std::unique_ptr<Target> create(Device* device, std::uint64_t size) {
    std::unique_ptr<Target> target(new Target(device, size));
    if (device != nullptr) {
      if (!device->enter()) {
        fail(kVerb, "GPU " + to_string(device->uuid()) + " cannot be used; see 'sluice doctor'");
        return nullptr;
      }
      if (device->api().cuMemAlloc(&target->on_device_, size) != CUDA_SUCCESS) {
        fail(kVerb, "GPU " + to_string(device->uuid()) + " has less than " + format_size(size) +
                        " of free memory; see 'nvidia-smi'");
        return nullptr;
      }
    } else {
      target->on_host_.resize(size);
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): device memory is handed around as pointers.
    void* memory = device != nullptr ? reinterpret_cast<void*>(target->on_device_)
                                     : static_cast<void*>(target->on_host_.data());
    if (sluice_buffer_register(memory, size, &target->buffer_) < 0) {
      fail(kVerb, sluice_error());
      return nullptr;
    }
    return target;
  }

  ~Target() {
    sluice_buffer_unregister(buffer_);
    if (on_device_ != 0) device_->api().cuMemFree(on_device_);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  Device* device() const { return device_; }
  std::uint64_t size() const { return size_; }
  sluice_buffer* buffer() const { return buffer_; }

  // Adds the first `bytes` of the memory to `sum`, where they are. Returns what failed, or nothing.
  std::string add_to(RangeChecksum& sum, std::uint64_t bytes) {
    if (device_ == nullptr) {
      sum.add(std::span(on_host_).first(bytes));
      return "";
    }
    const auto added = checksums_.add(*device_, on_device_, bytes, sum);
    if (added) return "";
    return std::string("the GPU cannot compute the checksum: ") +
           std::strerror(added.error().code) + "; use --check instead";
  }

  // Copies the bytes that were read to `out`; false if the GPU memory cannot be copied.
  bool fetch(std::vector<std::byte>& out) const {
    if (device_ == nullptr) {
      std::memcpy(out.data(), on_host_.data(), out.size());
      return true;
    }
    return device_->api().cuMemcpyDtoH(out.data(), on_device_, out.size()) == CUDA_SUCCESS;
  }

 private:
  Target(Device* device, std::uint64_t size) : device_(device), size_(size) {}

  Device* const device_;
  const std::uint64_t size_;
  CUdeviceptr on_device_ = 0;
  std::vector<std::byte> on_host_;
  GpuChecksums checksums_;
  sluice_buffer* buffer_ = nullptr;
};

struct FileCloser {
  void operator()(sluice_file* file) const { sluice_close(file); }
};
using OpenFile = std::unique_ptr<sluice_file, FileCloser>;

struct Measured {
  std::uint64_t bytes = 0;
  double seconds = 0;
  struct sluice_result last {};  // of the last read that returned bytes

  double rate() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

// The progress over all files.
struct Progress {
  ProgressLine line;
  RateMeter meter;
  std::uint64_t bytes = 0, total_bytes = 0, files = 0, total_files = 0;

  void show() {
    meter.add(steady_clock::now(), bytes);
    if (line.is_due()) {
      line.show(transfer_text(bytes, total_bytes, files, total_files, meter, line.is_terminal()));
    }
  }
};

// Fills `out` from the file at `offset`. Returns what failed, or nothing.
std::string read_file(const UniqueFd& fd, std::uint64_t offset, std::vector<std::byte>& out) {
  std::uint64_t have = 0;
  while (have < out.size()) {
    const ssize_t got =
        ::pread(fd.get(), out.data() + have, out.size() - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::string("cannot read it: ") + std::strerror(errno);
    if (got == 0) return "the file became shorter while it was read";
    have += static_cast<std::uint64_t>(got);
  }
  return "";
}

// Compares the bytes in the target with `here`, which are at `offset` of the file. Returns a
// description of the first difference, or nothing.
std::string compare(const Target& target, std::uint64_t offset,
                    const std::vector<std::byte>& here) {
  std::vector<std::byte> there(here.size());
  if (!target.fetch(there)) return "cannot copy the bytes back from GPU memory";
  const auto differs = std::mismatch(there.begin(), there.end(), here.begin()).first;
  if (differs == there.end()) return "";
  return "byte " + std::to_string(offset + static_cast<std::uint64_t>(differs - there.begin())) +
         " differs from what read(2) returns";
}

// The bytes of one file, compared with those that read(2) returns.
class Comparison {
 public:
  Comparison(const ReadOptions& options, const UniqueFd& fd, Target& target)
      : options_(options), fd_(fd), target_(target) {}

  // Takes the first `arrived` bytes of the target, which are at `offset` of the file. Returns what
  // is wrong, or nothing.
  std::string add(std::uint64_t offset, std::uint64_t arrived) {
    if (!fd_ || arrived == 0) return "";
    std::vector<std::byte> here(arrived);
    std::string problem = read_file(fd_, offset, here);
    if (problem.empty() && options_.check) problem = compare(target_, offset, here);
    if (!options_.checksum || !problem.empty()) return problem;
    here_.add(here);
    return target_.add_to(there_, arrived);
  }
  std::string checksum() const { return hex(there_); }
  // Returns what is wrong with the whole, or nothing.
  std::string finish() const {
    if (there_.value() == here_.value()) return "";
    return "its checksum in memory is " + hex(there_) + ", but " + hex(here_) +
           " by read(2); was it written to in between?";
  }

 private:
  static std::string hex(const RangeChecksum& sum) {
    std::array<char, 17> text{};
    std::snprintf(text.data(), text.size(), "%016" PRIx64, sum.value());
    return text.data();
  }

  const ReadOptions& options_;
  const UniqueFd& fd_;
  Target& target_;
  RangeChecksum there_, here_;
};

class Reader {
 public:
  Reader(const ReadOptions& options, const Style& style, Target& target, Progress& progress)
      : options_(options), style_(style), target_(target), progress_(progress) {}

  // Returns false after a failure, which it has reported.
  bool read(const std::string& path) {
    sluice_file* opened = nullptr;
    if (sluice_open(path.c_str(), O_RDONLY, 0, &opened) < 0) return report(sluice_error());
    const OpenFile file(opened);
    const bool compares = options_.check || options_.checksum;
    const UniqueFd fd(compares ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1);
    if (compares && !fd) return report(path + ": " + std::strerror(errno));

    Measured measured;
    Comparison comparison(options_, fd, target_);
    const std::uint64_t wanted = options_.length.value_or(UINT64_MAX);
    while (measured.bytes < wanted) {
      const std::uint64_t offset = options_.offset + measured.bytes;
      const std::uint64_t length = std::min(target_.size(), wanted - measured.bytes);
      const auto done = read_once(file.get(), offset, length, measured);
      if (!done) return report(sluice_error());
      const std::string problem = comparison.add(offset, *done);
      if (!problem.empty()) return report(path + ": " + problem);
      progress_.bytes += *done;
      progress_.show();
      if (*done < length) break;
    }
    if (const auto problem = comparison.finish(); !problem.empty()) {
      return report(path + ": " + problem);
    }
    ++progress_.files;
    print(path, measured, options_.checksum ? comparison.checksum() : "");
    return true;
  }

 private:
  bool report(const std::string& problem) {
    progress_.line.clear();
    fail(kVerb, log::escaped(problem));
    return false;
  }

  // The number of bytes read; nothing if it failed.
  std::optional<std::uint64_t> read_once(sluice_file* file, std::uint64_t offset,
                                         std::uint64_t length, Measured& measured) const {
    struct sluice_result result {};
    const auto begun = steady_clock::now();
    const ssize_t done = sluice_read_route(file, target_.buffer(), 0, length, offset,
                                           static_cast<std::uint32_t>(options_.route), &result);
    measured.seconds += duration<double>(steady_clock::now() - begun).count();
    if (done < 0) return std::nullopt;
    measured.bytes += static_cast<std::uint64_t>(done);
    if (done > 0 || measured.bytes == 0) measured.last = result;
    return static_cast<std::uint64_t>(done);
  }

  void print(const std::string& path, const Measured& measured, const std::string& checksum) {
    progress_.line.clear();
    const std::string route = sluice_route_name(measured.last.route);
    const std::string why = sluice_why_text(measured.last.why);
    const std::string by = measured.last.in_process != 0 ? "process" : "daemon";
    const Device* gpu = target_.device();
    if (options_.json) {
      const Json json = {{"path", path},
                         {"bytes", measured.bytes},
                         {"seconds", measured.seconds},
                         {"rate", measured.rate()},
                         {"route", route},
                         {"why", why},
                         {"by", by},
                         {"gpu", gpu != nullptr ? Json(to_string(gpu->uuid())) : Json()},
                         {"checked", options_.check},
                         {"checksum", options_.checksum ? Json(checksum) : Json()}};
      const auto text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
      std::printf("%s\n", text.c_str());
    } else {
      const std::string sum =
          options_.checksum ? ", checksum " + checksum + " as by read(2)" : std::string();
      std::printf("%s: %s in %.3f s, %.2f GB/s, %s (%s), by the %s%s%s\n",
                  style_.paint(Color::Bold, safe_name(style_, path)).c_str(),
                  format_size(measured.bytes).c_str(), measured.seconds, measured.rate() / 1e9,
                  route.c_str(), why.c_str(), by == "daemon" ? "daemon" : "process itself",
                  options_.check ? style_.paint(Color::Green, ", checked").c_str() : "",
                  sum.c_str());
    }
    std::fflush(stdout);
  }

  const ReadOptions& options_;
  const Style& style_;
  Target& target_;
  Progress& progress_;
};

// Finds a GPU by its number or UUID. Reports an error and returns null if there is none.
Device* find_gpu(Devices& devices, const std::string& wanted) {
  const auto& all = devices.all();
  if (all.empty()) {
    fail(kVerb,
         devices.why_none() + "; use --host to read into host memory, or see 'sluice doctor'");
    return nullptr;
  }
  unsigned number = 0;
  const char* end = wanted.data() + wanted.size();
  if (const auto parsed = std::from_chars(wanted.data(), end, number);
      parsed.ec == std::errc() && parsed.ptr == end) {
    if (number < all.size()) return all[number].get();
  } else {
    for (const auto& device : all) {
      if (to_string(device->uuid()) == wanted) return device.get();
    }
  }
  std::string list;
  for (std::size_t i = 0; i < all.size(); ++i) {
    list += (i == 0 ? "" : ", ") + std::to_string(i) + " (" + to_string(all[i]->uuid()) + ")";
  }
  fail(kVerb, "no GPU " + log::escaped(wanted) + "; available: " + list);
  return nullptr;
}

// Sums up the bytes to read in `progress`, as far as known, and returns the largest single read.
std::uint64_t plan(const ReadOptions& options, Progress& progress) {
  std::uint64_t largest = 1;
  for (const auto& path : options.paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) < 0) continue;  // opening it reports the error
    const auto size = static_cast<std::uint64_t>(status.st_size);
    const std::uint64_t bytes =
        std::min(size - std::min(size, options.offset), options.length.value_or(UINT64_MAX));
    progress.total_bytes += bytes;
    ++progress.total_files;
    largest = std::max(largest, bytes);
  }
  return largest;
}

int gpu_read(int argc, char** argv) {
  Arguments arguments;
  ReadOptions options;
  std::string offset = "0", length, route = "auto", color = "auto";
  arguments.option("FILE", options.paths, Arguments::Need::Required);
  arguments.option("--gpu", options.gpu);
  arguments.flag("--host", options.host);
  arguments.never_together("--host", "--gpu");
  arguments.option("--offset", offset);
  arguments.option("--length", length);
  arguments.option("--route", route);
  arguments.flag("--check", options.check);
  arguments.flag("--checksum", options.checksum);
  arguments.flag("--json", options.json);
  arguments.option("--color", color);
  if (const auto code = arguments.parse(argc, argv, kReadHelp)) return *code;
  const auto style = style_for(kVerb, color);
  if (!style) return kUsage;
  const auto from = parse_size(offset);
  if (!from) return misuse(kVerb, "--offset must be a size like 4096 or 1GiB");
  options.offset = *from;
  if (!length.empty()) {
    options.length = parse_size(length);
    if (!options.length) return misuse(kVerb, "--length must be a size like 4096 or 1GiB");
  }
  const auto named = route_by_name(route);
  if (!named) {
    return misuse(kVerb,
                  "--route must be auto, gds, cufile, mapped, staged, pageable, host or hbm");
  }
  options.route = *named;

  Devices devices;
  Device* device = nullptr;
  if (!options.host && options.gpu.empty() && devices.all().empty()) {
    std::fprintf(stderr, "sluice: gpu read: no GPU (%s); reading into host memory\n",
                 devices.why_none().c_str());
  } else if (!options.host) {
    device = find_gpu(devices, options.gpu.empty() ? "0" : options.gpu);
    if (device == nullptr) return kFailed;
  }
  Progress progress;
  const std::uint64_t largest = plan(options, progress);
  // Whole blocks, as a checksum needs them.
  const std::uint64_t blocks = std::min(checksum_count(largest), checksum_count(kBufferSize));
  const auto target = Target::create(device, blocks * kChecksumBlock);
  if (!target) return kFailed;
  Reader reader(options, *style, *target, progress);
  int code = kDone;
  for (const auto& path : options.paths) {
    if (!reader.read(path)) code = kFailed;
  }
  return code;
}

int gpu_release(int argc, char** argv) {
  Arguments arguments;
  std::string given;
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kReleaseHelp)) return *code;
  const auto mount = mount_for("gpu release", given);
  if (!mount) return kFailed;
  const auto answer = ask_daemon(*mount, {{"verb", "release-gpu"}});
  if (!answer) return fail("gpu release", answer.error().text());
  std::printf("freed %s of GPU memory\n", format_size(number_of(answer->last, "bytes")).c_str());
  return kDone;
}

constexpr std::array kSubverbs{
    Verb{"read", "read files into GPU memory, and show rate and route", gpu_read},
    Verb{"release", "free the GPU memory that copies of files use", gpu_release},
};

}  // namespace

int command_gpu(int argc, char** argv) { return run_subverb(argc, argv, kSubverbs); }

}  // namespace sluice::tools::cli
