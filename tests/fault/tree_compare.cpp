// SPDX-License-Identifier: BSD-2-Clause
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>

#include "tests/fault/tree_model.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kMostLines = 12;

mode_t type_of(NodeKind kind) {
  return kind == NodeKind::File ? S_IFREG : kind == NodeKind::Directory ? S_IFDIR : S_IFLNK;
}

std::string octal(mode_t mode) {
  std::array<char, 16> out{};
  std::snprintf(out.data(), out.size(), "%o", mode);
  return out.data();
}

std::string target_of(const std::string& path) {
  std::array<char, 256> out{};
  const ssize_t size = ::readlink(path.c_str(), out.data(), out.size());
  if (size < 0) fail("readlink " + path);
  return {out.data(), static_cast<std::size_t>(size)};
}

// Says to which file the bytes belong.
std::string explained(const std::string& found, const TreeNode& node) {
  std::string out = "contains " + std::to_string(found.size()) + " bytes that begin with \"" +
                    found.substr(0, 24) + "\"";
  for (const std::uint64_t id : ids_in(found)) {
    if (id != node.id) out += ", bytes of f" + std::to_string(id);
  }
  return out + "; must contain " + std::to_string(node.size) + " that begin with \"" +
         node.content().substr(0, 24) + "\"";
}

enum class Where { Mount, Tier };

class Comparison {
 public:
  explicit Comparison(TreeDifference& out) : out_(out) {}

  void report(const std::string& path, const TreeNode& node, const std::string& text) {
    out_.ids.insert(node.id);
    if (!above_.empty()) out_.ids.insert(above_.back());
    out_.lines.push_back(path + " (" + node.label() + ") " + text);
  }

  // Compares everything except the names in a directory. Returns false if the type is wrong.
  bool compare_itself(const std::string& path, TreeNode& node, Where where) {
    const struct stat st = lstat_of(path);
    const std::size_t before = out_.lines.size();
    if ((st.st_mode & S_IFMT) != type_of(node.kind)) {
      report(path, node, "is of mode " + octal(st.st_mode));
      return false;
    }
    if (where == Where::Mount) {
      if (node.inode == 0) node.inode = st.st_ino;
      if (node.inode != st.st_ino) {
        report(path, node,
               "has inode number " + std::to_string(st.st_ino) + ", not " +
                   std::to_string(node.inode));
      }
    }
    if (node.kind == NodeKind::Symlink) {
      if (target_of(path) != node.target()) report(path, node, "points to " + target_of(path));
      return true;
    }
    if ((st.st_mode & 07777) != node.mode) {
      report(path, node, "has mode " + octal(st.st_mode & 07777) + ", not " + octal(node.mode));
    }
    const std::string note = xattr_of(path, kTreeNote).value_or("");
    if (note != node.note) report(path, node, "has note '" + note + "', not '" + node.note + "'");
    // Directories on several tiers may not count links.
    if (node.kind == NodeKind::Directory) return true;
    if (st.st_nlink != node.links) {
      report(path, node,
             "has " + std::to_string(st.st_nlink) + " links, not " + std::to_string(node.links));
    }
    const std::string found = read_file(path);
    if (found != node.content()) report(path, node, explained(found, node));
    return out_.lines.size() == before;
  }

  void compare_names(const std::string& path, const TreeNode& node) {
    const std::vector<std::string> found = names_in(path);
    for (const std::string& name : found) {
      if (std::ranges::count(found, name) > 1) report(path, node, "lists " + name + " twice");
      if (!node.children.contains(name)) report(path, node, "has an unexpected name: " + name);
    }
    for (const auto& [name, child] : node.children) {
      if (std::ranges::find(found, name) != found.end()) continue;
      report(path, node, "does not list " + name + " (" + child->label() + ")");
      out_.ids.insert(child->id);
    }
  }

  void compare_below(const std::string& path, TreeNode& node) {
    compare_names(path, node);
    above_.push_back(node.id);
    for (const auto& [name, node_below] : node.children) {
      if (out_.lines.size() >= kMostLines) break;
      const std::string below = path + "/" + name;
      TreeNode& child = *node_below;
      guarded(below, child, [&] {
        if (compare_itself(below, child, Where::Mount) && child.kind == NodeKind::Directory) {
          compare_below(below, child);
        }
      });
    }
    above_.pop_back();
  }

  // Compares one tier's copy of the directory `node`, and counts the tiers that have each path.
  void compare_tier(const std::string& tier, const std::string& path, const TreeNode& node,
                    std::map<std::string, int>& count) {
    above_.push_back(node.id);
    for (const std::string& name : names_in(tier + path)) {
      if (path.empty() && (name == ".sluice" || name == "lost+found")) continue;
      const std::string below = path + "/" + name;
      const auto child = node.children.find(name);
      if (child == node.children.end()) {
        report(tier + path, node, "has an unexpected name: " + name);
        continue;
      }
      ++count[below];
      guarded(tier + below, *child->second, [&] {
        if (compare_itself(tier + below, *child->second, Where::Tier) &&
            child->second->kind == NodeKind::Directory) {
          compare_tier(tier, below, *child->second, count);
        }
      });
    }
    above_.pop_back();
  }

  void compare_counts(const std::string& path, const TreeNode& node,
                      const std::map<std::string, int>& count) {
    above_.push_back(node.id);
    for (const auto& [name, child] : node.children) {
      const std::string below = path + "/" + name;
      const auto at = count.find(below);
      const int tiers = at == count.end() ? 0 : at->second;
      const bool is_directory = child->kind == NodeKind::Directory;
      if (is_directory ? tiers == 0 : tiers != 1) {
        report(below, *child, "is on " + std::to_string(tiers) + " tiers");
      }
      if (is_directory) compare_counts(below, *child, count);
    }
    above_.pop_back();
  }

  template <typename Work>
  void guarded(const std::string& path, const TreeNode& node, Work work) {
    try {
      work();
    } catch (const std::exception& error) {
      report(path, node, std::string(": ") + error.what());
    }
  }

 private:
  TreeDifference& out_;
  std::vector<std::uint64_t> above_;
};

}  // namespace

std::string TreeDifference::text() const {
  std::string out;
  for (std::size_t i = 0; i < lines.size() && i < kMostLines; ++i) out += lines[i] + "\n";
  if (lines.size() > kMostLines) {
    out += "... and " + std::to_string(lines.size() - kMostLines) + " more\n";
  }
  return out;
}

TreeDifference compare_tree(const std::string& path, TreeNode& node) {
  TreeDifference out;
  Comparison comparison(out);
  comparison.guarded(path, node, [&] { comparison.compare_below(path, node); });
  return out;
}

TreeDifference compare_node(const std::string& path, TreeNode& node) {
  TreeDifference out;
  Comparison comparison(out);
  comparison.guarded(path, node, [&] {
    if (comparison.compare_itself(path, node, Where::Mount) && node.kind == NodeKind::Directory) {
      comparison.compare_names(path, node);
    }
  });
  return out;
}

TreeDifference compare_tiers(const std::vector<std::string>& tiers, TreeNode& node) {
  TreeDifference out;
  Comparison comparison(out);
  std::map<std::string, int> count;
  for (const std::string& tier : tiers) {
    comparison.guarded(tier, node, [&] { comparison.compare_tier(tier, "", node, count); });
  }
  comparison.compare_counts("", node, count);
  return out;
}

}  // namespace sluice::test
