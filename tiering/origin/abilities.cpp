// SPDX-License-Identifier: BSD-2-Clause
// Each ability is tried out with files of its own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/file_at.hpp"
#include "tiering/origin/check.hpp"

namespace sluice {
namespace {

using State = Ability::State;

constexpr std::size_t kPage = 4096;
constexpr unsigned kRewrites = 100;
constexpr std::int64_t kSecond = 1'000'000'000;

std::string reason() { return std::strerror(errno); }

Result<UniqueFd> make_probe(int dirfd, const char* name, std::size_t size = kPage) {
  UniqueFd fd(::openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return Error::last("make a file in the scratch directory");
  const std::string bytes(size, 'a');
  if (::write(fd.get(), bytes.data(), size) != static_cast<ssize_t>(size))
    return Error::last("write a file in the scratch directory");
  return fd;
}

// What a check needs.
struct Place {
  int dirfd;
  AttributeSpace space;
  CheckSide* other;
};

Result<Ability> try_attributes(const Place& place, const char* space, const std::string& without) {
  const std::string name = std::string("attributes-") + space;
  const UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, name.c_str()));
  const std::string attribute = std::string(space) + ".sluice.check";
  Ability found{std::string(space) + " xattr", State::Ok, std::string(space) + ".* attributes"};
  std::array<char, 8> value{};
  if (::fsetxattr(fd.get(), attribute.c_str(), "value", 5, 0) < 0 ||
      ::fgetxattr(fd.get(), attribute.c_str(), value.data(), value.size()) != 5) {
    found.state = State::Weaker;
    found.words = "no " + std::string(space) + ".* attributes (" + reason() + "): " + without;
  }
  return found;
}

// Stamps need attributes that can be set, listed and removed.
Result<Ability> try_stamps(const Place& place) {
  const UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, "stamps"));
  OriginFd file(fd.get(), place.space);
  const auto boot = SLUICE_TRY(this_boot());
  const std::string name = std::string(prefix_of(place.space)) + "v";
  const auto flag = begin_writing(file, boot);
  const auto ended = flag ? end_writing(file, *flag) : Result<void>(flag.error());
  const auto version = read_version(file);
  const auto kept = version ? is_still(file, *version) : Result<bool>(version.error());
  if (ended && kept && *kept) return Ability{"stamps", State::Ok, "in " + name};
  const std::string why = !ended  ? std::strerror(ended.error().code)
                          : !kept ? std::strerror(kept.error().code)
                                  : "an attribute is not what was set";
  return Ability{"stamps", State::Missing, "files can't be stamped (" + why + ")"};
}

Result<Ability> try_lock(const Place& place, LockKind kind) {
  const std::string name = kind == LockKind::Flock ? "flock" : "fcntl";
  const UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, name.c_str()));
  const auto locked = take_lock(fd.get(), kind);
  if (!locked)
    return Ability{name, State::Weaker,
                   std::string("locks are refused (") + std::strerror(locked.error().code) + ")"};
  const UniqueFd again(::openat(place.dirfd, name.c_str(), O_RDWR | O_CLOEXEC));
  const auto here = take_lock(again.get(), kind);
  if (!here || *here) return Ability{name, State::Weaker, "a lock excludes nobody"};
  if (place.other == nullptr) return Ability{name, State::Ok, "locks work on this machine"};
  const auto there = place.other->lock(name, kind);
  if (!there || *there)
    return Ability{name, State::Weaker, "a lock excludes only programs of its machine"};
  return Ability{name, State::Ok, "a lock excludes other machines"};
}

Result<Ability> try_rename(const Place& place, const char* word, unsigned flag,
                           const std::string& without) {
  const std::string from = std::string(word) + "-from", to = std::string(word) + "-to";
  SLUICE_TRY(make_probe(place.dirfd, from.c_str()));
  if (flag == RENAME_EXCHANGE) SLUICE_TRY(make_probe(place.dirfd, to.c_str()));
  if (::renameat2(place.dirfd, from.c_str(), place.dirfd, to.c_str(), flag) == 0)
    return Ability{word, State::Ok, "supported"};
  return Ability{word, State::Weaker, "not supported (" + reason() + "): " + without};
}

