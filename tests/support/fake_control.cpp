// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/fake_control.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace sluice::test {

std::string FakeControl::path(const char* library, pid_t pid) {
  const char* directory = std::getenv(kDirectory);
  if (directory == nullptr) return {};
  return std::string(directory) + "/" + library + "." + std::to_string(pid);
}

FakeControl* FakeControl::map(const std::string& path, bool create) {
  const int fd = path.empty() ? (create ? ::memfd_create("fake", MFD_CLOEXEC) : -1)
                              : ::open(path.c_str(),
                                       O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_TRUNC : 0), 0666);
  if (fd < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (!create || ::ftruncate(fd, sizeof(FakeControl)) == 0) {
    memory = ::mmap(nullptr, sizeof(FakeControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<FakeControl*>(memory);
}

FakeFaults::FakeFaults(const char* library, const char* variable)
    : control_(FakeControl::map(FakeControl::path(library, ::getpid()), true)) {
  if (control_ == nullptr) {
    std::fprintf(stderr, "fake %s: cannot create its file in $%s\n", library,
                 FakeControl::kDirectory);
    std::abort();
  }
  if (const char* text = std::getenv(variable)) parse(text);
}

void FakeFaults::parse(const std::string& text) {
  faults_.clear();
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    const auto first = word.find(':');
    const auto second = word.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      std::fprintf(stderr, "fake GPU: \"%s\" is not call:number:code\n", word.c_str());
      std::abort();
    }
    const std::string number = word.substr(first + 1, second - first - 1);
    faults_.push_back({word.substr(0, first), std::strtoul(number.c_str(), nullptr, 10), 0,
                       number.back() == '+', std::atoi(word.c_str() + second + 1)});
  }
}

int FakeFaults::next(const char* call) {
  const MutexLock lock(mutex_);
  if (const std::uint32_t now = control_->generation; now != generation_) {
    generation_ = now;
    parse(control_->fail);
  }
  int code = 0;
  for (Fault& fault : faults_) {
    if (fault.call != call) continue;
    ++fault.seen;
    if (fault.onwards ? fault.seen >= fault.number : fault.seen == fault.number) code = fault.code;
  }
  return code;
}

}  // namespace sluice::test
