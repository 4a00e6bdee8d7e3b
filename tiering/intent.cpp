// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/intent.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <optional>

#include "base/log.hpp"
#include "tiering/copier.hpp"

namespace sluice {
namespace {

constexpr std::uint8_t kFormat = 1;  // On disk: docs/metadata-format.md

void put_number(std::string& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, text.size());
  out += text;
}

void put_place(std::string& out, const Place& place) {
  put_number(out, place.slot);
  put_text(out, place.directory.bytes);
  put_text(out, place.path);
  put_text(out, place.name);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number() {
    if (rest_.size() < 8) return fail();
    std::uint64_t value = 0;
    for (int i = 7; i >= 0; --i)
      value = value << 8 | static_cast<unsigned char>(rest_[static_cast<std::size_t>(i)]);
    rest_.remove_prefix(8);
    return value;
  }
  unsigned byte() {
    if (rest_.empty()) return static_cast<unsigned>(fail());
    const auto value = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    return value;
  }
  std::string text() {
    const std::uint64_t size = number();
    if (size > rest_.size()) fail();
    std::string out(rest_.substr(0, ok_ ? size : 0));
    rest_.remove_prefix(out.size());
    return out;
  }
  Place place() {
    Place p;
    p.slot = static_cast<unsigned>(number());
    p.directory.bytes = text();
    p.path = text();
    p.name = text();
    return p;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::uint64_t fail() {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  std::string_view rest_;
  bool ok_ = true;
};

Result<UniqueFd> open_beneath(int root, const std::string& path) {
  open_how how{};
  how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  UniqueFd fd(static_cast<int>(
      ::syscall(SYS_openat2, root, path.empty() ? "." : path.c_str(), &how, sizeof how)));
  if (!fd) return Error::last("open directory of a step");
  return fd;
}

// A place with its directory open.
struct Target {
  const Tier* tier = nullptr;
  UniqueFd dir;
  const char* name = nullptr;

  // Nothing if there is no such name.
  Result<std::optional<Identity>> identity() const {
    auto found = tier->identity_of(dir.get(), name);
    if (found) return std::optional<Identity>(*found);
    if (found.error().code == ENOENT) return std::optional<Identity>{};
    return found.error();
  }
};

Result<Target> open_target(const Pool& pool, const Place& place) {
  const Tier* tier = pool.by_slot(place.slot);
  if (tier == nullptr) return Error(EIO, "tier of a step is not configured");
  Target target{tier, {}, place.name.c_str()};
  if (place.directory.empty()) {
    const SharedFd root = SLUICE_TRY(tier->root());
    target.dir = SLUICE_TRY(open_beneath(root->get(), place.path));
  } else {
    target.dir = SLUICE_TRY(tier->open(place.directory, O_RDONLY | O_DIRECTORY));
  }
  return target;
}

bool renames(Step::Kind kind) {
  return kind == Step::Kind::Rename || kind == Step::Kind::Replace || kind == Step::Kind::Exchange;
}

unsigned rename_flags(Step::Kind kind) {
  if (kind == Step::Kind::Rename) return RENAME_NOREPLACE;
  return kind == Step::Kind::Exchange ? RENAME_EXCHANGE : 0;
}

// Carries out one step, or finds it done. An error means that it is not done: nothing after it may
// happen, least of all a removal.
Result<void> apply(const Pool& pool, const Step& step) {
  const Target from = SLUICE_TRY(open_target(pool, step.from));
  if (step.kind == Step::Kind::MirrorDir) {
    const Target to = SLUICE_TRY(open_target(pool, step.to));
    return copy_attributes(from.dir.get(), to.dir.get());
  }
  const auto there = SLUICE_TRY(from.identity());
  if (renames(step.kind)) {
    const Target to = SLUICE_TRY(open_target(pool, step.to));
    if (there == step.subject) {
      if (::renameat2(from.dir.get(), from.name, to.dir.get(), to.name, rename_flags(step.kind)) <
          0) {
        return Error::last("rename");
      }
      return {};
    }
    const auto arrived = SLUICE_TRY(to.identity());
    if (arrived != step.subject) return Error(ESTALE, "what was to be renamed is gone");
    return {};
  }
  if (there != step.subject) return {};  // already removed
  if (::unlinkat(from.dir.get(), from.name, step.kind == Step::Kind::Rmdir ? AT_REMOVEDIR : 0) <
      0) {
    return Error::last("unlink");
  }
  return {};
}

// Whether every tier that the steps touch can be reached.
bool is_reachable(const Pool& pool, const std::vector<Step>& steps) {
  const auto online = [&](unsigned slot) {
    const Tier* tier = pool.by_slot(slot);
    return tier != nullptr && tier->online();
  };
  return std::all_of(steps.begin(), steps.end(), [&](const Step& step) {
    const bool has_target = renames(step.kind) || step.kind == Step::Kind::MirrorDir;
    return online(step.from.slot) && (!has_target || online(step.to.slot));
  });
}

void undo(const Pool& pool, const Step& step) {
  if (!renames(step.kind)) return;
  const auto from = open_target(pool, step.from);
  const auto to = open_target(pool, step.to);
  if (!from || !to) return;
  const auto there = to->identity();
  if (!there || *there != step.subject) return;
  const unsigned flags = step.kind == Step::Kind::Exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(to->dir.get(), to->name, from->dir.get(), from->name, flags) < 0) {
    log::get().error("can't undo a rename, run 'sluice fsck': name={} why={}",
                     log::escaped(step.from.name), std::strerror(errno));
  }
}

Result<void> sync_place(const Pool& pool, const Place& place) {
  const Target target = SLUICE_TRY(open_target(pool, place));
  if (::fsync(target.dir.get()) < 0) return Error::last("sync directory");
  return {};
}

Result<void> sync_steps(const Pool& pool, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    SLUICE_TRY(sync_place(pool, step.from));
    if (!step.to.name.empty() || step.kind == Step::Kind::MirrorDir)
      SLUICE_TRY(sync_place(pool, step.to));
  }
  return {};
}

}  // namespace

