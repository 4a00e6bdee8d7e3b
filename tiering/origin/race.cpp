// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/origin/race.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file_at.hpp"
#include "base/small_file.hpp"

namespace sluice {
namespace {

constexpr const char* kStamped = "stamped";
constexpr const char* kPlain = "plain";
constexpr int kFetches = 10;

// A round changes eight bytes in place. That is the hardest change to notice; so that a stale size
// is noticed, too, every fourth round changes the size.
std::uint64_t size_in(std::uint64_t round) { return 4096 + 512 * (round / 4 % 3); }
std::uint64_t place_in(std::uint64_t round) { return 8 * (round % 16); }

Result<void> change(int fd, std::uint64_t round) {
  if (size_in(round) != size_in(round - 1) &&
      ::ftruncate(fd, static_cast<off_t>(size_in(round))) < 0)
    return Error::last("resize a file of the race");
  const auto place = static_cast<off_t>(place_in(round));
  if (::pwrite(fd, &round, sizeof round, place) != sizeof round)
    return Error::last("write a file of the race");
  return {};
}

Result<void> close_file(UniqueFd fd) {
  // Some filesystems report a failed write only here.
  if (::close(fd.release()) < 0) return Error::last("close a file of the race");
  return {};
}

Result<UniqueFd> open_file(int dirfd, const char* name, int flags) {
  UniqueFd fd(::openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return Error::last("open a file of the race");
  return fd;
}

Result<void> write_plain(int dirfd, std::uint64_t round) {
  UniqueFd fd = SLUICE_TRY(open_file(dirfd, kPlain, O_WRONLY));
  SLUICE_TRY(change(fd.get(), round));
  return close_file(std::move(fd));
}

Result<void> make_empty(int dirfd, const char* name) {
  UniqueFd fd = SLUICE_TRY(open_file(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC));
  if (::ftruncate(fd.get(), static_cast<off_t>(size_in(0))) < 0)
    return Error::last("resize a file of the race");
  return close_file(std::move(fd));
}

bool has_round(const std::string& bytes, std::uint64_t round) {
  std::uint64_t found = 0;
  if (bytes.size() != size_in(round)) return false;
  std::memcpy(&found, bytes.data() + place_in(round), sizeof found);
  return found == round;
}

}  // namespace

void RaceSight::add(const RaceSight& other) {
  rounds += other.rounds;
  stale += other.stale;
  stale_by_stat += other.stale_by_stat;
  hits += other.hits;
}

Result<RaceWriter> RaceWriter::create(int dirfd, AttributeSpace space) {
  const BootId boot = SLUICE_TRY(this_boot());
  SLUICE_TRY(make_empty(dirfd, kStamped));
  SLUICE_TRY(make_empty(dirfd, kPlain));
  return RaceWriter(dirfd, space, boot);
}

Result<void> RaceWriter::write_stamped(std::uint64_t round) const {
  UniqueFd fd = SLUICE_TRY(open_file(dirfd_, kStamped, O_WRONLY));
  OriginFd file(fd.get(), space_);
  const WriteFlag flag = SLUICE_TRY(begin_writing(file, boot_));
  SLUICE_TRY(change(fd.get(), round));
  SLUICE_TRY(end_writing(file, flag));
  return close_file(std::move(fd));
}

Result<void> RaceWriter::write(std::uint64_t round) {
  SLUICE_TRY(write_stamped(round));
  return write_plain(dirfd_, round);
}

Result<RaceSight> RaceReader::read(std::uint64_t round) {
  RaceSight sight{.rounds = 1};
  for (int i = 0; i < 2; ++i) {
    const auto by_version = SLUICE_TRY(open(Judge::Version, round));
    const auto by_stat = SLUICE_TRY(open(Judge::StatAlone, round));
    sight.stale += by_version.is_stale;
    sight.stale_by_stat += by_stat.is_stale;
    if (i == 1) sight.hits += by_version.is_hit;
  }
  return sight;
}

Result<OriginVersion> RaceReader::version_of(const OriginFd& file, Judge judge) {
  if (judge == Judge::Version) return read_version(file);
  const auto stat = SLUICE_TRY(file.stat());
  return OriginVersion{1, stat};  // any number, always the same
}

Result<RaceReader::Opened> RaceReader::open(Judge judge, std::uint64_t round) {
  const char* name = judge == Judge::Version ? kStamped : kPlain;
  // By name only, as a lookup does: an open could make the filesystem look more closely.
  const UniqueFd node = SLUICE_TRY(open_file(dirfd_, name, O_PATH));
  const auto now = SLUICE_TRY(version_of(OriginFd(node.get(), space_), judge));
  Copy& copy = copy_of(judge);
  const bool is_hit = now.is_settled() && now == copy.version;
  if (!is_hit) {
    const UniqueFd fd = SLUICE_TRY(open_file(dirfd_, name, O_RDONLY));
    copy = SLUICE_TRY(fetch(OriginFd(fd.get(), space_), judge, fd.get()));
  }
  return Opened{is_hit, !has_round(copy.bytes, round)};
}

// A copy without a settled version is good for this open only.
Result<RaceReader::Copy> RaceReader::fetch(const OriginFd& file, Judge judge, int fd) const {
  Copy copy;
  for (int i = 0; i < kFetches; ++i) {
    const auto before = SLUICE_TRY(version_of(file, judge));
    // Pages that were read before the change would poison the copy.
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (::lseek(fd, 0, SEEK_SET) < 0) return Error::last("read a file of the race");
    copy.bytes = SLUICE_TRY(read_to_end(fd));
    bool is_same = false;
    if (judge == Judge::Version) {
      is_same = SLUICE_TRY(is_still(file, before));
    } else {
      const auto after = SLUICE_TRY(version_of(file, judge));
      is_same = after == before;
    }
    if (!is_same) continue;
    copy.version = before;
    return copy;
  }
  return copy;
}

}  // namespace sluice
