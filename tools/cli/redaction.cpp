// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/redaction.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

#include "fs/control/option_table.hpp"
#include "tiering/pool/marker.hpp"
#include "tools/cli/machine.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 28> kCommonEndings{
    "bin",  "ckpt",        "csv",    "db",  "gguf",     "gz",  "h5",   "idx",     "iso", "jpg",
    "json", "log",         "mkv",    "mp4", "npy",      "npz", "onnx", "parquet", "png", "pt",
    "pth",  "safetensors", "sqlite", "tar", "tfrecord", "txt", "zip",  "zst"};

std::uint64_t word_at(std::string_view text, std::size_t at, std::size_t count) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < count; ++i) {
    word |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (8 * i);
  }
  return word;
}

struct SipState {
  std::uint64_t a, b, c, d;
  void round(int times) {
    for (int i = 0; i < times; ++i) {
      a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
      c += d, d = std::rotl(d, 16) ^ c;
      a += d, d = std::rotl(d, 21) ^ a;
      c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
    }
  }
};

// The key of "key = value", and the value without a comment behind it.
std::optional<std::pair<std::string, std::string>> toml_line(std::string_view line) {
  const auto begin = line.find_first_not_of(" \t");
  const auto sign = line.find('=');
  if (begin == std::string_view::npos || sign == std::string_view::npos) return std::nullopt;
  std::string_view key = line.substr(begin, sign - begin);
  key = key.substr(0, key.find_last_not_of(" \t") + 1);
  char quote = 0;
  std::size_t end = sign + 1;
  for (; end < line.size(); ++end) {
    const char c = line[end];
    if (quote == 0 && c == '#') break;
    if (quote == '"' && c == '\\') ++end;
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    }
  }
  std::string value(line.substr(sign + 1, std::min(end, line.size()) - sign - 1));
  value.erase(0, value.find_first_not_of(" \t"));
  value.erase(value.find_last_not_of(" \t\r") + 1);
  return std::pair{std::string(key), std::move(value)};
}

bool is_harmless_key(std::string_view key) {
  const auto names = names_of(option_table());
  // A pattern of a rule says what files are called.
  return key != "match" && std::find(names.begin(), names.end(), key) != names.end();
}

// Mount options of possible tier filesystems that reveal nothing about users.
bool is_harmless_option(std::string_view key) {
  constexpr std::array<std::string_view, 44> kOptions{
      "ro",         "rw",         "sync",      "dirsync",  "noatime",    "nodiratime",
      "relatime",   "lazytime",   "acl",       "noacl",    "user_xattr", "xattr",
      "posixacl",   "discard",    "nodiscard", "barrier",  "nobarrier",  "commit",
      "data",       "errors",     "stripe",    "delalloc", "dax",        "attr2",
      "inode64",    "logbufs",    "logbsize",  "noquota",  "usrquota",   "grpquota",
      "prjquota",   "sunit",      "swidth",    "compress", "ssd",        "space_cache",
      "autodefrag", "subvolid",   "user_id",   "group_id", "max_read",   "default_permissions",
      "blksize",    "allow_other"};
  return std::find(kOptions.begin(), kOptions.end(), key) != kOptions.end();
}

}  // namespace

std::uint64_t sip_hash(const SipKey& key, std::string_view text) {
  SipState s{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
             key[1] ^ 0x7465646279746573};
  const auto absorb = [&](std::uint64_t word) {
    s.d ^= word;
    s.round(2);
    s.a ^= word;
  };
  const std::size_t whole = text.size() / 8 * 8;
  for (std::size_t at = 0; at < whole; at += 8) absorb(word_at(text, at, 8));
  absorb(word_at(text, whole, text.size() - whole) | std::uint64_t{text.size()} << 56);
  s.c ^= 0xff;
  s.round(4);
  return s.a ^ s.b ^ s.c ^ s.d;
}

std::string Redactor::component(std::string_view name) const {
  if (name.empty() || name == "." || name == ".." || name == kPrivateDirectory) {
    return std::string(name);
  }
  char hash[24];
  std::snprintf(hash, sizeof hash, "<%012llx>",
                static_cast<unsigned long long>(sip_hash(key_, name) >> 16));
  const auto dot = name.rfind('.');
  const std::string_view ending = dot == std::string_view::npos ? "" : name.substr(dot + 1);
  const bool is_common =
      std::find(kCommonEndings.begin(), kCommonEndings.end(), ending) != kCommonEndings.end();
  return is_common ? hash + std::string(".").append(ending) : hash;
}

bool Redactor::is_root(std::string_view path) const {
  return std::find(pool_.roots.begin(), pool_.roots.end(), path) != pool_.roots.end();
}

std::string Redactor::path(std::string_view path) const {
  if (is_root(path)) return std::string(path);
  for (const auto& root : pool_.roots) {
    if (root != "/" && path.starts_with(root + "/")) {
      return root + this->path(path.substr(root.size()));
    }
  }
  std::string out;
  for (;;) {
    const auto slash = path.find('/');
    out += component(path.substr(0, slash));
    if (slash == std::string_view::npos) return out;
    out += '/';
    path.remove_prefix(slash + 1);
  }
}

