// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/init_config.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "tools/cli/init_models.hpp"
#include "tools/cli/machine.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

// A TOML string. Invalid UTF-8 is not detected here, but when the text is parsed again.
std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.append(1, '\\').append(1, c);
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

Error unwritten(int code, std::string text) {
  return {code, "write the configuration", std::move(text)};
}

Error failed_at(const std::string& path, int code) {
  return unwritten(code, log::escaped(path) + ": " + std::strerror(code) +
                             (code == EACCES || code == EPERM ? "; try: sudo sluice init" : ""));
}

// Creates directories. The destructor removes them unless keep() was called.
class MadeDirectories {
 public:
  ~MadeDirectories() {
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) ::rmdir(path->c_str());
  }
  bool make(const std::string& path) {
    // Independent of the umask: the mode of a tier is the mode of the pool's root.
    return make_new(path, 0755) || errno == EEXIST;
  }
  // Fails with EEXIST if the path exists.
  bool make_new(const std::string& path, mode_t mode) {
    if (::mkdir(path.c_str(), mode) < 0) return false;
    made_.push_back(path);
    return ::chmod(path.c_str(), mode) == 0;
  }
  bool make_all(const std::string& path) {
    if (::access(path.c_str(), F_OK) == 0) return true;
    return (path == "/" || make_all(parent_path(path))) && make(path);
  }
  std::vector<std::string> keep() { return std::exchange(made_, {}); }

 private:
  std::vector<std::string> made_;
};

bool must_be_new(const InitConfig& config, const std::string& directory) {
  return std::find(config.new_parents.begin(), config.new_parents.end(), directory) !=
         config.new_parents.end();
}

Error no_parent(const TierOptions& tier) {
  return unwritten(ENOENT, "tier " + tier.name + ": " + log::escaped(parent_path(tier.path)) +
                               " does not exist; is its disk mounted?");
}

// The bytes that a tier can have; 0: not known. The directory may be missing.
std::uint64_t size_of(const TierOptions& tier) {
  struct statvfs room {};
  std::string path = tier.path;
  while (::statvfs(path.c_str(), &room) < 0) {
    if (errno != ENOENT || path == "/") return 0;
    path = parent_path(path);
  }
  const std::uint64_t size = std::uint64_t{room.f_blocks} * room.f_frsize;
  return std::min(tier.capacity.value_or(size), size);
}

// Writes the file atomically. EEXIST if it exists and may not be replaced.
int write_whole(const std::string& file, const std::string& text, bool replaces) {
  const std::string draft = file + "." + std::to_string(::getpid()) + ".new";
  UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd) return errno;
  int code = 0;
  // Readable by all, independent of the umask: users run verbs that read it.
  if (::fchmod(fd.get(), 0644) < 0 ||
      ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(fd.get()) < 0) {
    code = errno == 0 ? EIO : errno;
  } else if (replaces ? ::rename(draft.c_str(), file.c_str()) < 0
                      : ::link(draft.c_str(), file.c_str()) < 0) {
    code = errno;
  }
  ::unlink(draft.c_str());  // does not exist after a rename
  return code;
}

}  // namespace

std::string tier_text(const TierOptions& tier, const std::string& given) {
  std::string out =
      "[[tier]]\nname = " + toml_string(tier.name) + "\npath = " + toml_string(tier.path) + "\n";
  const auto parts = parts_of(given, ',');
  // A path may contain commas: only the last parts of the form KEY=VALUE are keys.
  std::size_t first = parts.size();
  while (first > 1 && parts[first - 1].find('=') != std::string::npos) --first;
  for (std::size_t i = first; i < parts.size(); ++i) {
    const auto sign = parts[i].find('=');
    const std::string value = parts[i].substr(sign + 1);
    const bool is_number = value.find_first_not_of("0123456789.") == std::string::npos;
    out += parts[i].substr(0, sign) + " = " + (is_number ? value : toml_string(value)) + "\n";
  }
  return out;
}

std::string config_path(const std::string& folder, const std::string& name) {
  return folder + "/" + name + ".toml";
}

bool is_pool_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return c < 0x80 && (std::isalnum(c) != 0 || std::strchr("_-.", c) != nullptr);
         });
}

