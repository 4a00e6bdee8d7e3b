// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/twin.hpp"

#include <sys/xattr.h>

#include <array>
#include <charconv>
#include <cstdio>

#include "base/file_at.hpp"

namespace sluice {
namespace {

constexpr std::uint8_t kNoteVersion = 1;  // On disk: docs/metadata-format.md
constexpr std::size_t kLongestNote = 16 << 10;

void put(std::string& out, std::uint64_t value, int bytes = 8) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put(std::string& out, std::string_view text) {
  put(out, text.size(), 2);
  out += text;
}

class NoteReader {
 public:
  explicit NoteReader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number(std::size_t bytes = 8) {
    if (rest_.size() < bytes) {
      ok_ = false;
      return 0;
    }
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(rest_[i]);
    rest_.remove_prefix(bytes);
    return value;
  }
  std::string text() {
    const std::uint64_t size = number(2);
    if (size > rest_.size()) ok_ = false;
    std::string out(rest_.substr(0, ok_ ? size : 0));
    rest_.remove_prefix(out.size());
    return out;
  }
  bool ok() const { return ok_; }
  bool is_complete() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace

std::string encode_note(const TwinNote& note) {
  std::string out;
  put(out, kNoteVersion, 1);
  put(out, to_number(note.file.id));
  put(out, note.file.generation, 4);
  put(out, note.slot, 1);
  put(out, note.handle.bytes);
  put(out, static_cast<std::uint64_t>(note.size));
  put(out, static_cast<std::uint64_t>(note.mtime));
  put(out, static_cast<std::uint64_t>(note.ctime));
  put(out, note.session);
  put(out, note.hash);
  put(out, static_cast<std::uint64_t>(note.made));
  put(out, note.mode, 4);
  put(out, note.uid, 4);
  put(out, note.gid, 4);
  for (const TwinNote::Name& name : note.names) {
    put(out, name.directory.bytes);
    put(out, name.text);
  }
  return out;
}

std::optional<TwinNote> decode_note(std::string_view bytes) {
  NoteReader in(bytes);
  if (in.number(1) != kNoteVersion) return std::nullopt;
  TwinNote note;
  note.file.id = InodeId{in.number()};
  note.file.generation = static_cast<std::uint32_t>(in.number(4));
  note.slot = static_cast<unsigned>(in.number(1));
  note.handle.bytes = in.text();
  note.size = static_cast<std::int64_t>(in.number());
  note.mtime = static_cast<std::int64_t>(in.number());
  note.ctime = static_cast<std::int64_t>(in.number());
  note.session = in.number();
  note.hash = in.number();
  note.made = static_cast<std::int64_t>(in.number());
  note.mode = static_cast<std::uint32_t>(in.number(4));
  note.uid = static_cast<std::uint32_t>(in.number(4));
  note.gid = static_cast<std::uint32_t>(in.number(4));
  while (in.ok() && !in.is_complete()) {
    TwinNote::Name name;
    name.directory.bytes = in.text();
    name.text = in.text();
    note.names.push_back(std::move(name));
  }
  if (!in.is_complete() || note.handle.empty()) return std::nullopt;
  return note;
}

std::optional<TwinNote> read_note(int fd) {
  std::string value(kLongestNote, '\0');
  const ssize_t size = getxattr_at(fd, "", kTwinXattr, value.data(), value.size());
  if (size < 0) return std::nullopt;
  return decode_note(std::string_view(value).substr(0, static_cast<std::size_t>(size)));
}

std::string twin_name(const Identity& file) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%016llx-%08x",
                static_cast<unsigned long long>(to_number(file.id)), file.generation);
  return text.data();
}

std::optional<Identity> identity_in_twin_name(std::string_view name) {
  if (name.size() != 25 || name[16] != '-') return std::nullopt;
  std::uint64_t id = 0;
  Identity out;
  const auto first = std::from_chars(name.data(), name.data() + 16, id, 16);
  const auto second = std::from_chars(name.data() + 17, name.data() + 25, out.generation, 16);
  if (first.ptr != name.data() + 16 || second.ptr != name.data() + 25) return std::nullopt;
  out.id = InodeId{id};
  return out;
}

TwinState compare(const TwinNote& note, const FileHandle& handle, const struct stat& file,
                  std::uint64_t session) {
  if (!S_ISREG(file.st_mode) || handle != note.handle || file.st_size != note.size ||
      nanoseconds_of(file.st_mtim) != note.mtime) {
    return TwinState::Differs;
  }
  const bool is_untouched =
      nanoseconds_of(file.st_ctim) == note.ctime && session != 0 && session == note.session;
  return is_untouched ? TwinState::Same : TwinState::Perhaps;
}

bool is_intact(const Tier& tier, int fd, const TwinNote& note) {
  const auto found = tier.identify(fd, "");
  return found && found->identity == note.file && S_ISREG(found->st.st_mode) &&
         found->st.st_nlink == 1 && found->st.st_size == note.size &&
         nanoseconds_of(found->st.st_mtim) == note.mtime;
}

}  // namespace sluice
