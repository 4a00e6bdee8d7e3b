// SPDX-License-Identifier: BSD-2-Clause
// The loads that change and list names.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/fault/handover_loads.hpp"
#include "tests/fault/move_stage.hpp"
#include "tests/fault/tree_storm.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

// One process of change_names(). It changes only names that begin with its own prefix.
class NameChanger {
 public:
  NameChanger(Load& load, std::string directory, std::string prefix)
      : load_(load), directory_(std::move(directory)), prefix_(std::move(prefix)) {}

  void step() {
    constexpr std::array kActions{
        &NameChanger::create, &NameChanger::mkdir,    &NameChanger::symlink, &NameChanger::link,
        &NameChanger::rename, &NameChanger::exchange, &NameChanger::remove,  &NameChanger::look};
    (this->*kActions[load_.below(kActions.size())])();
  }

  // Compares the names that exist with the model.
  void compare() {
    std::vector<std::string> expected, found;
    for (const auto& [name, node] : nodes_) expected.push_back(name);
    for (const std::string& name : names_in(directory_)) {
      if (name.starts_with(prefix_)) found.push_back(name);
    }
    Load::expect(expected == found, "the names of " + prefix_ + " in " + directory_ + " are wrong");
    for (const auto& [name, node] : nodes_) check_node(name, node);
  }

 private:
  struct Node {
    mode_t type;
    std::string content;  // the text of a file or the target of a symbolic link
    std::shared_ptr<unsigned> links = std::make_shared<unsigned>(1);
  };
  static constexpr std::size_t kNames = 24;

  std::string any_name() { return prefix_ + std::to_string(load_.below(kNames)); }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  bool has(const std::string& name) const { return nodes_.contains(name); }

  // Compares the result of a call with what it must be: 0 or an errno.
  void expect_code(long result, int expected, const std::string& what) {
    const int code = result < 0 ? errno : 0;
    Load::expect(code == expected,
                 what + " = " + errno_name(code) + " instead of " + errno_name(expected));
  }

  void create() {
    const std::string name = any_name();
    const int fd = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    expect_code(fd, has(name) ? EEXIST : 0, "create " + path(name));
    if (fd < 0) return;
    const UniqueFd file(fd);
    Node node{S_IFREG, std::to_string(load_.random())};
    Load::check(::write(fd, node.content.data(), node.content.size()), "write " + path(name));
    nodes_.emplace(name, node);
  }

  void mkdir() {
    const std::string name = any_name();
    expect_code(::mkdir(path(name).c_str(), 0755), has(name) ? EEXIST : 0, "mkdir " + path(name));
    if (!has(name)) nodes_.emplace(name, Node{S_IFDIR, ""});
  }

  void symlink() {
    const std::string name = any_name(), target = std::to_string(load_.random());
    expect_code(::symlink(target.c_str(), path(name).c_str()), has(name) ? EEXIST : 0,
                "symlink " + path(name));
    if (!has(name)) nodes_.emplace(name, Node{S_IFLNK, target});
  }

  void link() {
    const std::string from = any_name(), to = any_name();
    const int expected = !has(from)                        ? ENOENT
                         : has(to)                         ? EEXIST
                         : nodes_.at(from).type == S_IFDIR ? EPERM
                                                           : 0;
    expect_code(::link(path(from).c_str(), path(to).c_str()), expected,
                "link " + path(from) + " to " + path(to));
    if (expected != 0) return;
    ++*nodes_.at(from).links;
    nodes_.emplace(to, nodes_.at(from));
  }

  int code_of_rename(const std::string& from, const std::string& to, unsigned flags) const {
    if (!has(from)) return ENOENT;
    if (flags & RENAME_NOREPLACE) return has(to) ? EEXIST : 0;
    if (!has(to)) return 0;
    const bool is_directory = nodes_.at(from).type == S_IFDIR;
    const bool onto_directory = nodes_.at(to).type == S_IFDIR;
    if (is_directory && !onto_directory) return ENOTDIR;
    return !is_directory && onto_directory ? EISDIR : 0;
  }

  void rename() {
    const std::string from = any_name(), to = any_name();
    const unsigned flags = load_.below(2) ? RENAME_NOREPLACE : 0;
    const int expected = code_of_rename(from, to, flags);
    expect_code(::renameat2(AT_FDCWD, path(from).c_str(), AT_FDCWD, path(to).c_str(), flags),
                expected,
                "rename " + path(from) + " to " + path(to) + (flags ? " (no replace)" : ""));
    if (expected != 0 || from == to) return;
    // Hard links of one file: rename(2) does nothing.
    if (has(to) && nodes_.at(to).links == nodes_.at(from).links) return;
    if (has(to)) forget(to);
    auto node = nodes_.extract(from);
    node.key() = to;
    nodes_.insert(std::move(node));
  }

  void exchange() {
    const std::string from = any_name(), to = any_name();
    expect_code(
        ::renameat2(AT_FDCWD, path(from).c_str(), AT_FDCWD, path(to).c_str(), RENAME_EXCHANGE),
        has(from) && has(to) ? 0 : ENOENT, "exchange " + path(from) + " and " + path(to));
    if (has(from) && has(to)) std::swap(nodes_.at(from), nodes_.at(to));
  }

  void remove() {
    const std::string name = any_name();
    const bool is_directory = has(name) && nodes_.at(name).type == S_IFDIR;
    expect_code(is_directory ? ::rmdir(path(name).c_str()) : ::unlink(path(name).c_str()),
                has(name) ? 0 : ENOENT, "remove " + path(name));
    if (has(name)) forget(name);
  }

  void look() {
    const std::string name = any_name();
    if (has(name)) return check_node(name, nodes_.at(name));
    struct stat st {};
    expect_code(::lstat(path(name).c_str(), &st), ENOENT, "lstat " + path(name));
  }