Result<void> prepare_config(InitConfig& config) {
  MountOptions given;
  config.text =
      "# Written by 'sluice init'. All options: sluice.toml(5), /usr/share/sluice/sluice.toml.\n"
      "mountpoint = " +
      toml_string(config.mountpoint) + "\n";
  if (config.is_for_models) config.text += models_options();
  for (const auto& tier : config.tiers) {
    SLUICE_TRY(append_tier("--tier", tier, given));
    config.text += "\n" + tier_text(given.tiers.back(), tier);
  }
  if (config.is_for_models && !given.tiers.empty()) {
    config.text += models_rules(given.tiers, size_of(given.tiers.front()));
  }
  config.options = {};
  SLUICE_TRY(apply_config_text(config.text, config.file, config.options));
  return check_options(config.options);
}

Result<void> check_tiers_of(InitConfig config) {
  config.mountpoint = "/";  // for the check of the text
  SLUICE_TRY(prepare_config(config));
  config.options.mountpoint.clear();
  return check_places(config);
}

Result<void> check_places(const InitConfig& config) {
  for (const auto& tier : config.options.tiers) {
    const std::string parent = parent_path(tier.path);
    if (must_be_new(config, parent)) continue;
    if (::access(parent.c_str(), F_OK) < 0 && errno == ENOENT) return no_parent(tier);
  }
  return check_tiers(config.options, Directories::MayBeMissing);
}

Result<std::vector<std::string>> write_config(const InitConfig& config, bool replaces) {
  if (!replaces && ::access(config.file.c_str(), F_OK) == 0) {
    return unwritten(
        EEXIST,
        log::escaped(config.file) +
            " exists; replace it with --force, choose another with --name, or use --dry-run");
  }
  MadeDirectories made;
  for (const auto& tier : config.options.tiers) {
    const std::string parent = parent_path(tier.path);
    if (must_be_new(config, parent) && !made.make_new(parent, 0700)) {
      if (errno != EEXIST) return failed_at(parent, errno).at("tier " + tier.name);
      return unwritten(
          EEXIST, "tier " + tier.name + ": " + log::escaped(parent) +
                      " was created by another program meanwhile; check it, then run this again");
    }
    if (made.make(tier.path)) continue;
    if (errno == ENOENT) return no_parent(tier);
    return failed_at(tier.path, errno).at("tier " + tier.name);
  }
  for (const std::string& path : {config.mountpoint, parent_path(config.file)}) {
    if (!made.make_all(path)) return failed_at(path, errno);
  }
  SLUICE_TRY(check_tiers(config.options));
  if (const int code = write_whole(config.file, config.text, replaces); code != 0) {
    return failed_at(config.file, code);
  }
  return made.keep();
}

std::string next_steps(const InitConfig& config, const std::string& unit) {
  std::string out = "Mount it in one of these ways:\n";
  if (!unit.empty()) {
    out += "  systemctl enable --now sluice@" + unit + "    # now and at every boot\n";
  }
  const auto in_fstab = [](const std::string& path) {
    std::string field;
    for (const char c : path) {
      const auto byte = static_cast<unsigned char>(c);
      char escape[8];
      std::snprintf(escape, sizeof escape, byte <= ' ' || c == '\\' ? "\\%03o" : "%c", byte);
      field += escape;
    }
    return field;
  };
  // On its own line: fstab has no comments at the end of a line.
  out += "  # a line for /etc/fstab:\n";
  out += "  " + in_fstab(config.file) + "  " + in_fstab(config.mountpoint) + "  sluice  nofail";
  for (const auto& tier : config.options.tiers) {
    out += ",x-systemd.requires-mounts-for=" + in_fstab(tier.path);
  }
  out += "  0 0\n";
  out += "  sluice mount --config " + shell_word(config.file) + "    # now, by hand\n";
  out += "Then: sluice status " + shell_word(config.mountpoint) + ", sluice doctor\n";
  if (config.is_for_models) {
    const char* const user = std::getenv("SUDO_USER");
    out += models_steps(config.mountpoint, user == nullptr ? "" : user);
  }
  return out;
}

}  // namespace sluice::tools::cli
