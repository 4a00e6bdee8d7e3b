// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/fault_shim.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/unique_fd.hpp"

namespace sluice::test {
namespace {

template <std::size_t N>
void put(char (&out)[N], const std::string& text) {
  if (text.size() >= N) throw std::length_error(text);
  std::memcpy(out, text.c_str(), text.size() + 1);
}

}  // namespace

FaultShim::FaultShim(const std::string& path) : path_(path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  void* memory = MAP_FAILED;
  if (fd && ::ftruncate(fd.get(), sizeof(FaultControl)) == 0) {
    memory = ::mmap(nullptr, sizeof(FaultControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  }
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
  control_ = new (memory) FaultControl();
}

FaultShim::~FaultShim() {
  disarm();
  ::munmap(control_, sizeof(FaultControl));
}

std::vector<std::string> FaultShim::environment(Afterwards afterwards) const {
  const char* asan = std::getenv("ASAN_OPTIONS");
  std::vector<std::string> out{
      std::string("LD_PRELOAD=") + SLUICE_FAULT_SHIM,
      std::string(FaultControl::kVariable) + "=" + path_,
      // ASan demands to be loaded first, but does not need to be.
      std::string("ASAN_OPTIONS=") + (asan ? asan : "") + ":verify_asan_link_order=0"};
  if (afterwards == Afterwards::DeadMount) out.emplace_back("SLUICE_DEBUG=keeper=off");
  return out;
}

void FaultShim::arm(const Fault& fault) {
  control_->at = 0;
  control_->action = fault.action;
  control_->kinds = fault.kinds;
  control_->error = fault.error;
  control_->for_good = fault.for_good;
  put(control_->thread, fault.thread);
  put(control_->path, fault.path);
  control_->where[0] = '\0';
  control_->calls = 0;
  control_->faults = 0;
  control_->at = fault.at;
}

void FaultShim::disarm() { control_->at = 0; }

}  // namespace sluice::test
