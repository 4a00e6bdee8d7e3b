// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/kept_requests.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/move/tree_list.hpp"

namespace sluice {
namespace {

using StoredRequest = std::pair<InodeId, MoveRequest>;

// What the mount shows at `path`: the fastest tier that has the name counts.
std::optional<Located> shown_at(const Pool& pool, const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return std::nullopt;
  for (const auto& tier : pool) {
    const auto root = tier->root();
    if (!root) continue;
    const auto directory = open_beneath((*root)->get(), path.substr(0, slash));
    if (!directory) continue;
    if (auto found = tier->identify(directory->get(), path.c_str() + slash + 1))
      return *std::move(found);
  }
  return std::nullopt;
}

}  // namespace

KeptRequests::KeptRequests(const Pool& pool, Store& store) : pool_(pool), store_(store) {
  std::uint64_t last = 0;
  const auto read = store_.each_request([&](InodeId, const MoveRequest& request) {
    last = std::max(last, request.number);
    return true;
  });
  if (!read) log::get().warn("cannot read requested moves: why={}", read.error().text());
  next_ = last + 1;
}

Result<void> KeptRequests::keep(const Move& move) {
  return store_.keep_requests({{move.id,
                                {.number = next_.fetch_add(1, std::memory_order_relaxed),
                                 .user = move.user,
                                 .to = pool_[move.to].name(),
                                 .path = move.paths.empty() ? "" : move.paths[0]}}});
}

Result<void> KeptRequests::forget(const std::vector<InodeId>& files) {
  return files.empty() ? Result<void>() : store_.forget_requests(files);
}

Result<KeptRequests::Found> KeptRequests::find(const std::function<bool(InodeId)>& is_queued,
                                               const std::function<bool()>& go_on) const {
  std::vector<StoredRequest> stored;
  SLUICE_TRY(store_.each_request([&](InodeId id, const MoveRequest& request) {
    stored.emplace_back(id, request);
    return true;
  }));
  std::erase_if(stored, [&](const StoredRequest& each) { return is_queued(each.first); });
  std::sort(stored.begin(), stored.end(), [](const StoredRequest& a, const StoredRequest& b) {
    return a.second.number < b.second.number;
  });
  Found out;
  std::vector<std::pair<std::uint64_t, Move>> moves;  // by the number of the request
  std::unordered_map<InodeId, const MoveRequest*> renamed;

  // Whether the file is at `path`.
  const auto take = [&](InodeId id, const MoveRequest& request, const std::string& path) {
    const auto file = shown_at(pool_, path);
    if (!file || file->identity.id != id || !S_ISREG(file->st.st_mode)) return false;
    const TierIndex to = pool_.by_name(request.to)->index();
    if (file->tier == to) {
      out.obsolete.push_back(id);
      return true;
    }
    Move move;
    move.id = id;
    move.paths = {path};
    move.from = file->tier;
    move.to = to;
    move.set_size(file->st.st_size, file->st.st_blocks);
    move.why = kAskedFor;
    move.user = request.user;
    moves.emplace_back(request.number, std::move(move));
    return true;
  };
  for (const auto& [id, request] : stored) {
    if (go_on && !go_on()) return Error(ECANCELED, "find requested files");
    const Tier* to = pool_.by_name(request.to);
    if (to == nullptr || to->is_draining()) {
      out.obsolete.push_back(id);
    } else if (!take(id, request, request.path)) {
      renamed.emplace(id, &request);
    }
  }
  if (!renamed.empty()) {
    const TreeList all = SLUICE_TRY(list_tree(pool_, "", go_on));
    for (const TreeList::File& file : all.files) {
      const auto found = renamed.find(file.id);
      if (found == renamed.end()) continue;
      if (take(file.id, *found->second, all.path(file))) renamed.erase(found);
    }
    const bool all_online =
        std::all_of(pool_.begin(), pool_.end(), [](const auto& tier) { return tier->online(); });
    for (const auto& [id, request] : renamed) {
      if (all_online) out.obsolete.push_back(id);
    }
  }
  std::sort(moves.begin(), moves.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [number, move] : moves) out.moves.push_back(std::move(move));
  return out;
}

}  // namespace sluice
