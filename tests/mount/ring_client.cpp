// SPDX-License-Identifier: BSD-2-Clause
#include "tests/mount/ring_client.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <system_error>

#include "tests/support/wait.hpp"

namespace sluice::test {

BareRing::BareRing(std::uint32_t entries)
    : entries_(entries),
      size_(SLUICE_RING_HEADER_SIZE +
            entries * (sizeof(sluice_ring_entry) + sizeof(sluice_ring_completion))),
      memory_(size_) {
  header().magic = SLUICE_RING_MAGIC;
  header().version = SLUICE_RING_VERSION;
  header().entries = header().completions = entries;
}

int BareRing::create(int anchor) {
  sluice_ring_create request{memory_.fd(), 0, size_, 0};
  const int code = ioctl_code(anchor, SLUICE_IOC_RING_CREATE, &request);
  if (code == 0) name_ = request.ring;
  return code;
}

std::uint64_t BareRing::add(int file) const {
  sluice_ring_file request{name_, 0};
  if (const int code = ioctl_code(file, SLUICE_IOC_RING_ADD_FILE, &request); code != 0)
    throw std::system_error(code, std::generic_category(), "add a file to a ring");
  return request.file;
}

void BareRing::put(const sluice_ring_entry& entry) {
  std::memcpy(memory_.data() + SLUICE_RING_HEADER_SIZE + submitted_ % entries_ * sizeof entry,
              &entry, sizeof entry);
  std::atomic_ref(header().submitted).store(++submitted_);
  wake();
}

void BareRing::wake() {
  if (std::atomic_ref(header().sleeping).exchange(0) == 1) {
    ::syscall(SYS_futex, &header().sleeping, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

std::vector<sluice_ring_completion> BareRing::reap() {
  std::vector<sluice_ring_completion> out;
  const char* const first =
      memory_.data() + SLUICE_RING_HEADER_SIZE + entries_ * sizeof(sluice_ring_entry);
  const std::uint32_t completed = std::atomic_ref(header().completed).load();
  while (reaped_ != completed) {
    sluice_ring_completion each;
    std::memcpy(&each, first + reaped_++ % entries_ * sizeof each, sizeof each);
    out.push_back(each);
  }
  std::atomic_ref(header().reaped).store(reaped_);
  if (!out.empty()) wake();  // the daemon may have waited for room
  return out;
}

std::optional<std::int64_t> BareRing::result_of(const sluice_ring_entry& entry) {
  put(entry);
  std::vector<sluice_ring_completion> done;
  if (!eventually([&] { return !(done = reap()).empty(); })) return std::nullopt;
  return done[0].result;
}

sluice_ring_entry ring_entry(std::uint32_t operation, std::uint64_t file, std::uint64_t buffer,
                             std::uint64_t buffer_offset, std::uint64_t file_offset,
                             std::uint64_t length, std::uint64_t user_data) {
  return {user_data, file, buffer, buffer_offset, file_offset, length, operation, 0, 0};
}

}  // namespace sluice::test
