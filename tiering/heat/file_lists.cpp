// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/file_lists.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "tiering/heat/census.hpp"

namespace sluice {
namespace {

// On disk: raise it when an older reader would misunderstand the file.
constexpr std::string_view kVersion = "sluice files 1";

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using OpenList = std::unique_ptr<std::FILE, Close>;

// Writes records, each of which is a letter, a text and a zero byte.
class Writer {
 public:
  explicit Writer(std::FILE* file) : file_(file) {}

  void put(char kind, std::string_view text) {
    std::fputc(kind, file_);
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fputc('\0', file_);
  }
  void put_file(const FileLists::File& file) {
    const auto slash = file.path.rfind('/');
    const std::string_view above = std::string_view(file.path).substr(0, slash);
    if (above != directory_ || !has_directory_) put('D', directory_ = above);
    has_directory_ = true;
    char start[64];
    std::snprintf(start, sizeof start, "%llx %llu ",
                  static_cast<unsigned long long>(to_number(file.id)),
                  static_cast<unsigned long long>(file.bytes));
    put('F', start + file.path.substr(slash + 1));
  }
  // Everything is on the disk.
  Result<void> finish() {
    if (std::fflush(file_) != 0 || std::ferror(file_) != 0 || ::fdatasync(::fileno(file_)) < 0)
      return Error::last("write a list of files");
    return {};
  }

 private:
  std::FILE* const file_;
  std::string directory_;
  bool has_directory_ = false;
};

template <typename Number>
bool read_number(std::string_view& text, Number& out, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return true;
}

// Reads one record into the list. False if it is damaged.
bool take_record(std::string_view record, std::string& directory, FileLists::List& list) {
  if (record.empty()) return false;
  const char kind = record[0];
  record.remove_prefix(1);
  if (kind == 'T') return read_number(record, list.census_time, 10);
  if (kind == 'A') return read_number(record, list.added_time, 10);
  if (kind == 'D') {
    directory = record;
    return true;
  }
  std::uint64_t id = 0;
  FileLists::File file;
  if (kind != 'F' || !read_number(record, id, 16) || !read_number(record, file.bytes, 10))
    return false;
  file.id = InodeId{id};
  file.path = directory + "/" + std::string(record);
  list.files.push_back(std::move(file));
  return true;
}

constexpr long kMostBytes = 1L << 30;

// For root only: it has the names of everybody's files.
OpenList open_list(const std::string& path, int flags, const char* mode) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600));
  OpenList list(fd ? ::fdopen(fd.get(), mode) : nullptr);
  if (list) fd.release();
  return list;
}

}  // namespace

Result<void> FileLists::write(unsigned slot, const Census& census, TierIndex tier,
                              std::int64_t time) {
  SLUICE_TRY(make_directories(directory_));
  const std::string draft = path_of(slot) + ".new";
  std::vector<std::uint32_t> order;
  for (std::size_t i = 0; i < census.files().size(); ++i) {
    if (census.files()[i].tier == tier) order.push_back(static_cast<std::uint32_t>(i));
  }
  // Each directory is written once.
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return census.directory(a) < census.directory(b);
  });
  const OpenList file = open_list(draft, O_TRUNC, "w");
  if (!file) return Error::last("create a list of files");
  Writer writer(file.get());
  std::fwrite(kVersion.data(), 1, kVersion.size() + 1, file.get());
  writer.put('T', std::to_string(time));
  for (const std::uint32_t i : order) {
    const FileFacts& facts = census.files()[i];
    for (std::string& path : census.paths(i)) writer.put_file({facts.id, facts.bytes, path});
  }
  SLUICE_TRY(writer.finish());
  if (std::rename(draft.c_str(), path_of(slot).c_str()) < 0)
    return Error::last("rename a list of files");
  return {};
}

void FileLists::take(const Census& census, std::int64_t time) {
  const MutexLock lock(mutex_);
  const std::vector<unsigned>& slots = census.whole_slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == 0) continue;
    const auto written = write(slots[i], census, static_cast<TierIndex>(i), time);
    if (!written)
      log::get().warn("cannot store the list of files of a disk: slot={} why={}", slots[i],
                      written.error().text());
  }
}

void FileLists::add(unsigned slot, const std::vector<File>& files, std::int64_t time) {
  const MutexLock lock(mutex_);
  const auto append = [&]() -> Result<void> {
    SLUICE_TRY(make_directories(directory_));
    const OpenList file = open_list(path_of(slot), O_APPEND, "a");
    if (!file) return Error::last("open a list of files");
    std::fseek(file.get(), 0, SEEK_END);
    // A disk that goes and returns again and again must not fill the disk of the state.
    if (std::ftell(file.get()) > kMostBytes) return {};
    if (std::ftell(file.get()) == 0)
      std::fwrite(kVersion.data(), 1, kVersion.size() + 1, file.get());
    Writer writer(file.get());
    writer.put('A', std::to_string(time));
    for (const File& each : files) writer.put_file(each);
    return writer.finish();
  };
  if (const auto appended = append(); !appended)
    log::get().warn("cannot store the list of files of a disk: slot={} why={}", slot,
                    appended.error().text());
}

Result<FileLists::List> FileLists::read(unsigned slot) const {
  List list;
  const MutexLock lock(mutex_);
  const OpenList file(std::fopen(path_of(slot).c_str(), "re"));
  if (!file && errno == ENOENT) return list;
  if (!file) return Error::last("open a list of files");
  char* record = nullptr;
  std::size_t room = 0;
  std::string directory;
  for (bool first = true;; first = false) {
    const ssize_t size = ::getdelim(&record, &room, '\0', file.get());
    if (size <= 0 || record[size - 1] != '\0') break;
    const std::string_view text(record, static_cast<std::size_t>(size - 1));
    if (first ? text != kVersion : !take_record(text, directory, list)) break;
  }
  std::free(record);
  // What was added last is newest, and comes first among equal paths.
  std::reverse(list.files.begin(), list.files.end());
  std::stable_sort(list.files.begin(), list.files.end(),
                   [](const File& a, const File& b) { return a.path < b.path; });
  list.files.erase(std::unique(list.files.begin(), list.files.end(),
                               [](const File& a, const File& b) { return a.path == b.path; }),
                   list.files.end());
  return list;
}

}  // namespace sluice