  void check_node(const std::string& name, const Node& node) {
    const struct stat st = lstat_of(path(name));
    Load::expect((st.st_mode & S_IFMT) == node.type, path(name) + " has another type");
    if (node.type == S_IFDIR) return;
    Load::expect(st.st_nlink == *node.links, path(name) + " has " + std::to_string(st.st_nlink) +
                                                 " links instead of " +
                                                 std::to_string(*node.links));
    const std::string got = node.type == S_IFREG
                                ? read_file(path(name))
                                : std::filesystem::read_symlink(path(name)).string();
    Load::expect(got == node.content,
                 path(name) + " is \"" + got + "\" instead of \"" + node.content + "\"");
  }

  void forget(const std::string& name) {
    --*nodes_.at(name).links;
    nodes_.erase(name);
  }

  Load& load_;
  const std::string directory_;
  const std::string prefix_;
  std::map<std::string, Node> nodes_;
};

}  // namespace

void change_names(Load& load) {
  // Two of them in one directory and one directory elsewhere, in turns. Other processes run the
  // same load.
  NameChanger first(load, load.directory, "a"), second(load, load.directory, "b");
  for (std::uint64_t steps = 1; load.next(); ++steps) {
    first.step();
    second.step();
    if (steps % 200 == 0) first.compare();
  }
  first.compare();
  second.compare();
}

void storm_on_tree(Load& load, const std::vector<std::string>& tiers) {
  TreeStorm storm(load.directory, tiers, load.random());
  storm.start();
  std::uint64_t operations = 0;
  for (bool goes_on = true; goes_on && !storm.has_problem();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (storm.operations() == operations) continue;
    operations = storm.operations();
    goes_on = load.next();
  }
  storm.stop();
  Load::expect(storm.problems().empty(), storm.problems());
  const std::string difference = storm.compare_mount();
  Load::expect(difference.empty(), difference);
}

namespace {

// Lists the directory in small pieces: the daemon may be killed between any two of them.
std::multiset<std::string> list_slowly(const std::string& directory, Load& load) {
  struct Entry {  // of getdents64(2)
    std::uint64_t inode;
    std::int64_t offset;
    std::uint16_t size;
    std::uint8_t type;
    char name[1];
  };
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Load::check(fd.get(), "open " + directory);
  std::multiset<std::string> out;
  alignas(Entry) std::array<char, 2048> buffer;
  for (;;) {
    const long got =
        Load::check(::getdents64(fd.get(), buffer.data(), buffer.size()), "list " + directory);
    if (got == 0) return out;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer.data() + at);
      out.insert(entry->name);
      at += entry->size;
    }
    if (load.below(4) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(load.below(8)));
  }
}

}  // namespace

void list_names(Load& load) {
  constexpr int kStable = 2000;
  const std::string directory = load.directory + "/many";
  Load::check(::mkdir(directory.c_str(), 0755), "mkdir " + directory);
  std::set<std::string> stable;
  for (int i = 0; i < kStable; ++i) {
    const std::string name = "stable" + std::to_string(i);
    write_file(directory + "/" + name, "");
    stable.insert(name);
  }
  const pid_t other = ::fork();
  if (other == 0) {  // names that come and go
    for (std::uint64_t i = 0; ::getppid() != 1; ++i) {
      const std::string path = directory + "/other" + std::to_string(i % 300);
      if (::unlink(path.c_str()) == 0) continue;
      const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
      if (!fd) ::_exit(errno);
      ::usleep(500);
    }
    ::_exit(0);
  }
  while (load.next()) {
    const auto listed = list_slowly(directory, load);
    std::string wrong;
    std::size_t missing = 0;
    for (const std::string& name : stable) {
      if (listed.count(name) != 1 && wrong.size() < 500)
        wrong += " " + name + ":" + std::to_string(listed.count(name));
      missing += !listed.contains(name);
    }
    Load::expect(wrong.empty(), directory + ", " + std::to_string(listed.size()) +
                                    " names listed, " + std::to_string(missing) +
                                    " missing:" + wrong);
    for (const std::string& name : listed) {
      Load::expect(name[0] == '.' || name.starts_with("stable") || name.starts_with("other"),
                   directory + " lists " + name);
    }
    int status = 0;
    Load::expect(::waitpid(other, &status, WNOHANG) == 0,
                 "create a name in " + directory + " = " + errno_name(WEXITSTATUS(status)));
  }
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

void move_files(Load& load, const std::string& root, const std::vector<std::string>& tiers) {
  while (load.next()) {
    std::error_code ignored;
    std::filesystem::recursive_directory_iterator at(root, ignored), end;
    for (; at != end && !ignored; at.increment(ignored)) {
      if (!load.next()) return;
      const std::string path = at->path();
      struct stat st {};
      if (::lstat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
      const std::string& tier = tiers[load.below(tiers.size())];
      int code = send_to(path, tier);
      // Also if the name has become a symlink to nothing.
      const auto is_gone = [&] { return ::access(path.c_str(), F_OK) != 0; };
      bool may_be_gone = code == ENOENT && is_gone();
      // The name may be removed and made again meanwhile, but not each time.
      for (int tries = 0; code == ENOENT && !may_be_gone && tries < 20; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        code = send_to(path, tier);
        may_be_gone = code == ENOENT && is_gone();
      }
      constexpr std::array kFine{0, ENOTDIR, EISDIR, EBUSY, ELOOP};
      Load::expect(may_be_gone || std::ranges::find(kFine, code) != kFine.end(),
                   "move " + path + " = " + errno_name(code));
      std::this_thread::sleep_for(std::chrono::microseconds(load.below(2000)));
    }
  }
}

}  // namespace sluice::test
