// SPDX-License-Identifier: BSD-2-Clause
// A twin is the old copy of a file that was moved to a faster tier. It stays on its tier in
// .sluice/twins, named by the file's identity, while its room is not needed. If the file goes back
// unchanged, the twin takes its place, and nothing is copied.
//
// A note on the twin itself, an xattr, says what the file was when it left: that decides whether
// the twin still equals it. A twin without a note is useless. Nothing here depends on the database,
// or on how the last mount ended.
//
// Threads: plain values and functions without state.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "tiering/pool/identity.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

inline constexpr const char* kTwinXattr = "trusted.sluice.twin";

inline std::int64_t nanoseconds_of(const timespec& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

struct TwinNote {
  Identity file;
  // Where the file went, and what it was there once the switch had ended.
  unsigned slot = 0;
  FileHandle handle;
  std::int64_t size = 0, mtime = 0, ctime = 0;  // times in nanoseconds
  std::uint64_t session = 0;                    // Tier::session() of that tier
  std::uint64_t hash = 0;                       // Copied::hash of the bytes
  // For `sluice tier drain --lost`, which cannot read the file any more: when it was moved, its
  // owner, and its names: the directory's handle on the twin's tier, and the name in it.
  std::int64_t made = 0;  // seconds since the epoch
  std::uint32_t mode = 0, uid = 0, gid = 0;
  struct Name {
    FileHandle directory;
    std::string text;

    bool operator==(const Name&) const = default;
  };
  std::vector<Name> names;

  bool operator==(const TwinNote&) const = default;
};

// The format is described in docs/metadata-format.md.
std::string encode_note(const TwinNote& note);
std::optional<TwinNote> decode_note(std::string_view bytes);

// The note on the open file `fd`, which may be O_PATH; nothing if it has none that can be read.
std::optional<TwinNote> read_note(int fd);

std::string twin_name(const Identity& file);
std::optional<Identity> identity_in_twin_name(std::string_view name);

// Whether the bytes of a twin are those of its file.
enum class TwinState {
  Same,     // the file is exactly as noted
  Perhaps,  // size and mtime are as noted, but somebody changed its metadata, or its filesystem was
            // mounted again, perhaps after a power cut: the hash of its bytes tells
  Differs,  // the file was written, or is another one
};
TwinState compare(const TwinNote& note, const FileHandle& handle, const struct stat& file,
                  std::uint64_t session);

// Whether the open file `fd` on `tier` is still what the note says of the twin.
bool is_intact(const Tier& tier, int fd, const TwinNote& note);

}  // namespace sluice
