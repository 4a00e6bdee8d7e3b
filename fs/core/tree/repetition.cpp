// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/tree/repetition.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

namespace sluice {

namespace {

constexpr std::uint64_t kNanosPerSecond = 1'000'000'000;

// Whether the file was made at `began` or later.
bool is_newer(const struct statx& st, std::uint64_t began) {
  const statx_timestamp& born = st.stx_mask & STATX_BTIME ? st.stx_btime : st.stx_ctime;
  // Some filesystems store only seconds.
  if (born.tv_nsec == 0) began -= began % kNanosPerSecond;
  return static_cast<std::uint64_t>(born.tv_sec) * kNanosPerSecond + born.tv_nsec >= began;
}

}  // namespace

void remember_beginning(const KernelRequest& request) {
  // Filesystems take the times of new files from this clock, or from a more precise one.
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  request.remember(Fact::Began, static_cast<std::uint64_t>(now.tv_sec) * kNanosPerSecond +
                                    static_cast<std::uint64_t>(now.tv_nsec));
}

Result<std::optional<Located>> made_by_first_attempt(const OpenCopies& directory, const char* name,
                                                     mode_t type, uid_t owner,
                                                     const KernelRequest& request) {
  const auto began = request.remembered(Fact::Began);
  if (!began) return std::optional<Located>();
  for (const OpenCopy& copy : directory.reachable) {
    struct statx st {};
    constexpr unsigned kWanted = STATX_TYPE | STATX_UID | STATX_CTIME | STATX_BTIME;
    if (::statx(copy.get(), name, AT_SYMLINK_NOFOLLOW, kWanted, &st) < 0) {
      if (errno == ENOENT) continue;
      return Error::last("statx");
    }
    if ((st.stx_mode & S_IFMT) == type && st.stx_uid == owner && is_newer(st, *began))
      return std::optional(SLUICE_TRY(copy.tier->identify(copy.get(), name)));
  }
  return std::optional<Located>();
}

Result<bool> has_identity(const OpenCopies& directory, const char* name, InodeId id) {
  for (const OpenCopy& copy : directory.reachable) {
    const auto found = copy.tier->identity_of(copy.get(), name);
    if (found && found->id == id) return true;
    if (!found && found.error().code != ENOENT) return found.error();
  }
  return false;
}

}  // namespace sluice
