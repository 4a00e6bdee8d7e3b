// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/heat_tree.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "tiering/heat/census.hpp"

namespace sluice {

struct HeatTree::Snapshot {
  struct Directory {
    Sums all;
    std::vector<Child> children;  // largest first
  };

  std::int64_t time = 0;
  std::unordered_map<std::string, Directory> directories;  // by path, as in Census
};

void HeatTree::Sums::add(const Sums& other) {
  files += other.files;
  bytes += other.bytes;
  heat_bytes += other.heat_bytes;
  if (on.size() < other.on.size()) on.resize(other.on.size());
  for (std::size_t i = 0; i < other.on.size(); ++i) {
    on[i].files += other.on[i].files;
    on[i].bytes += other.on[i].bytes;
  }
}

void HeatTree::Sums::subtract(const Sums& part) {
  files -= part.files;
  bytes -= part.bytes;
  // Rounding may make the difference negative.
  heat_bytes = std::max(heat_bytes - part.heat_bytes, 0.0);
  for (std::size_t i = 0; i < part.on.size(); ++i) {
    on[i].files -= part.on[i].files;
    on[i].bytes -= part.on[i].bytes;
  }
}

void HeatTree::take(const Census& census, std::int64_t time, std::size_t most) {
  const auto& paths = census.directories();
  const auto& files = census.files();
  const auto sums_of = [&](std::size_t file) {
    const FileFacts& facts = files[file];
    Sums sums{1, facts.bytes, static_cast<double>(facts.score) * static_cast<double>(facts.bytes)};
    sums.on.resize(facts.tier + std::size_t{1});
    sums.on[facts.tier] = {1, facts.bytes};
    return sums;
  };
  std::unordered_map<std::string_view, std::uint32_t> index;
  for (std::uint32_t i = 0; i < paths.size(); ++i) index.emplace(paths[i], i);
  const auto parent_of = [&](std::size_t directory) {
    const std::string_view path = paths[directory];
    return index.at(path.substr(0, path.rfind('/')));
  };
  std::vector<Sums> sums(paths.size());
  for (std::size_t i = 0; i < files.size(); ++i) sums[census.directory(i)].add(sums_of(i));
  // A directory comes after its parent, so in reverse order each sum is complete before it is added
  // to its parent's.
  for (std::size_t i = paths.size(); i-- > 1;) sums[parent_of(i)].add(sums[i]);

  // Files and directories, by size. A directory is at least as large as anything in it, and comes
  // first among equals, so the parent of every kept node is kept.
  struct Node {
    std::uint64_t bytes;
    bool is_file;
    std::uint32_t at;
  };
  std::vector<Node> nodes;
  nodes.reserve(files.size() + paths.size());
  for (std::uint32_t i = 1; i < paths.size(); ++i) nodes.push_back({sums[i].bytes, false, i});
  for (std::uint32_t i = 0; i < files.size(); ++i) nodes.push_back({files[i].bytes, true, i});
  const auto is_before = [](const Node& a, const Node& b) {
    return std::tuple(b.bytes, a.is_file, a.at) < std::tuple(a.bytes, b.is_file, b.at);
  };
  const auto kept = static_cast<std::ptrdiff_t>(std::min(most, nodes.size()));
  std::partial_sort(nodes.begin(), nodes.begin() + kept, nodes.end(), is_before);
  nodes.resize(static_cast<std::size_t>(kept));

  auto snapshot = std::make_shared<Snapshot>();
  snapshot->time = time;
  if (!paths.empty()) snapshot->directories[""].all = sums[0];
  for (const Node& node : nodes) {
    if (node.is_file) {
      snapshot->directories[paths[census.directory(node.at)]].children.push_back(
          {census.name(node.at), false, sums_of(node.at)});
      continue;
    }
    const std::string& path = paths[node.at];
    snapshot->directories[path].all = sums[node.at];
    snapshot->directories[paths[parent_of(node.at)]].children.push_back(
        {path.substr(path.rfind('/') + 1), true, sums[node.at]});
  }
  const MutexLock lock(mutex_);
  snapshot_ = std::move(snapshot);
}

std::optional<HeatTree::Level> HeatTree::level(std::string_view path, std::size_t most) const {
  std::shared_ptr<const Snapshot> snapshot;
  {
    const MutexLock lock(mutex_);
    snapshot = snapshot_;
  }
  if (!snapshot) return std::nullopt;
  while (path.ends_with('/')) path.remove_suffix(1);
  const auto found = snapshot->directories.find(std::string(path));
  if (found == snapshot->directories.end()) return std::nullopt;
  const auto& [all, children] = found->second;
  Level out{snapshot->time, all, {}, all};
  out.children.assign(children.begin(), children.begin() + static_cast<std::ptrdiff_t>(
                                                               std::min(most, children.size())));
  for (const Child& child : out.children) out.rest.subtract(child.sums);
  return out;
}

std::int64_t HeatTree::time() const {
  const MutexLock lock(mutex_);
  return snapshot_ ? snapshot_->time : 0;
}

}  // namespace sluice