Result<Ability> try_unnamed(const Place& place) {
  const UniqueFd fd(::openat(place.dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd) return Ability{"O_TMPFILE", State::Ok, "files without a name"};
  return Ability{"O_TMPFILE", State::Weaker, "no files without a name (" + reason() + ")"};
}

Result<Ability> try_links(const Place& place) {
  const UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, "link-from"));
  if (::linkat(place.dirfd, "link-from", place.dirfd, "link-to", 0) < 0)
    return Ability{"hard links", State::Weaker, "not supported (" + reason() + ")"};
  if (place.other == nullptr) return Ability{"hard links", State::Ok, "supported"};
  const auto one = SLUICE_TRY(place.other->stat("link-from"));
  const auto two = SLUICE_TRY(place.other->stat("link-to"));
  if (one.inode == two.inode) return Ability{"hard links", State::Ok, "supported"};
  return Ability{"hard links", State::Weaker, "the other machine sees two files"};
}

Result<Ability> try_inode(const Place& place) {
  const UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, "inode"));
  const auto here = SLUICE_TRY(OriginFd(fd.get(), place.space).stat());
  const auto there = SLUICE_TRY(place.other->stat("inode"));
  if (here.inode == there.inode) return Ability{"inode", State::Ok, "the same on both machines"};
  return Ability{"inode", State::Missing, "a file has another inode number on the other machine"};
}

Result<Ability> try_handles(const Place& place) {
  SLUICE_TRY(make_probe(place.dirfd, "handle"));
  auto side = SLUICE_TRY(LocalSide::open(proc_path(place.dirfd)));
  SLUICE_TRY(side.enter(".", place.space));
  const auto here = side.handle("handle");
  if (!here)
    return Ability{"handles", State::Weaker,
                   std::string("no file handles (") + std::strerror(here.error().code) + ")"};
  if (place.other == nullptr) return Ability{"handles", State::Ok, "files have handles"};
  const auto there = place.other->handle("handle");
  if (there && *there == *here) return Ability{"handles", State::Ok, "the same on both machines"};
  return Ability{"handles", State::Weaker, "another one on the other machine"};
}

std::string unit_text(std::int64_t unit) {
  if (unit >= kSecond) return "1 s";
  if (unit >= 1'000'000) return std::to_string(unit / 1'000'000) + " ms";
  if (unit >= 1000) return std::to_string(unit / 1000) + " us";
  return std::to_string(unit) + " ns";
}

// The largest power of ten that divides the times of a few files.
Result<Ability> try_times(const Place& place) {
  std::int64_t common = kSecond;
  for (int i = 0; i < 5; ++i) {
    const std::string name = "time-" + std::to_string(i);
    const UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, name.c_str()));
    const auto stat = SLUICE_TRY(OriginFd(fd.get(), place.space).stat());
    common = std::gcd(common, stat.mtime);
  }
  std::int64_t unit = 1;
  while (common % (unit * 10) == 0) unit *= 10;
  const bool is_coarse = unit >= kSecond;
  return Ability{
      "times", is_coarse ? State::Weaker : State::Ok,
      "in units of " + unit_text(unit) +
          (is_coarse ? ": a change without Sluice in the second of another is not seen" : "")};
}

// As a program does it that opens the file, changes a few bytes and closes it.
Result<void> rewrite(int dirfd, const char* name) {
  const UniqueFd fd(::openat(dirfd, name, O_WRONLY | O_CLOEXEC));
  if (!fd || ::pwrite(fd.get(), "b", 1, 0) != 1) return Error::last("rewrite a file of the check");
  return {};
}

Result<Ability> try_rewrites(const Place& place) {
  SLUICE_TRY(make_probe(place.dirfd, "rewrite"));
  auto local = SLUICE_TRY(LocalSide::open(proc_path(place.dirfd)));
  SLUICE_TRY(local.enter(".", place.space));
  CheckSide& side = place.other == nullptr ? local : *place.other;
  unsigned seen = 0;
  auto before = SLUICE_TRY(side.stat("rewrite"));
  for (unsigned i = 0; i < kRewrites; ++i) {
    SLUICE_TRY(rewrite(place.dirfd, "rewrite"));
    const auto after = SLUICE_TRY(side.stat("rewrite"));
    seen += after != before;
    before = after;
  }
  const std::string words = std::to_string(seen) + " of " + std::to_string(kRewrites) +
                            " rewrites in place change inode, size or times";
  if (seen == kRewrites) return Ability{"rewrites", State::Ok, words};
  return Ability{"rewrites", State::Weaker, words + ": see 'sluice origin scan'"};
}

