// SPDX-License-Identifier: BSD-2-Clause
// Creating and removing names: mkdir, rmdir, unlink, link, symlink, mknod, and which names are
// valid.
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "tests/mount/parity.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class NamespaceParityTest : public ParityTest {};

TEST_F(NamespaceParityTest, MkdirCreatesADirectoryAndUpdatesTheLinkCountOfTheParent) {
  same([](Side& side) {
    side.mkdir("d", 0751);
    side.look("d");
    side.mkdir("d/e");
    side.mkdir("d/f");
    side.look("d");
    side.mkdir("d");
    side.write("file", "");
    side.mkdir("file");
    side.mkdir("file/d");
    side.mkdir("missing/d");
    side.symlink("nowhere", "dangling");
    side.mkdir("dangling");
    side.mkdir("d/..");
    side.mkdir("d/.");
    side.mkdir("slash/");
    side.look(".");
  });
}

TEST_F(NamespaceParityTest, RmdirRemovesOnlyEmptyDirectories) {
  same([](Side& side) {
    side.mkdir("d");
    side.mkdir("d/e");
    side.rmdir("d");
    side.rmdir("d/.");
    side.rmdir("d/..");
    side.rmdir("d/e/");
    side.look("d");
    side.rmdir("d");
    side.rmdir("d");
    side.look("d");
    side.write("f", "");
    side.rmdir("f");
    side.mkdir("real");
    side.symlink("real", "s");
    side.rmdir("s");
    side.look(".");
  });
}

TEST_F(NamespaceParityTest, UnlinkRemovesNamesOfFilesOnly) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    side.symlink("f", "s");
    side.unlink("d");
    side.unlink("d/");
    side.unlink("s");
    side.look("f");
    side.unlink("f");
    side.unlink("f");
    side.unlink("f/x");
    side.unlink("missing/x");
    side.unlink(".");
    side.list(".");
  });
}

TEST_F(NamespaceParityTest, RemovedOpenDirectoryIsEmptyAndAcceptsNoNewNames) {
  same([](Side& side) {
    side.mkdir("d");
    const UniqueFd fd = side.open("d", O_RDONLY | O_DIRECTORY);
    side.rmdir("d");
    struct stat st {};
    side.done("fstat", ::fstat(fd.get(), &st));
    side.note("links", static_cast<long>(st.st_nlink));
    side.done("mkdirat", ::mkdirat(fd.get(), "e", 0755));
    side.done("openat", ::openat(fd.get(), "f", O_CREAT | O_WRONLY, 0644));
    side.done("unlinkat", ::unlinkat(fd.get(), "f", 0));
  });
}

TEST_F(NamespaceParityTest, HardLinksAreOneFile) {
  same([](Side& side) {
    side.write("a", "one");
    side.mkdir("d");
    side.link("a", "d/b");
    side.look("a");
    side.note("same inode", lstat_of(side / "a").st_ino == lstat_of(side / "d/b").st_ino);
    side.chmod("d/b", 0600);
    side.look("a");
    side.open("a", O_WRONLY | O_TRUNC);
    side.write("d/b", "through the other name");
    side.read("a");
    side.look("a");
    side.set_xattr("a", "user.k", "v");
    side.get_xattr("d/b", "user.k");
    side.unlink("a");
    side.look("d/b");
    side.read("d/b");
  });
}

TEST_F(NamespaceParityTest, InvalidLinksAreRefused) {
  same([](Side& side) {
    side.write("f", "");
    side.mkdir("d");
    side.link("d", "e");
    side.link("f", "f");
    side.link("f", "d");
    side.link("missing", "g");
    side.link("f", "missing/g");
    side.link("f/x", "g");
    side.symlink("f", "s");
    side.link("s", "hard-link-to-the-symlink");
    side.look("hard-link-to-the-symlink");
    side.look("s");
    side.look("f");
    side.mknod("fifo", S_IFIFO | 0644);
    side.link("fifo", "fifo2");
    side.look("fifo");
  });
}

