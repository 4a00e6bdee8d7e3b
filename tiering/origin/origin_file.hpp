// SPDX-License-Identifier: BSD-2-Clause
// OriginFile: the calls that stamps need of one file. OriginFd makes them on an open file; tests
// put another order, or a failure, between any two of them.
//
// Threads: one object at a time; any number of objects may be of one file, on any machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace sluice {

// Times are in nanoseconds since the epoch.
struct FileStat {
  std::uint64_t inode = 0;
  std::int64_t size = 0;
  std::int64_t mtime = 0;
  std::int64_t ctime = 0;

  bool operator==(const FileStat&) const = default;
};

class OriginFile {
 public:
  virtual ~OriginFile() = default;

  virtual Result<FileStat> stat() const = 0;
  // Attributes of Sluice, by the part of their name after "sluice.". ENODATA: there is none.
  virtual Result<std::string> get(const std::string& name) const = 0;
  virtual Result<void> set(const std::string& name, const std::string& value) = 0;
  virtual Result<void> remove(const std::string& name) = 0;
  virtual Result<std::vector<std::string>> names() const = 0;
  // All bytes that were written through any descriptor of this machine are in the origin.
  virtual Result<void> sync() = 0;
};

// Where the attributes are. All machines must agree: trusted, which users can't change, unless the
// filesystem has only user.
enum class AttributeSpace { Trusted, User };
const char* prefix_of(AttributeSpace space);  // "trusted.sluice."

// The space that the filesystem of an open directory or file has. ENOTSUP: neither.
Result<AttributeSpace> attribute_space(int fd);

// The file of a descriptor, which may be O_PATH for everything but sync(). It borrows it.
class OriginFd final : public OriginFile {
 public:
  OriginFd(int fd, AttributeSpace space) : fd_(fd), space_(space) {}

  Result<FileStat> stat() const override;
  Result<std::string> get(const std::string& name) const override;
  Result<void> set(const std::string& name, const std::string& value) override;
  Result<void> remove(const std::string& name) override;
  Result<std::vector<std::string>> names() const override;
  Result<void> sync() override;

 private:
  std::string full(const std::string& name) const { return prefix_of(space_) + name; }

  int fd_;
  AttributeSpace space_;
};

}  // namespace sluice