Result<Ability> try_holes(const Place& place) {
  const UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, "holes", 1));
  constexpr off_t kFar = 8 << 20;
  if (::pwrite(fd.get(), "b", 1, kFar) != 1) return Error::last("write a file of the check");
  if (::fsync(fd.get()) < 0) return Error::last("sync a file of the check");
  const off_t hole = ::lseek(fd.get(), 0, SEEK_HOLE);
  if (hole >= 0 && hole < kFar) return Ability{"SEEK_HOLE", State::Ok, "holes are found"};
  return Ability{"SEEK_HOLE", State::Weaker, "holes are not found: they are copied as zeros"};
}

Result<Ability> try_direct(const Place& place) {
  SLUICE_TRY(make_probe(place.dirfd, "direct"));
  const std::unique_ptr<void, void (*)(void*)> buffer(std::aligned_alloc(kPage, kPage), std::free);
  const UniqueFd fd(::openat(place.dirfd, "direct", O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (fd && ::pread(fd.get(), buffer.get(), kPage, 0) == static_cast<ssize_t>(kPage))
    return Ability{"O_DIRECT", State::Ok, "reads can bypass the page cache"};
  return Ability{"O_DIRECT", State::Weaker,
                 "not supported (" + reason() + "): copies are read through the page cache"};
}

// Stores a byte through a shared mapping. Returns an errno, or 0.
int store_mapped(const UniqueFd& fd) {
  void* memory = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return errno;
  std::memset(memory, 'm', 1);
  const int code = ::msync(memory, kPage, MS_SYNC) == 0 ? 0 : errno;
  ::munmap(memory, kPage);
  return code;
}

Result<Ability> try_mapping(const Place& place) {
  UniqueFd fd = SLUICE_TRY(make_probe(place.dirfd, "mapping"));
  const int code = store_mapped(fd);
  fd.reset();
  if (code != 0)
    return Ability{"mmap", State::Weaker,
                   std::string("no shared mappings (") + std::strerror(code) + ")"};
  if (place.other == nullptr) return Ability{"mmap", State::Ok, "shared mappings"};
  const auto seen = SLUICE_TRY(place.other->content("mapping"));
  if (seen.starts_with('m'))
    return Ability{"mmap", State::Ok, "the other machine sees what was stored"};
  return Ability{"mmap", State::Missing, "the other machine does not see what was stored"};
}

}  // namespace

Result<std::vector<Ability>> try_abilities(int scratch, AttributeSpace space, CheckSide* other) {
  const Place place{scratch, space, other};
  std::vector<Result<Ability>> tried;
  tried.push_back(try_attributes(place, "trusted",
                                 "stamps are user.* attributes, which users of "
                                 "a file can change"));
  tried.push_back(try_attributes(place, "user", "programs can't store any"));
  tried.push_back(try_stamps(place));
  if (other != nullptr) tried.push_back(try_inode(place));
  tried.push_back(try_lock(place, LockKind::Flock));
  tried.push_back(try_lock(place, LockKind::Fcntl));
  tried.push_back(
      try_rename(place, "NOREPLACE", RENAME_NOREPLACE, "a link and an unlink take its place"));
  tried.push_back(
      try_rename(place, "EXCHANGE", RENAME_EXCHANGE, "two names can't be swapped in one step"));
  tried.push_back(try_unnamed(place));
  tried.push_back(try_links(place));
  tried.push_back(try_handles(place));
  tried.push_back(try_times(place));
  tried.push_back(try_rewrites(place));
  tried.push_back(try_holes(place));
  tried.push_back(try_direct(place));
  tried.push_back(try_mapping(place));
  std::vector<Ability> abilities;
  for (auto& each : tried) {
    const auto ability = SLUICE_TRY(std::move(each));
    abilities.push_back(ability);
  }
  return abilities;
}

}  // namespace sluice
