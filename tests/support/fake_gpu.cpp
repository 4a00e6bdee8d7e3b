// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/fake_gpu.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace sluice::test {
namespace {

// Maps the control file of a library in a process while it exists.
class Mapped {
 public:
  Mapped(const char* library, pid_t pid)
      : control_(FakeControl::map(FakeControl::path(library, pid), false)) {}
  ~Mapped() {
    if (control_ != nullptr) ::munmap(control_, sizeof *control_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  FakeControl* get() const { return control_; }

 private:
  FakeControl* const control_;
};

void load(const char* library) {
  const std::string path = std::string(SLUICE_FAKE_DIR) + "/" + library;
  // From now on, dlopen by this library's name returns this one.
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  std::fprintf(stderr, "%s\n", ::dlerror());
  std::abort();
}

bool fail(const char* library, const std::string& faults, pid_t pid) {
  const Mapped mapped(library, pid);
  FakeControl* control = mapped.get();
  if (control == nullptr || faults.size() >= sizeof control->fail) return false;
  std::memcpy(control->fail, faults.c_str(), faults.size() + 1);
  ++control->generation;
  return true;
}

// Processes that were killed have left their files.
void remove_files_of_the_dead(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    const pid_t pid = std::atoi(name.c_str() + name.rfind('.') + 1);
    if (::kill(pid, 0) < 0 && errno == ESRCH) ::unlink(entry.path().c_str());
  }
}

}  // namespace

void FakeGpu::install() {
  static bool done = false;
  if (done) return;
  done = true;
  const std::string directory = std::string(SLUICE_FAKE_DIR) + "/state";
  ::mkdir(directory.c_str(), 0777);
  remove_files_of_the_dead(directory);
  ::setenv(FakeControl::kDirectory, directory.c_str(), 0);
  const char* old = std::getenv("LD_LIBRARY_PATH");
  ::setenv("LD_LIBRARY_PATH",
           (std::string(SLUICE_FAKE_DIR) + (old != nullptr ? std::string(":") + old : "")).c_str(),
           1);
  load("libcuda.so.1");
  load("libcufile.so.0");
}

std::uint64_t FakeGpu::count(FakeCount which, pid_t pid) {
  const Mapped mapped(which < FakeCount::Drivers ? "cuda" : "cufile", pid);
  if (mapped.get() == nullptr) return 0;
  return mapped.get()->counts[static_cast<std::size_t>(which)];
}

bool FakeGpu::fail_cuda(const std::string& faults, pid_t pid) { return fail("cuda", faults, pid); }

bool FakeGpu::fail_cufile(const std::string& faults, pid_t pid) {
  return fail("cufile", faults, pid);
}

}  // namespace sluice::test
