// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.hpp"
#include "tests/unit/client/client.hpp"

namespace sluice {
namespace {

using test::open_file;
using test::register_memory;

TEST(ClientFileTest, ErrorTextNamesTheMissingFile) {
  sluice_file* file = nullptr;
  EXPECT_EQ(sluice_open("/no/such/file", O_RDONLY, 0, &file), -ENOENT);
  EXPECT_EQ(file, nullptr);
  EXPECT_STREQ(sluice_error(), "open /no/such/file: No such file or directory");
}

TEST(ClientFileTest, OnlyRegularFilesAreOpened) {
  sluice_file* file = nullptr;
  EXPECT_EQ(sluice_open("/", O_RDONLY, 0, &file), -EISDIR);
  EXPECT_EQ(sluice_open("/dev/null", O_RDONLY, 0, &file), -EINVAL);
  EXPECT_EQ(sluice_open_fd(-1, &file), -EBADF);
  const UniqueFd path_only(::open("/proc/self/exe", O_PATH | O_CLOEXEC));
  EXPECT_EQ(sluice_open_fd(path_only.get(), &file), -EBADF);
  EXPECT_EQ(sluice_open(nullptr, O_RDONLY, 0, &file), -EINVAL);
  EXPECT_EQ(sluice_open("/proc/self/exe", O_RDONLY, 0, nullptr), -EINVAL);
  EXPECT_EQ(sluice_open_fd(path_only.get(), nullptr), -EINVAL);
  sluice_close(nullptr);
}

TEST(ClientFileTest, SizeIsTheCurrentSize) {
  test::TempDir dir;
  const std::string path = dir.make_file("f", "abc");
  const auto file = open_file(path);
  EXPECT_EQ(sluice_size(file.get()), 3);
  ASSERT_EQ(::truncate(path.c_str(), 10), 0);
  EXPECT_EQ(sluice_size(file.get()), 10);
  EXPECT_EQ(sluice_size(nullptr), -EINVAL);
}

TEST(ClientFileTest, BorrowedDescriptorStaysOpenAndKeepsItsPosition) {
  test::TempDir dir;
  const UniqueFd fd(::open(dir.make_file("f", "abcdef").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::lseek(fd.get(), 2, SEEK_SET), 2);
  char memory[6] = {};
  const auto buffer = register_memory(memory, sizeof memory);
  sluice_file* file = nullptr;
  ASSERT_EQ(sluice_open_fd(fd.get(), &file), 0);
  EXPECT_EQ(sluice_read(file, buffer.get(), 0, 6, 0, nullptr), 6);
  sluice_close(file);
  EXPECT_EQ(std::string(memory, 6), "abcdef");
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_CUR), 2);
}

TEST(ClientFileTest, DescriptorWithAppendWritesAtTheGivenOffset) {
  test::TempDir dir;
  const std::string path = dir.make_file("f", "abcdef");
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  char memory[] = "XY";
  const auto buffer = register_memory(memory, 2);
  for (const bool borrows : {true, false}) {
    sluice_file* file = nullptr;
    ASSERT_EQ(borrows ? sluice_open_fd(fd.get(), &file)
                      : sluice_open(path.c_str(), O_RDWR | O_APPEND, 0, &file),
              0);
    EXPECT_EQ(sluice_write(file, buffer.get(), 0, 2, 1, nullptr), 2) << sluice_error();
    EXPECT_EQ(sluice_size(file), 6);
    sluice_close(file);
  }
}

TEST(ClientFileTest, FileCanBeCreatedAndOpenedWriteOnly) {
  test::TempDir dir;
  char memory[] = "bytes";
  const auto buffer = register_memory(memory, 5);
  const auto file = open_file(dir / "new", O_WRONLY | O_CREAT | O_EXCL);
  EXPECT_EQ(sluice_write(file.get(), buffer.get(), 0, 5, 3, nullptr), 5) << sluice_error();
  EXPECT_EQ(sluice_size(file.get()), 8);
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, 5, 0, nullptr), -EBADF);
  EXPECT_NE(std::string(sluice_error()).find("/new: the file is not open for reading"),
            std::string::npos)
      << sluice_error();
}

}  // namespace
}  // namespace sluice
