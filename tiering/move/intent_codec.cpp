// SPDX-License-Identifier: BSD-2-Clause
// The encoding of an intent; see docs/metadata-format.md.
#include "tiering/move/intent.hpp"

namespace sluice {
namespace {

// On disk: docs/metadata-format.md
constexpr std::uint8_t kFormat = 3;

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
    put_number(out, static_cast<std::uint64_t>(step.original.size));
    put_number(out, static_cast<std::uint64_t>(step.original.mtime));
    put_number(out, static_cast<std::uint64_t>(step.original.shown.ctime));
    put_number(out, static_cast<std::uint64_t>(step.original.shown.birth));
  }
  return out;
}

Result<std::vector<Step>> decode_steps(std::string_view bytes) {
  if (bytes.empty() || bytes[0] != static_cast<char>(kFormat))
    return Error(EUCLEAN, "decode intent: unknown format");
  Reader in(bytes.substr(1));
  const std::uint64_t count = in.number();
  std::vector<Step> steps;
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) {
    Step step;
    const auto kind = in.byte();
    if (kind < 1 || kind > 9) return Error(EUCLEAN, "decode intent: unknown kind of step");
    step.kind = static_cast<Step::Kind>(kind);
    step.from = in.place();
    step.to = in.place();
    step.subject.id = InodeId{in.number()};
    step.subject.generation = static_cast<std::uint32_t>(in.number());
    step.original.size = static_cast<std::int64_t>(in.number());
    step.original.mtime = static_cast<std::int64_t>(in.number());
    step.original.shown.ctime = static_cast<std::int64_t>(in.number());
    step.original.shown.birth = static_cast<std::int64_t>(in.number());
    steps.push_back(std::move(step));
  }
  if (!in.ok() || !in.at_end()) return Error(EUCLEAN, "decode intent: wrong length");
  return steps;
}

}  // namespace sluice
