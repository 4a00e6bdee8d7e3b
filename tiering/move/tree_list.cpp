// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/tree_list.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <map>
#include <unordered_set>

#include "base/file_at.hpp"
#include "tiering/choose/policy.hpp"

namespace sluice {
namespace {

constexpr std::size_t kStatBlock = 512;  // unit of st_blocks

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using OpenDirectory = std::unique_ptr<DIR, CloseDirectory>;

OpenDirectory open_directory(const Tier& tier, const std::string& path) {
  const auto root = tier.root();
  auto fd = root ? open_beneath((*root)->get(), path) : Result<UniqueFd>(root.error());
  if (!fd) return nullptr;
  const int number = fd->release();
  OpenDirectory directory(::fdopendir(number));
  if (!directory) {
    ::close(number);
  } else {
    ::fcntl(number, F_SETFL, O_NOATIME);
  }
  return directory;
}

// A directory that the walk visits, and the tiers that have it. Its path is not stored: a user can
// make many directories that have long paths.
struct TreeVisit {
  std::shared_ptr<TreeVisit> parent;  // nullptr where the walk begins
  std::string name;
  std::vector<TierIndex> tiers;
  std::uint32_t number = 0;  // for the visitor

  // Below the directory where the walk begins: "", "/a", "/a/b".
  std::string path() const {
    std::vector<const TreeVisit*> way;
    for (const TreeVisit* at = this; at->parent; at = at->parent.get()) way.push_back(at);
    std::string out;
    for (auto each = way.rbegin(); each != way.rend(); ++each) out += "/" + (*each)->name;
    return out;
  }
};
using TreeVisitPtr = std::shared_ptr<TreeVisit>;

// What the walk calls. `directory` is called before what it contains, once for each tier that has
// the directory; `file` for each regular file.
struct TreeVisitor {
  std::function<void(TreeVisit& visit, const std::string& path, int dirfd, bool is_first)>
      directory;
  std::function<void(const TreeVisit& visit, const Tier& tier, int dirfd, const char* name)>
      file;  // may be empty
};

class TreeWalk {
 public:
  TreeWalk(const Pool& pool, std::string begin, const GoOn& go_on, const TreeVisitor& visitor)
      : pool_(pool), begin_(std::move(begin)), go_on_(go_on), visitor_(visitor) {}

  Result<void> run() {
    const auto first = std::make_shared<TreeVisit>();
    for (const auto& tier : pool_) {
      if (tier->online()) first->tiers.push_back(tier->index());
    }
    stack_.push_back(first);
    while (!stack_.empty()) {
      if (go_on_ && !go_on_()) return Error(ECANCELED, "list a tree");
      const TreeVisitPtr visit = std::move(stack_.back());
      stack_.pop_back();
      look_into(visit);
    }
    return {};
  }

 private:
  using Children = std::map<std::string, std::vector<TierIndex>>;

  void look_into(const TreeVisitPtr& visit) {
    std::unordered_set<std::string> seen;  // names of non-directories on faster tiers
    Children below;
    bool is_first = true;
    const std::string path = visit->path();
    for (const TierIndex index : visit->tiers) {
      const OpenDirectory stream = open_directory(pool_[index], begin_ + path);
      if (!stream) continue;
      visitor_.directory(*visit, path, ::dirfd(stream.get()), std::exchange(is_first, false));
      look_into(*visit, index, stream.get(), seen, below);
    }
    for (auto& [name, tiers] : below)
      stack_.push_back(std::make_shared<TreeVisit>(TreeVisit{visit, name, std::move(tiers)}));
  }

  void look_into(const TreeVisit& visit, TierIndex index, DIR* stream,
                 std::unordered_set<std::string>& seen, Children& below) {
    while (const dirent* entry = ::readdir(stream)) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (begin_.empty() && !visit.parent && name == kPrivateDirectory) continue;
      unsigned char type = entry->d_type;
      struct stat st {};
      if (type == DT_UNKNOWN &&
          ::fstatat(::dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        type = static_cast<unsigned char>(IFTODT(st.st_mode));
      }
      if (type == DT_DIR) {
        if (seen.contains(name)) continue;
        below[name].push_back(index);
        continue;
      }
      if (!visitor_.file) continue;
      if (visit.tiers.size() > 1 && !seen.emplace(name).second) continue;
      if (type == DT_REG && !below.contains(name))
        visitor_.file(visit, pool_[index], ::dirfd(stream), entry->d_name);
    }
  }

  const Pool& pool_;
  const std::string begin_;
  const GoOn& go_on_;
  const TreeVisitor& visitor_;
  std::vector<TreeVisitPtr> stack_;
};

}  // namespace

std::vector<std::string> TreeList::names_up(std::uint32_t directory) const {
  std::vector<std::string> out;
  for (; directory != 0; directory = directories[directory].parent)
    out.push_back(directories[directory].name);
  return out;
}

std::string TreeList::path(const File& file) const {
  const auto names = names_up(file.directory);
  std::string out;
  for (auto each = names.rbegin(); each != names.rend(); ++each) out += "/" + *each;
  return out + "/" + file.name;
}

Result<TreeList> list_tree(const Pool& pool, const std::string& path, const GoOn& go_on) {
  TreeList list;
  TreeVisitor visitor;
  visitor.directory = [&](TreeVisit& visit, const std::string&, int, bool is_first) {
    if (!is_first) return;
    visit.number = static_cast<std::uint32_t>(list.directories.size());
    list.directories.push_back({visit.parent ? visit.parent->number : 0, visit.name});
  };
  visitor.file = [&](const TreeVisit& visit, const Tier& tier, int dirfd, const char* name) {
    struct stat st {};
    if (::fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return;
    const auto identity = tier.identity_of(dirfd, name);
    if (!identity) return;
    list.files.push_back({identity->id, visit.number, name,
                          static_cast<std::uint64_t>(st.st_blocks) * kStatBlock, st.st_mtime,
                          st.st_nlink > 1});
  };
  SLUICE_TRY(TreeWalk(pool, path, go_on, visitor).run());
  return list;
}

std::optional<Budget> own_budget(int dirfd) {
  std::array<char, 64> value{};
  const ssize_t size = getxattr_at(dirfd, "", kBudgetXattr, value.data(), value.size());
  if (size <= 0) return std::nullopt;
  return decode_budget({value.data(), static_cast<std::size_t>(size)});
}

std::optional<Budget> budget_of(const std::optional<Budget>& own,
                                const std::vector<BudgetRule>& rules, const std::string& path) {
  std::optional<Budget> budget = own;
  for (const BudgetRule& rule : rules) {
    if (budget && budget->bytes <= rule.bytes) continue;
    if (glob_matches(rule.match, path)) budget = Budget{rule.bytes, 0};
  }
  return budget;
}

Result<std::vector<std::pair<std::string, Budget>>> find_budgets(
    const Pool& pool, const std::vector<BudgetRule>& rules, const GoOn& go_on) {
  std::vector<std::pair<std::string, Budget>> found;
  TreeVisitor visitor;
  visitor.directory = [&](TreeVisit&, const std::string& path, int dirfd, bool is_first) {
    // Every copy has the same xattrs; see Attributes::change_copies().
    if (!is_first || path.empty()) return;
    if (const auto budget = budget_of(own_budget(dirfd), rules, path)) {
      found.emplace_back(path, *budget);
    }
  };
  SLUICE_TRY(TreeWalk(pool, "", go_on, visitor).run());
  return found;
}

}  // namespace sluice
