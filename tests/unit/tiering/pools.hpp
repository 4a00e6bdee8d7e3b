// SPDX-License-Identifier: BSD-2-Clause
// Pools over temporary directories, for tests. Threads: caller locks.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/support/memory_store.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tiering/move/intent.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice::test {

inline UniqueFd open_directory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw std::runtime_error("open " + path);
  return fd;
}

inline UniqueFd open_file(const std::string& path, int flags = O_RDWR) {
  UniqueFd fd(::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) throw std::runtime_error("open " + path);
  return fd;
}

inline bool on_ext4(const std::string& path) {
  struct statfs fs {};
  return ::statfs(path.c_str(), &fs) == 0 &&
         handle_kind(static_cast<std::uint64_t>(fs.f_type)) == HandleKind::Ext4;
}

// Tests with a pool whose tiers are the directories <dir>/a, <dir>/b, ...
class PoolTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require("unit", ::geteuid() == 0, "handles and trusted xattrs need root")) return;
    prepare();
  }
  // Called before each test, unless the test is skipped.
  virtual void prepare() {}

  // The path of `name` on `tier`.
  std::string at(const std::string& tier, const std::string& name) const {
    return dir_ / (tier + "/" + name);
  }

  static TierSettings tier(const std::string& name, const std::string& path) {
    TierSettings settings;
    settings.name = name;
    settings.path = path;
    return settings;
  }

  // Creates a directory for each tier; tier names are single letters.
  std::vector<TierSettings> make_tiers(const std::string& letters) const {
    std::vector<TierSettings> settings;
    for (const char letter : letters) {
      const std::string name(1, letter);
      settings.push_back(tier(name, dir_.make_dir(name)));
    }
    return settings;
  }

  // Returns nullptr if the pool cannot be opened, with the reason in why_.
  std::unique_ptr<Pool> try_open(const std::vector<TierSettings>& settings,
                                 Pool::Missing missing = Pool::Missing::Refuse,
                                 Pool::NewTiers new_tiers = Pool::NewTiers::Adopt) {
    auto pool = Pool::open(settings, missing, new_tiers, "used by a test");
    why_ = pool ? "" : pool.error().text();
    return pool ? *std::move(pool) : nullptr;
  }

  // Like try_open(), but throws on failure.
  std::unique_ptr<Pool> open(const std::vector<TierSettings>& settings,
                             Pool::Missing missing = Pool::Missing::Refuse) {
    auto pool = try_open(settings, missing);
    if (!pool) throw std::runtime_error(why_);
    return pool;
  }

  // False, and why_ says why, if the tier can't be added.
  bool add(Pool& pool, const TierSettings& settings) {
    const auto added = pool.add(settings);
    why_ = added ? "" : added.error().text();
    return added.has_value();
  }

  static Identity identity_of(const Tier& tier, const std::string& path) {
    const auto identity = tier.identity_of(AT_FDCWD, path.c_str());
    if (!identity) throw std::runtime_error("identity of " + path);
    return *identity;
  }

  // The name `path` on `tier`; its directory must exist.
  static Place place(const Tier& tier, const std::string& path) {
    const std::string full = tier.path() + "/" + path;
    const std::size_t slash = full.rfind('/');
    auto place =
        place_at(tier, open_directory(full.substr(0, slash)).get(), full.substr(slash + 1));
    if (!place) throw std::runtime_error("place " + path);
    return *place;
  }

  static Step step(Step::Kind kind, const Tier& tier, const std::string& from,
                   const std::string& to = "") {
    Step step;
    step.kind = kind;
    step.from = place(tier, from);
    if (!to.empty()) step.to = place(tier, to);
    step.subject = identity_of(tier, tier.path() + "/" + from);
    return step;
  }

  // The step that copies the attributes of directory `path` from `from` to its copy on `to`.
  static Step mirror(const Tier& from, const Tier& to, const std::string& path) {
    Step step;
    step.kind = Step::Kind::MirrorDir;
    step.from = *place_at(from, open_directory(from.path() + "/" + path).get(), "");
    step.to = *place_at(to, open_directory(to.path() + "/" + path).get(), "");
    return step;
  }

  // All files on the tiers except .sluice, one line each: path, mode, xattr user.k, content.
  std::string shown(const std::string& letters = "ab") const {
    std::string out;
    for (const char letter : letters) show(std::string(1, letter), out);
    return out;
  }

  static std::size_t intents_in(const Store& store) {
    const auto intents = store.intents();
    if (!intents) throw std::runtime_error("intents");
    return intents->size();
  }

  TempDir dir_;
  std::string why_;

 private:
  void show(const std::string& path, std::string& out) const {
    for (const std::string& name : names_in(dir_ / path)) {
      if (name == kPrivateDirectory) continue;
      const std::string inner = path + "/" + name;
      const struct stat st = lstat_of(dir_ / inner);
      char mode[16];
      std::snprintf(mode, sizeof mode, " %o", st.st_mode & 07777);
      out += inner + (S_ISDIR(st.st_mode) ? "/" : "") + mode;
      if (const auto value = xattr_of(dir_ / inner, "user.k")) out += " k=" + *value;
      if (S_ISREG(st.st_mode)) out += " \"" + read_file(dir_ / inner) + "\"";
      out += "\n";
      if (S_ISDIR(st.st_mode)) show(inner, out);
    }
  }
};

}  // namespace sluice::test