TEST_F(NamespaceParityTest, SymlinksHoldAnyTargetUpToTheLimit) {
  same([](Side& side) {
    side.symlink("target", "s");
    side.look("s");
    side.readlink("s");
    side.symlink(std::string(59, 'x'), "inline");
    side.symlink(std::string(60, 'x'), "block");
    side.symlink(std::string(4095, 'y'), "longest");
    side.look("longest");
    side.readlink("longest");
    side.symlink(std::string(4096, 'z'), "too-long");
    side.symlink("", "empty");
    side.symlink("x", "s");
    side.symlink("\x01\xff bytes \n", "bytes");
    side.readlink("bytes");
    side.write("f", "");
    side.readlink("f");
    side.readlink("missing");
    side.symlink(side.directory() + "/f", "absolute");
    side.done("open absolute", ::access((side / "absolute").c_str(), R_OK));
    side.unlink("absolute");  // its target differs between the two directories
  });
}

TEST_F(NamespaceParityTest, ShortReadlinkBufferTruncatesTheTarget) {
  same([](Side& side) {
    side.symlink("0123456789", "s");
    char buffer[5] = "";
    side.call("readlink", ::readlink((side / "s").c_str(), buffer, 4));
    side.note("target", buffer);
  });
}

TEST_F(NamespaceParityTest, MknodCreatesEveryKindOfNode) {
  same([](Side& side) {
    side.mknod("file", S_IFREG | 0640);
    side.mknod("none", 0600);
    side.mknod("fifo", S_IFIFO | 0666);
    side.mknod("socket", S_IFSOCK | 0755);
    side.mknod("char", S_IFCHR | 0600, makedev(1, 3));
    side.mknod("block", S_IFBLK | 0600, makedev(7, 200));
    side.mknod("big", S_IFCHR | 0600, makedev(0xabc, 0xbcdef));
    side.mknod("directory", S_IFDIR | 0755);
    for (const char* name : {"file", "none", "fifo", "socket", "char", "block", "big"}) {
      side.look(name);
    }
    side.mknod("fifo", S_IFIFO | 0666);
    side.as(kNobody, [](Side& nobody) {
      nobody.mknod("nobodys-fifo", S_IFIFO | 0666);
      nobody.mknod("nobodys-device", S_IFCHR | 0666, makedev(1, 3));
    });
  });
}

TEST_F(NamespaceParityTest, DeviceNodesWork) {
  same([](Side& side) {
    side.mknod("null", S_IFCHR | 0666, makedev(1, 3));
    const UniqueFd fd = side.open("null", O_RDWR);
    char byte = 0;
    side.call("write", ::write(fd.get(), "x", 1));
    side.call("read", ::read(fd.get(), &byte, 1));
  });
}

TEST_F(NamespaceParityTest, FifosTransferBytes) {
  same([](Side& side) {
    side.mknod("fifo", S_IFIFO | 0600);
    const UniqueFd reader = side.open("fifo", O_RDONLY | O_NONBLOCK);
    const UniqueFd writer = side.open("fifo", O_WRONLY);
    char buffer[8] = "";
    side.call("write", ::write(writer.get(), "hello", 5));
    side.call("read", ::read(reader.get(), buffer, 5));
    side.note("got", buffer);
  });
}

