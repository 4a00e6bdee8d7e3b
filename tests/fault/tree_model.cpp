// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/tree_model.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

using Kind = TreeChange::Kind;

bool is_directory(const TreeNodePtr& node) { return node->kind == NodeKind::Directory; }

// Whether `path` is `directory` or below it.
bool is_within(const std::string& path, const std::string& directory) {
  return path == directory || path.starts_with(directory + "/");
}

bool same_top(const TreePlace& a, const TreePlace& b) { return a.top == b.top; }

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

int code_of(long result) { return result < 0 ? errno : 0; }

int rename_expected(const TreeChange& change) {
  const TreeNodePtr source = change.from.node();
  const TreeNodePtr target = change.to.node();
  const bool exchange = change.kind == Kind::Exchange;
  if (!source) return ENOENT;
  if (change.kind == Kind::RenameNoreplace && target) return EEXIST;
  if (exchange && !target) return ENOENT;
  if (same_top(change.from, change.to)) {
    if (is_within(parent_of(change.to.path), change.from.path)) return EINVAL;
    if (is_within(parent_of(change.from.path), change.to.path))
      return exchange ? EINVAL : ENOTEMPTY;
  }
  if (!target || target == source || exchange) return 0;
  if (is_directory(source) && !is_directory(target)) return ENOTDIR;
  if (!is_directory(source) && is_directory(target)) return EISDIR;
  return is_directory(target) && !target->children.empty() ? ENOTEMPTY : 0;
}

int write_contents(const TreeChange& change, const std::string& content) {
  const UniqueFd fd(::openat(change.from.top->get(), change.from.path.c_str(),
                             O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), 0) < 0) return errno;
  for (std::size_t at = 0; at < content.size();) {
    const ssize_t put =
        ::pwrite(fd.get(), content.data() + at, content.size() - at, static_cast<off_t>(at));
    if (put < 0) return errno;
    at += static_cast<std::size_t>(put);
  }
  return 0;
}

std::string written_by(const TreeChange& change) {
  TreeNode node = *change.from.node();
  ++node.version;
  node.size = change.size;
  return node.content();
}

// Completes a write that was interrupted, if each byte is an old or a new one.
TreeChange::Outcome resolve_write(const TreeChange& change) {
  const std::string before = change.from.node()->content();
  const std::string after = written_by(change);
  const std::string found = read_file(change.from.address());
  if (found.size() > std::max(before.size(), after.size())) return TreeChange::Outcome::Wrong;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool is_old = i < before.size() && found[i] == before[i];
    const bool is_new = i < after.size() && found[i] == after[i];
    if (!is_old && !is_new) return TreeChange::Outcome::Wrong;
  }
  return write_contents(change, after) == 0 ? TreeChange::Outcome::Happened
                                            : TreeChange::Outcome::Wrong;
}

bool has_inode(const TreePlace& place, ino_t inode) {
  struct stat st {};
  return ::fstatat(place.top->get(), place.path.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
         st.st_ino == inode;
}

}  // namespace

std::string TreeNode::label() const {
  const char* letter = kind == NodeKind::File ? "f" : kind == NodeKind::Directory ? "d" : "l";
  return letter + std::to_string(id);
}

std::string TreeNode::content() const {
  const std::string token = std::to_string(id) + "." + std::to_string(version) + "|";
  std::string out;
  out.reserve(size + token.size());
  while (out.size() < size) out += token;
  out.resize(size);
  return out;
}

std::string TreeNode::target() const { return "nowhere-" + std::to_string(id); }

std::set<std::uint64_t> ids_in(const std::string& content) {
  std::set<std::uint64_t> out;
  std::string last;
  for (std::size_t begin = 0, end = 0; (end = content.find('|', begin)) != std::string::npos;
       begin = end + 1) {
    if (content.compare(begin, end - begin, last) == 0) continue;
    last = content.substr(begin, end - begin);
    // A reader that runs concurrently with a writer may see zeros or part of a token.
    const std::size_t dot = last.find('.');
    if (dot == std::string::npos || last.find('\0') != std::string::npos) continue;
    out.insert(std::strtoull(last.c_str(), nullptr, 10));
  }
  return out;
}

std::string TreePlace::address() const {
  return "/proc/self/fd/" + std::to_string(top->get()) + "/" + path;
}

TreeNodePtr TreePlace::node() const {
  const auto at = directory->children.find(name);
  return at == directory->children.end() ? nullptr : at->second;
}

int TreeChange::expected() const {
  const TreeNodePtr node = from.node();
  switch (kind) {
    case Kind::Create:
    case Kind::Mkdir:
    case Kind::Symlink:
      return node ? EEXIST : 0;
    case Kind::Link:
      return to.node() ? EEXIST : 0;
    case Kind::Unlink:
      return !node ? ENOENT : is_directory(node) ? EISDIR : 0;
    case Kind::Rmdir:
      if (!node) return ENOENT;
      return !is_directory(node) ? ENOTDIR : node->children.empty() ? 0 : ENOTEMPTY;
    case Kind::Rename:
    case Kind::RenameNoreplace:
    case Kind::Exchange:
      return rename_expected(*this);
    case Kind::Chmod:
    case Kind::Note:
    case Kind::Write:
      return 0;
  }
  return 0;
}