std::string encode_steps(const std::vector<Step>& steps) {
  std::string out(1, static_cast<char>(kFormat));
  put_number(out, steps.size());
  for (const Step& step : steps) {
    out.push_back(static_cast<char>(step.kind));
    put_place(out, step.from);
    put_place(out, step.to);
    put_number(out, to_number(step.subject.id));
    put_number(out, step.subject.generation);
  }
  return out;
}

Result<std::vector<Step>> decode_steps(std::string_view bytes) {
  if (bytes.empty() || static_cast<std::uint8_t>(bytes[0]) != kFormat)
    return Error(EUCLEAN, "intent format");
  Reader in(bytes.substr(1));
  const std::uint64_t count = in.number();
  std::vector<Step> steps;
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) {
    Step step;
    const auto kind = in.byte();
    if (kind < 1 || kind > 6) return Error(EUCLEAN, "intent step");
    step.kind = static_cast<Step::Kind>(kind);
    step.from = in.place();
    step.to = in.place();
    step.subject.id = InodeId{in.number()};
    step.subject.generation = static_cast<std::uint32_t>(in.number());
    steps.push_back(std::move(step));
  }
  if (!in.ok() || !in.at_end()) return Error(EUCLEAN, "intent length");
  return steps;
}

Result<Place> place_at(const Tier& tier, int dirfd, std::string name) {
  Place place;
  place.slot = tier.member().slot;
  place.name = std::move(name);
  int mount_id = 0;
  auto handle = handle_at(dirfd, "", &mount_id);
  if (handle && tier.open(*handle, O_RDONLY | O_DIRECTORY)) {
    place.directory = *std::move(handle);
    return place;
  }
  const SharedFd root = SLUICE_TRY(tier.root());
  std::array<std::array<char, PATH_MAX>, 2> paths{};
  const std::array<int, 2> fds{root->get(), dirfd};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string link = "/proc/self/fd/" + std::to_string(fds[i]);
    if (::readlink(link.c_str(), paths[i].data(), PATH_MAX - 1) < 0)
      return Error::last("path of a step");
  }
  const std::string_view base = paths[0].data();
  std::string_view full = paths[1].data();
  if (!full.starts_with(base)) return Error(EIO, "path of a step");
  full.remove_prefix(base.size());
  while (full.starts_with('/')) full.remove_prefix(1);
  place.path = full;
  return place;
}

Result<std::uint64_t> announce(Store& store, const std::vector<Step>& steps) {
  return store.begin_intent(encode_steps(steps));
}

namespace {

// What is done is done, whether or not it could be crossed off. An intent that stays is carried out
// again at the next mount, which changes nothing unless its names are used for something else until
// then.
void clear(Store& store, std::uint64_t sequence) {
  if (const auto cleared = store.clear_intent(sequence); !cleared) {
    log::get().error(
        "a finished operation can't be crossed off, unmount and run 'sluice fsck': sequence={} "
        "why={}",
        sequence, std::strerror(cleared.error().code));
  }
}

}  // namespace

Result<void> complete(Store& store, const Pool& pool, std::uint64_t sequence,
                      const std::vector<Step>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto done = apply(pool, steps[i]);
    if (done) continue;
    while (i-- > 0) undo(pool, steps[i]);
    clear(store, sequence);
    return done;
  }
  // Only what is on disk may be forgotten. If it can't be synced, the intent stays and is replayed.
  if (const auto synced = sync_steps(pool, steps); !synced) {
    log::get().warn("an operation on several tiers could not be synced: why={}",
                    std::strerror(synced.error().code));
    return {};
  }
  clear(store, sequence);
  return {};
}

Result<void> carry_out(Store& store, const Pool& pool, const std::vector<Step>& steps) {
  const std::uint64_t sequence = SLUICE_TRY(announce(store, steps));
  return complete(store, pool, sequence, steps);
}

Result<std::size_t> replay_intents(Store& store, const Pool& pool) {
  const auto stored = SLUICE_TRY(store.intents());
  for (const StoredIntent& intent : stored) {
    const auto steps = decode_steps(intent.bytes);
    if (!steps) {
      log::get().error("an intent can't be read and is dropped: sequence={}", intent.sequence);
      SLUICE_TRY(store.clear_intent(intent.sequence));
      continue;
    }
    if (!is_reachable(pool, *steps)) {
      log::get().warn("an unfinished operation waits for a tier that is offline: sequence={}",
                      intent.sequence);
      continue;
    }
    // All of it or none of it, as in the first run. Where a directory is gone (ESTALE), a later
    // operation took the unfinished business with it.
    const auto done = complete(store, pool, intent.sequence, *steps);
    if (!done) {
      log::get().warn("an unfinished operation was taken back: step={} why={}",
                      done.error().operation, std::strerror(done.error().code));
    }
  }
  return stored.size();
}

}  // namespace sluice
