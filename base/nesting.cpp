// SPDX-License-Identifier: BSD-2-Clause
#include "base/nesting.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <utility>

#include "base/path.hpp"
#include "base/unique_fd.hpp"

namespace sluice {
namespace {

constexpr unsigned kDeepest = 4096;  // directories above another one

struct Id {
  std::pair<unsigned, unsigned> device;
  std::uint64_t inode;
  bool operator==(const Id&) const = default;
};

// Asks no daemon of a FUSE filesystem: it may be our own.
std::optional<Id> id_of(int fd) {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &st) < 0) return std::nullopt;
  return Id{{st.stx_dev_major, st.stx_dev_minor}, st.stx_ino};
}

// Calls `is_it` for the directory and those above it, until it returns true or the top is reached.
template <typename IsIt>
bool any_above(UniqueFd directory, IsIt is_it) {
  std::optional<Id> id = id_of(directory.get());
  for (unsigned depth = 0; id && depth < kDeepest; ++depth) {
    if (is_it(directory.get(), *id)) return true;
    directory.reset(::openat(directory.get(), "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
    const std::optional<Id> above = directory ? id_of(directory.get()) : std::nullopt;
    if (above == id) return false;
    id = above;
  }
  return false;
}

// The directory `fd` as it is seen through the mount of `through`, on the same filesystem: there,
// the directories between the two are not hidden by a bind mount.
UniqueFd open_through(int through, int fd) {
  struct {
    file_handle header;
    std::array<unsigned char, MAX_HANDLE_SZ> bytes;
  } handle{};
  handle.header.handle_bytes = MAX_HANDLE_SZ;
  int mount = 0;
  if (::name_to_handle_at(fd, "", &handle.header, &mount, AT_EMPTY_PATH) < 0) return {};
  return UniqueFd(::open_by_handle_at(through, &handle.header, O_PATH | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

Nesting nesting(const std::string& inner, const std::string& outer) {
  if (real_path(inner) == real_path(outer)) return Nesting::Same;
  if (is_inside(outer, inner)) return Nesting::Inside;
  UniqueFd from(::open(inner.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const bool exists = static_cast<bool>(from);
  for (std::string above = inner; !from && above != "/";) {
    above = parent_path(above);
    from.reset(::open(above.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  const UniqueFd to(::open(outer.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto inner_id = from ? id_of(from.get()) : std::nullopt;
  const auto outer_id = to ? id_of(to.get()) : std::nullopt;
  if (!inner_id || !outer_id) return Nesting::Apart;
  if (exists && inner_id == outer_id) return Nesting::Same;
  const auto is_outer = [&](int, const Id& id) { return id == *outer_id; };
  const bool is_within = any_above(std::move(from), [&](int fd, const Id& id) {
    if (id == *outer_id) return true;
    if (id.device != outer_id->device) return false;
    UniqueFd same = open_through(to.get(), fd);
    return same && any_above(std::move(same), is_outer);
  });
  return is_within ? Nesting::Inside : Nesting::Apart;
}

}  // namespace sluice