int TreeChange::perform() const {
  const int top = from.top->get();
  const char* path = from.path.c_str();
  switch (kind) {
    case Kind::Create: {
      const UniqueFd fd(
          ::openat(top, path, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, made->mode));
      if (!fd) return errno;
      break;
    }
    case Kind::Mkdir:
      if (::mkdirat(top, path, made->mode) < 0) return errno;
      break;
    case Kind::Symlink:
      if (::symlinkat(made->target().c_str(), top, path) < 0) return errno;
      break;
    case Kind::Link:
      return code_of(::linkat(top, path, to.top->get(), to.path.c_str(), 0));
    case Kind::Unlink:
      return code_of(::unlinkat(top, path, 0));
    case Kind::Rmdir:
      return code_of(::unlinkat(top, path, AT_REMOVEDIR));
    case Kind::Rename:
      return code_of(::renameat2(top, path, to.top->get(), to.path.c_str(), 0));
    case Kind::RenameNoreplace:
      return code_of(::renameat2(top, path, to.top->get(), to.path.c_str(), RENAME_NOREPLACE));
    case Kind::Exchange:
      return code_of(::renameat2(top, path, to.top->get(), to.path.c_str(), RENAME_EXCHANGE));
    case Kind::Chmod:
      return code_of(::fchmodat(top, path, mode, 0));
    case Kind::Note:
      return code_of(::lsetxattr(from.address().c_str(), kTreeNote, note.data(), note.size(), 0));
    case Kind::Write:
      return write_contents(*this, written_by(*this));
  }
  struct stat st {};
  if (::fstatat(top, path, &st, AT_SYMLINK_NOFOLLOW) == 0) made->inode = st.st_ino;
  return 0;
}

void TreeChange::apply() const {
  const TreeNodePtr node = from.node();
  switch (kind) {
    case Kind::Create:
    case Kind::Mkdir:
    case Kind::Symlink:
      from.directory->children[from.name] = made;
      break;
    case Kind::Link:
      to.directory->children[to.name] = node;
      ++node->links;
      break;
    case Kind::Unlink:
    case Kind::Rmdir:
      --node->links;
      from.directory->children.erase(from.name);
      break;
    case Kind::Rename:
    case Kind::RenameNoreplace: {
      const TreeNodePtr target = to.node();
      if (target == node) break;  // two names of one file: both are kept
      if (target) --target->links;
      from.directory->children.erase(from.name);
      to.directory->children[to.name] = node;
      break;
    }
    case Kind::Exchange:
      std::swap(from.directory->children[from.name], to.directory->children[to.name]);
      break;
    case Kind::Chmod:
      node->mode = mode;
      break;
    case Kind::Note:
      node->note = note;
      break;
    case Kind::Write:
      ++node->version;
      node->size = size;
      break;
  }
}

TreeChange::Outcome TreeChange::resolve() const {
  if (expected() != 0) return Outcome::NotHappened;
  struct stat st {};
  const bool is_there =
      ::fstatat(from.top->get(), from.path.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0;
  bool happened = false;
  switch (kind) {
    case Kind::Create:
    case Kind::Mkdir:
    case Kind::Symlink:
      happened = is_there;
      break;
    case Kind::Link:
      happened = has_inode(to, from.node()->inode);
      break;
    case Kind::Unlink:
    case Kind::Rmdir:
      happened = !is_there;
      break;
    case Kind::Rename:
    case Kind::RenameNoreplace:
    case Kind::Exchange:
      happened = has_inode(to, from.node()->inode);
      break;
    case Kind::Chmod:
      happened = is_there && (st.st_mode & 07777) == mode;
      break;
    case Kind::Note:
      happened = is_there && xattr_of(from.address(), kTreeNote) == note;
      break;
    case Kind::Write:
      return resolve_write(*this);
  }
  return happened ? Outcome::Happened : Outcome::NotHappened;
}

std::string TreeChange::text() const {
  const auto shown = [](const TreePlace& place) {
    const TreeNodePtr node = place.node();
    return place.path + (node ? " (" + node->label() + ")" : "");
  };
  switch (kind) {
    case Kind::Create:
      return "create " + shown(from) + " as " + made->label();
    case Kind::Mkdir:
      return "mkdir " + shown(from) + " as " + made->label();
    case Kind::Symlink:
      return "symlink " + shown(from) + " as " + made->label();
    case Kind::Link:
      return "link " + shown(from) + " as " + shown(to);
    case Kind::Unlink:
      return "unlink " + shown(from);
    case Kind::Rmdir:
      return "rmdir " + shown(from);
    case Kind::Rename:
      return "rename " + shown(from) + " to " + shown(to);
    case Kind::RenameNoreplace:
      return "rename noreplace " + shown(from) + " to " + shown(to);
    case Kind::Exchange:
      return "exchange " + shown(from) + " and " + shown(to);
    case Kind::Chmod: {
      std::array<char, 16> octal{};
      std::snprintf(octal.data(), octal.size(), "%o ", mode);
      return std::string("chmod ") + octal.data() + shown(from);
    }
    case Kind::Note:
      return "setxattr " + note + " of " + shown(from);
    case Kind::Write:
      return "write " + std::to_string(size) + " bytes to " + shown(from);
  }
  return "";
}

std::set<std::uint64_t> TreeChange::ids() const {
  std::set<std::uint64_t> out;
  for (const TreeNodePtr& node : {made, from.node(), to.directory ? to.node() : nullptr}) {
    if (node) out.insert(node->id);
  }
  return out;
}

std::set<std::uint64_t> TreeChange::ids_with_parents() const {
  std::set<std::uint64_t> out = ids();
  for (const TreeNodePtr& node : {from.directory, to.directory}) {
    if (node) out.insert(node->id);
  }
  return out;
}

}  // namespace sluice::test