std::string Redactor::text(std::string_view text) const {
  for (const auto& root : pool_.roots) {
    const auto at = root == "/" ? std::string_view::npos : text.find(root + "/");
    if (at == std::string_view::npos) continue;
    const auto begin = at + root.size() + 1;
    const auto end = std::min(text.find('\n', begin), text.size());
    const std::string_view rest = text.substr(begin, end - begin);
    // Our own directory is not secret, but the rest of the line may be.
    const bool is_ours = rest.starts_with(kPrivateDirectory);
    return this->text(text.substr(0, at)) + root + "/" + (is_ours ? this->text(rest) : path(rest)) +
           this->text(text.substr(end));
  }
  return std::string(text);
}

std::string Redactor::message(std::string_view message) const {
  // "path=VALUE from=nvme to=hdd why=...": the value may contain anything, even " from=". So the
  // keys that follow it are searched from the end of the line.
  const auto key = std::min(message.find(" path="), message.find(" name="));
  if (key == std::string_view::npos) return text(message);
  const auto begin = key + std::string_view(" path=").size();
  const auto is_tier_at = [&](std::size_t at, std::string_view before) {
    return std::any_of(pool_.tiers.begin(), pool_.tiers.end(), [&](const std::string& tier) {
      return message.substr(at).starts_with(std::string(before) + tier + " ");
    });
  };
  // "tier=hdd path=/data/sluice why=...": a tier's own directory.
  if (message.substr(0, key).find(" tier=") != std::string_view::npos) return text(message);
  auto end = message.rfind(" from=");
  if (end == std::string_view::npos || end < begin || !is_tier_at(end, " from=")) {
    end = message.rfind(" to=");
    if (end == std::string_view::npos || end < begin || !is_tier_at(end, " to=")) {
      end = message.size();  // " why=" may be part of the name
    }
  }
  return text(message.substr(0, begin)) + path(message.substr(begin, end - begin)) +
         text(message.substr(end));
}

std::string Redactor::log_line(std::string_view line) const {
  if (!line.starts_with('{')) return message(line);
  Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return message(line);
  for (auto& [key, value] : object.items()) {
    if (value.is_string()) value = message(value.get<std::string>());
  }
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Redactor::reason(std::string_view reason) const {
  // "rule *.bin": the pattern names the rule.
  constexpr std::string_view kRule = "rule ";
  if (!reason.starts_with(kRule)) return text(reason);
  return std::string(kRule) + component(reason.substr(kRule.size()));
}

std::string Redactor::mount_line(std::string_view line) const {
  auto fields = parts_of(line, ' ');
  const auto dash = std::find(fields.begin(), fields.end(), "-");
  if (fields.size() < 7 || fields.end() - dash < 4) return "# (a line was left out)";
  std::string &root = fields[3], &source = dash[2], &options = dash[3];
  if (dash[1] == "fuse.sluice" && root != "/") root = "/" + component(root);
  // "server:/share", "//server/share".
  if (source.starts_with("//") || source.find(':') != std::string::npos) source = component(source);
  std::string kept;
  for (const auto& option : parts_of(options, ',')) {
    if (!is_harmless_option(option.substr(0, option.find('=')))) continue;
    kept += (kept.empty() ? "" : ",") + option;
  }
  options = kept.empty() ? "-" : kept;
  std::string out;
  for (const auto& field : fields) out += (out.empty() ? "" : " ") + field;
  return out;
}

Json Redactor::json(Json value) const {
  if (value.is_string()) return text(value.get<std::string>());
  if (value.is_array()) {
    for (auto& each : value) each = json(std::move(each));
  } else if (value.is_object()) {
    for (auto& [key, each] : value.items()) {
      // The checksum of a file identifies it as well as its name does.
      if (key == "hash") {
        each = nullptr;
        continue;
      }
      if (key == "path" && each.is_string()) {
        each = path(each.get<std::string>());
      } else if ((key == "reason" || key == "why") && each.is_string()) {
        each = reason(each.get<std::string>());
      } else {
        each = json(std::move(each));
      }
    }
  }
  return value;
}

std::string Redactor::config(std::string_view toml) const {
  std::string out;
  for (const auto& line : parts_of(toml, '\n')) {
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const auto entry = toml_line(line);
    if (line.substr(begin).starts_with("[[tier]]") || line.substr(begin).starts_with("[[rule]]")) {
      out += "\n" + line.substr(begin, 8) + "\n";
    } else if (line.substr(begin).starts_with("[debug]")) {
      out += "\n[debug]\n";
    } else if (entry && entry->first == "match") {
      out += "match = \"" + component(entry->second) + "\"\n";
    } else if (entry && is_harmless_key(entry->first)) {
      out += entry->first + " = " + entry->second + "\n";
    } else {
      out += "# (a line was left out)\n";
    }
  }
  return out;
}

}  // namespace sluice::tools::cli
