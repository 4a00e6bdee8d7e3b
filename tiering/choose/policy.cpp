// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/policy.hpp"

namespace sluice {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

// Whether the next element of a glob matches one character.
struct Step {
  bool matches;
  std::size_t next;  // where the element after it begins
};

// Matches the set that begins at glob[at] == '['. Empty if the set is not closed: then the bracket
// is an ordinary character. A ']' directly after the opening is a member of the set.
std::optional<Step> step_set(std::string_view glob, std::size_t at, unsigned char c) {
  std::size_t i = at + 1;
  const bool is_negated = i < glob.size() && glob[i] == '!';
  if (is_negated) ++i;
  bool is_member = false;
  for (bool is_first = true; i < glob.size() && (is_first || glob[i] != ']'); is_first = false) {
    const auto member = [&] {
      if (glob[i] == '\\' && i + 1 < glob.size()) ++i;
      return static_cast<unsigned char>(glob[i++]);
    };
    const unsigned char low = member();
    unsigned char high = low;
    if (i + 1 < glob.size() && glob[i] == '-' && glob[i + 1] != ']') {
      ++i;
      high = member();
    }
    is_member |= low <= c && c <= high;
  }
  if (i >= glob.size()) return std::nullopt;
  return Step{c != '/' && is_member != is_negated, i + 1};
}

// What glob[at], which is not a star, matches.
Step step(std::string_view glob, std::size_t at, char c) {
  if (glob[at] == '?') return {c != '/', at + 1};
  if (glob[at] == '[') {
    if (const auto set = step_set(glob, at, static_cast<unsigned char>(c))) return *set;
  }
  if (glob[at] == '\\' && at + 1 < glob.size()) ++at;
  return {glob[at] == c, at + 1};
}

// The last star: the position in the glob after it, and in the text up to which it matches so far.
struct Star {
  std::size_t glob = kNone;
  std::size_t text = 0;
};

// Whether all of `text` matches all of `glob`. Only the last star of each kind is retried, because
// a later star can match everything an earlier one could. So no glob takes exponential time.
bool matches_whole(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0;
  Star star, stars;              // the last "*" and the last "**"
  bool is_by_directory = false;  // `stars` is "**/", which matches up to the beginning of a name
  for (;;) {
    if (g < glob.size() && glob[g] == '*') {
      const std::size_t begin = g;
      while (g < glob.size() && glob[g] == '*') ++g;
      if (g - begin == 1) {
        star = {g, t};
        continue;
      }
      // "a/**/b" also matches "a/b".
      is_by_directory = g < glob.size() && glob[g] == '/' && (begin == 0 || glob[begin - 1] == '/');
      if (is_by_directory) ++g;
      stars = {g, t};
      star = {};
      continue;
    }
    if (g == glob.size() && t == text.size()) return true;
    if (g < glob.size() && t < text.size()) {
      if (const Step next = step(glob, g, text[t]); next.matches) {
        g = next.next;
        ++t;
        continue;
      }
    }
    if (star.glob != kNone && star.text < text.size() && text[star.text] != '/') {
      g = star.glob;
      t = ++star.text;
      continue;
    }
    if (stars.glob == kNone || stars.text == text.size()) return false;
    if (is_by_directory) {
      const std::size_t slash = text.find('/', stars.text);
      if (slash == kNone) return false;
      stars.text = slash;
    }
    g = stars.glob;
    t = ++stars.text;
    star = {};
  }
}

}  // namespace

bool glob_matches(std::string_view glob, std::string_view path) {
  if (!path.empty() && path.front() == '/') path.remove_prefix(1);
  if (!glob.empty() && glob.front() == '/') return matches_whole(glob.substr(1), path);
  if (glob.find('/') == kNone) return matches_whole(glob, path.substr(path.rfind('/') + 1));
  for (;;) {
    if (matches_whole(glob, path)) return true;
    const std::size_t slash = path.find('/');
    if (slash == kNone) return false;
    path.remove_prefix(slash + 1);
  }
}

std::optional<std::size_t> matching_rule(const std::vector<Rule>& rules, std::string_view path,
                                         std::uint64_t size, std::chrono::seconds age) {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    if (rule.larger && size <= *rule.larger) continue;
    if (rule.smaller && size >= *rule.smaller) continue;
    if (rule.older && age <= *rule.older) continue;
    if (rule.newer && age >= *rule.newer) continue;
    // Last, because it is the most expensive condition.
    if (rule.match.empty() || glob_matches(rule.match, path)) return i;
  }
  return std::nullopt;
}

}  // namespace sluice
