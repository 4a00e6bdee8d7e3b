// SPDX-License-Identifier: BSD-2-Clause
// Listing: positions that stay valid, and listings while the directory changes.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/mount/parity.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class ReaddirParityTest : public ParityTest {};

using Stream = std::unique_ptr<DIR, int (*)(DIR*)>;

Stream open_stream(const std::string& path) { return {::opendir(path.c_str()), ::closedir}; }

std::vector<std::string> rest_of(DIR* stream) {
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream)) names.emplace_back(entry->d_name);
  return names;
}

void make_files(const std::string& directory, const std::string& prefix, int count) {
  for (int i = 0; i < count; ++i) {
    write_file(directory + "/" + prefix + std::to_string(i), "");
  }
}

TEST_F(ReaddirParityTest, EntriesHaveTheirTypesAndInodes) {
  same([](Side& side) {
    side.write("file", "");
    side.mkdir("dir");
    side.symlink("x", "link");
    side.mknod("fifo", S_IFIFO | 0600);
    side.mknod("socket", S_IFSOCK | 0600);
    const Stream stream = open_stream(side.directory());
    std::map<std::string, std::string> entries;
    while (const dirent* entry = ::readdir(stream.get())) {
      const std::string name = entry->d_name;
      const bool inode = name == ".." || lstat_of(side / name).st_ino == entry->d_ino;
      entries[name] = std::to_string(entry->d_type) + (inode ? "" : " wrong inode");
    }
    for (const auto& [name, what] : entries) side.note("entry " + name, what);
  });
}

TEST_F(ReaddirParityTest, SeekdirReturnsToAPosition) {
  same([](Side& side) {
    make_files(side.directory(), "f", 1500);
    const Stream stream = open_stream(side.directory());
    std::vector<long> positions;
    std::vector<std::string> names;
    for (;;) {
      positions.push_back(::telldir(stream.get()));
      const dirent* entry = ::readdir(stream.get());
      if (!entry) break;
      names.emplace_back(entry->d_name);
    }
    side.note("entries", static_cast<long>(names.size()));
    std::mt19937 random(1);
    for (int i = 0; i < 100; ++i) {
      const std::size_t at = random() % names.size();
      ::seekdir(stream.get(), positions[at]);
      const dirent* entry = ::readdir(stream.get());
      if (!entry || entry->d_name != names[at]) side.note("wrong entry at", static_cast<long>(at));
    }
    ::rewinddir(stream.get());
    side.note("again from the start", rest_of(stream.get()) == names);
    ::seekdir(stream.get(), positions[700]);
    side.note("again from the middle",
              rest_of(stream.get()) == std::vector(names.begin() + 700, names.end()));
  });
}

TEST_F(ReaddirParityTest, PositionStaysValidIfEarlierEntriesAreRemoved) {
  same([](Side& side) {
    make_files(side.directory(), "f", 1000);
    const Stream stream = open_stream(side.directory());
    std::vector<std::string> seen;
    for (int i = 0; i < 500; ++i) seen.emplace_back(::readdir(stream.get())->d_name);
    for (const std::string& name : seen) {
      if (name != "." && name != "..") ::unlink((side / name).c_str());
    }
    for (const std::string& name : rest_of(stream.get())) seen.push_back(name);
    std::ranges::sort(seen);
    side.note("none twice", std::ranges::adjacent_find(seen) == seen.end());
    side.note("all", static_cast<long>(seen.size()));
    // Which ones came first differs.
    for (const std::string& name : names_in(side.directory())) ::unlink((side / name).c_str());
  });
}

TEST_F(ReaddirParityTest, RemovingWhileListingEmptiesTheDirectory) {
  same([](Side& side) {
    make_files(side.directory(), "f", 5000);
    for (int round = 0; round < 2; ++round) {
      const Stream stream = open_stream(side.directory());
      while (const dirent* entry = ::readdir(stream.get())) {
        if (entry->d_name[0] != '.') ::unlink((side / entry->d_name).c_str());
      }
      side.note("left", static_cast<long>(names_in(side.directory()).size()));
    }
  });
}

// POSIX makes no promise about names that change during a listing, but all others must be listed
// once.
TEST_F(ReaddirParityTest, UnchangedEntriesOfAChangingDirectoryAreListedOnce) {
  same([](Side& side) {
    make_files(side.directory(), "stays", 5000);
    make_files(side.directory(), "goes", 1000);
    const Stream stream = open_stream(side.directory());
    std::map<std::string, int> seen;
    int step = 0;
    while (const dirent* entry = ::readdir(stream.get())) {
      ++seen[entry->d_name];
      if (++step % 5 == 0) {
        const std::string number = std::to_string(step / 5);
        ::unlink((side / ("goes" + number)).c_str());
        write_file(side / ("comes" + number), "");
        ::rename((side / ("comes" + number)).c_str(), (side / ("renamed" + number)).c_str());
      }
      if (step > 100'000) break;  // a listing that never ends
    }
    int once = 0;
    int twice = 0;
    for (const auto& [name, times] : seen) {
      if (name.starts_with("stays")) once += times == 1;
      twice += times > 1;
    }
    side.note("survivors", once);
    side.note("listed twice", twice);
    side.note("ends", step < 100'000);
    for (const std::string& name : names_in(side.directory())) ::unlink((side / name).c_str());
  });
}

TEST_F(ReaddirParityTest, NextListingShowsChanges) {
  same([](Side& side) {
    side.list(".");
    side.write("a", "");
    side.list(".");
    side.mkdir("b");
    side.list(".");
    side.rename("a", "c");
    side.list(".");
    side.link("c", "d");
    side.symlink("x", "e");
    side.list(".");
    side.unlink("c");
    side.rmdir("b");
    side.list(".");
    const Stream stream = open_stream(side.directory());
    side.note("entries", static_cast<long>(rest_of(stream.get()).size()));
    side.write("f", "");
    ::rewinddir(stream.get());
    side.note("entries after rewind", static_cast<long>(rest_of(stream.get()).size()));
  });
}

TEST_F(ReaddirParityTest, ManyDirectoriesCountTheirChildren) {
  same([](Side& side) {
    for (int i = 0; i < 300; ++i) {
      ::mkdir((side / ("d" + std::to_string(i))).c_str(), 0755);
    }
    side.look(".");
    for (int i = 0; i < 150; ++i) ::rmdir((side / ("d" + std::to_string(i))).c_str());
    side.look(".");
  });
}

}  // namespace
}  // namespace sluice::test