TEST_F(NamespaceParityTest, UnixSocketsBindAndConnect) {
  same([](Side& side) {
    // A socket address holds 108 bytes: bind relative to the directory.
    side.note("socket", in_child([&]() -> std::string {
                if (::chdir(side.directory().c_str()) < 0) return "chdir";
                sockaddr_un address{AF_UNIX, "sock"};
                const auto* where = reinterpret_cast<const sockaddr*>(&address);
                const UniqueFd server(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
                if (::bind(server.get(), where, sizeof address) < 0) return errno_name(errno);
                if (::bind(server.get(), where, sizeof address) == 0) return "bound twice";
                if (::listen(server.get(), 1) < 0) return errno_name(errno);
                const UniqueFd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
                if (::connect(client.get(), where, sizeof address) < 0) return errno_name(errno);
                return "connected";
              }));
    side.look("sock");
  });
}

TEST_F(NamespaceParityTest, NamesOfEveryByteWork) {
  same([](Side& side) {
    for (int byte = 1; byte < 256; ++byte) {
      if (byte == '/') continue;
      const std::string name = "n" + std::string(1, static_cast<char>(byte)) + "n";
      side.write(name, name);
      side.look(name);
      if (byte != '.') side.mkdir(std::string(1, static_cast<char>(byte)));
    }
    side.mkdir("...");
    side.mkdir(".sluice");  // reserved at the root of a tier only
    side.list(".");
  });
}

TEST_F(NamespaceParityTest, NamesHoldUpTo255Bytes) {
  same([](Side& side) {
    const std::string longest(255, 'n');
    const std::string too_long(256, 'n');
    side.write(longest, "x");
    side.look(longest);
    side.rename(longest, std::string(255, 'm'));
    side.mkdir(longest);
    side.symlink("x", std::string(255, 's'));
    side.write(too_long, "x");
    side.look(too_long);
    side.mkdir(too_long);
    side.unlink(too_long);
    side.rmdir(too_long);
    side.symlink("x", too_long);
    side.link(std::string(255, 'm'), too_long);
    side.rename(longest, too_long);
    side.rename(too_long, "x");
    side.mknod(too_long, S_IFIFO | 0600);
    side.chmod(too_long, 0600);
    side.readlink(too_long);
    side.write(longest + "/" + longest, "deep");
    side.read(longest + "/" + longest);
  });
}

TEST_F(NamespaceParityTest, PathsLongerThanPathMaxFailButTheirFilesWork) {
  same([](Side& side) {
    const std::string part(200, 'p');
    constexpr int kDepth = 50;  // 10,000 bytes
    UniqueFd at = side.open(".", O_RDONLY | O_DIRECTORY);
    for (int depth = 0; depth < kDepth; ++depth) {
      side.done("mkdirat", ::mkdirat(at.get(), part.c_str(), 0755));
      at.reset(::openat(at.get(), part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      side.done("openat", at.get());
    }
    const UniqueFd file(::openat(at.get(), "deep", O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    side.done("create", file.get());
    side.call("write", ::write(file.get(), "deep", 4));
    side.done("link", ::linkat(at.get(), "deep", at.get(), "linked", 0));
    side.done("symlink", ::symlinkat("deep", at.get(), "s"));
    side.done("mkdir", ::mkdirat(at.get(), "d", 0755));
    side.done("rename", ::renameat(at.get(), "linked", at.get(), "d/renamed"));
    side.done("chmod", ::fchmodat(at.get(), "deep", 0600, 0));
    side.done("access", ::faccessat(at.get(), "s", R_OK, 0));
    side.done("unlink", ::unlinkat(at.get(), "s", 0));
    std::string whole = "f";
    while (whole.size() < PATH_MAX) whole = part + "/" + whole;
    side.done("open of the whole path", ::open((side / whole).c_str(), O_RDONLY));
    struct stat st {};
    side.done("stat", ::fstatat(at.get(), "deep", &st, 0));
    side.look("deep", st);
  });
}

TEST_F(NamespaceParityTest, DotAndDotDotResolveCorrectly) {
  same([](Side& side) {
    side.mkdir("d");
    side.mkdir("d/e");
    const auto same_inode = [&](const char* a, const char* b) {
      side.note(std::string(a) + " is " + b,
                lstat_of(side / a).st_ino == lstat_of(side / b).st_ino);
    };
    same_inode("d/.", "d");
    same_inode("d/..", ".");
    same_inode("d/e/..", "d");
    same_inode("d/e/../../d/e", "d/e");
    side.rename("d/e", "e");
    same_inode("e/..", ".");
  });
}

TEST_F(NamespaceParityTest, NameChangesUpdateTheRightTimes) {
  same([](Side& side) {
    side.mkdir("d");
    side.mkdir("to");
    side.write("d/f", "x");
    side.mkdir("d/sub");
    side.moves_times("create", {"d"}, [&] { side.write("d/new", ""); });
    side.moves_times("mkdir", {"d"}, [&] { side.mkdir("d/dir"); });
    side.moves_times("link", {"d", "d/f"}, [&] { side.link("d/f", "d/g"); });
    side.moves_times("symlink", {"d"}, [&] { side.symlink("x", "d/s"); });
    side.moves_times("mknod", {"d"}, [&] { side.mknod("d/p", S_IFIFO | 0600); });
    side.moves_times("unlink", {"d", "d/f"}, [&] { side.unlink("d/g"); });
    side.moves_times("rmdir", {"d"}, [&] { side.rmdir("d/dir"); });
    side.moves_times("rename out of", {"d", "to"}, [&] { side.rename("d/f", "to/f"); });
    side.moves_times("rename within", {"to"}, [&] { side.rename("to/f", "to/g"); });
    side.moves_times("rename of a directory", {"d", "to"}, [&] { side.rename("d/sub", "to/sub"); });
    side.moves_times("failed rmdir", {"."}, [&] { side.rmdir("to"); });
    side.moves_times("failed mkdir", {"."}, [&] { side.mkdir("to"); });
  });
}

}  // namespace
}  // namespace sluice::test
