// SPDX-License-Identifier: BSD-2-Clause
// An intent is a list of steps on several tiers, of which all or none must happen: a rename of a
// directory, a rename over a file on another tier, a new mode of a directory, the switch of a move.
// It is written to the store before the first step, and cleared when the last step is durable. The
// next mount completes the intents that it finds.
//
// Each step identifies its subject, so executing a step twice changes nothing. Replay after a crash
// runs the same code as the first execution.
//
// Threads: plain values. The functions may run concurrently on intents that touch different names.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/store.hpp"
#include "tiering/pool/kept_times.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

// A name in a directory of one tier, or the directory itself if `name` is empty. The directory is
// given by its handle, which a rename of any ancestor leaves valid, or by its path below the tier's
// root where the filesystem has no handles.
struct Place {
  unsigned slot = 0;
  FileHandle directory;
  std::string path;
  std::string name;

  bool operator==(const Place&) const = default;
};

struct Step {
  // On disk: never renumber.
  enum class Kind : std::uint8_t {
    Rename = 1,     // `from` to `to`, where nothing is
    Replace = 2,    // `from` to `to`, over what is there
    Exchange = 3,   // `from` with `to`
    Unlink = 4,     // the file `from`
    Rmdir = 5,      // the empty directory `from`
    MirrorDir = 6,  // the attributes of directory `from` to its copy `to`
    Link = 7,       // another name `to` for the file `from`
    NameTaken = 8,  // another file got the name `from` while its tier was away; taken_name.hpp
    Keep = 9,       // a moved file's original `from` becomes its twin `to`, over an older one
  };
  Kind kind{};
  Place from, to;
  // The file at `from` before the step. MirrorDir: the directory that must be at `to`, or else the
  // step does nothing; empty: any. NameTaken does not use it.
  Identity subject;
  // For the Unlink or Keep of a moved file's original: its state when it was copied. If that
  // differs now, the original was changed on its tier and is kept.
  struct Original {
    std::int64_t size = -1;  // -1: no such step
    std::int64_t mtime = 0;  // nanoseconds
    ShownBefore shown = {};  // for the copy

    bool operator==(const Original&) const = default;
  };
  Original original = {};

  bool operator==(const Step&) const = default;
};

std::string encode_steps(const std::vector<Step>& steps);
Result<std::vector<Step>> decode_steps(std::string_view bytes);

// The place `name` in the directory open as `dirfd` on `tier`.
Result<Place> place_at(const Tier& tier, int dirfd, std::string name);

// Writes the intent, executes every step, syncs the directories and clears the intent. If a step
// fails, the steps before it are undone and its error is returned. Nothing is removed before its
// replacement is durable; `before_removals`, if given, is called at that point.
// CHECKED: Unlink, Rmdir and MirrorDir, which cannot be undone, come last.
Result<void> execute(Store& store, const Pool& pool, const std::vector<Step>& steps,
                     const std::function<void()>& before_removals = {});

// The two halves of execute(), for callers with work of their own in between.
Result<std::uint64_t> announce(Store& store, const std::vector<Step>& steps);
Result<void> complete(Store& store, const Pool& pool, std::uint64_t sequence,
                      const std::vector<Step>& steps,
                      const std::function<void()>& before_removals = {});

// Removes finished intents from the store. A failure is logged; they are replayed at the next
// mount.
void clear_finished(Store& store, const std::vector<std::uint64_t>& sequences);

// Completes the intents that an earlier daemon left, or undoes those that cannot be completed, and
// applies the changes made while a tier was away. Intents that need an absent tier are kept.
// Returns how many were found. An error means that a tier could not be updated and must not be
// used. REQUIRES: no intent is being executed.
struct Replay {
  TierIndex returned = kNoTier;        // the tier that came back; kNoTier at mount
  std::vector<std::uint64_t> exclude;  // sequences that the caller handles
};
Result<std::size_t> replay_intents(Store& store, const Pool& pool, const Replay& replay = {});

// The hidden files that stored intents still need: complete copies, whose originals may be lost.
Result<Pool::TemporaryNames> names_in_intents(const Store& store);

// Whether a step needs a disk that another one has replaced.
bool needs_lost_disk(const Pool& pool, const std::vector<Step>& steps);
// Ends the intents that need such a disk: what can be done on the other tiers is done, except that
// nothing is removed for the sake of something on the lost disk. The hidden copy of a file whose
// original is lost becomes the file, under another name if another file has taken its name. Intents
// that also wait for another tier are kept, and so are those whose copy can't get a name.
// REQUIRES: no intent is being executed.
Result<void> settle_lost(Store& store, const Pool& pool);

}  // namespace sluice
