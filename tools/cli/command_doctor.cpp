// SPDX-License-Identifier: BSD-2-Clause
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "gpu/cufile_api.hpp"
#include "gpu/engine.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/doctor.hpp"
#include "tools/cli/subprocess.hpp"
#include "tools/cli/tier_access.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using Verdict = Check::Verdict;

constexpr std::string_view kVerb = "doctor";
constexpr int kFindings = 3;  // exit status: all checks ran, and one of them failed
constexpr std::chrono::seconds kDaemonTimeout{10};
// Every tier has this file.
constexpr const char* kMarker = "/.sluice/tier.json";

constexpr HelpText kHelp{.usage = "sluice doctor [--json] [MOUNT] [PATH]",
                         .options = R"(      --json        one JSON object; its members are stable
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
                         .details = R"(
Checks what this machine supports: the features and limits of the kernel, the GPUs
and what they need for GPUDirect Storage, and for each tier of the mount its
filesystem, its disk and the routes from there to a GPU. Each line begins with 'ok',
'warn' (it works, but not as well as it could) or 'fail' (something does not work).
'warn' and 'fail' lines also say what to do. A missing GPU is 'ok'.

Without arguments it checks the mount that contains the current directory. Outside of
a mount it checks all mounts, or only the machine if there are none. MOUNT is any
directory in a mount. PATH is a file, which is checked at its place on its tier, or a
directory outside of Sluice, which is checked like a tier.

  kernel   version, /dev/fuse, libfuse, rights (CAP_SYS_ADMIN, CAP_DAC_READ_SEARCH,
           CAP_LEASE), passthrough, cachestat(2), limits of locked memory and
           open files, leases (fs.leases-enable), size of requests
  gpu      driver, nvidia-fs or P2PDMA with each of its requirements, IOMMU, CUDA,
           cuFile
  tier     whether users can bypass the mount, filesystem, mount flags, disk, udev's
           entry (cuFile needs it), attributes (user.* and trusted.*), POSIX ACLs,
           leases, alignment of O_DIRECT, routes

It changes nothing and does not need root, but only root can check tiers that only
root can enter. Leases and attributes are tested with a file that has no name
(O_TMPFILE) and exists only during the test.

Examples:
  sluice doctor
  sudo sluice doctor /mnt/pool
  sudo sluice doctor /mnt/pool /mnt/pool/model.safetensors
  sluice doctor --json | jq '.sections[].checks[] | select(.verdict == "fail")'

Exit status: 0 nothing fails; 3 a line says 'fail'; 1 the checks could not run (no
such path); 2 wrong usage.
)"};

struct Section {
  std::string title;
  std::vector<Check> checks;
};

// Opens and closes cuFile, because only that shows whether it can be used.
Check cufile_check(Device& device) {
  if (const auto entered = device.enter(); !entered) {
    return {Verdict::Fail, "cufile",
            std::string("the GPU cannot be used: ") + std::strerror(entered.error().code),
            "see nvidia-smi and dmesg"};
  }
  const auto cufile = CuFile::open();
  if (!cufile) {
    return {Verdict::Warn, "cufile", cufile.error().text(),
            "install libcufile (CUDA's GPUDirect Storage); only the routes gds and cufile need it"};
  }
  const std::string version = (*cufile)->version();
  return {Verdict::Ok, "cufile", version.empty() ? "usable, older than 1.14" : version};
}

std::vector<Check> gpu_checks(const MachineView& machine, Engine& engine) {
  std::vector<std::string> pci_addresses;
  std::vector<Check> gpus;
  auto& devices = engine.devices();
  for (const auto& device : devices.all()) {
    pci_addresses.push_back(device->pci_address());
    gpus.push_back({Verdict::Ok, "gpu " + std::to_string(gpus.size()),
                    device->name() + ", " + format_size(device->memory_bytes()) + ", " +
                        to_string(device->uuid()) + ", at " + device->pci_address(),
                    ""});
  }
  auto checks = driver_checks(machine, pci_addresses);
  // Without a driver there is no CUDA to check.
  const bool has_driver = checks.size() > 1;
  if (!gpus.empty()) {
    checks.push_back({Verdict::Ok, "cuda", devices.driver_version()});
  } else if (has_driver) {
    checks.push_back(
        {Verdict::Warn, "cuda", devices.why_none(),
         "give this container or user access to the GPU, so that nvidia-smi lists it"});
  }
  checks.insert(checks.end(), gpus.begin(), gpus.end());
  if (!gpus.empty()) checks.push_back(cufile_check(*devices.all()[0]));
  return checks;
}

Check route_check(const Engine::Possibility& route, Device* device, bool is_nvme) {
  const std::string name(name_of(route.route));
  // Not a warning on a hard disk: there is nothing to fix, and the other routes work well.
  if (route.possible || (route.route == Route::Gds && !is_nvme)) {
    return {Verdict::Ok, name, (route.possible ? "" : "not possible: ") + route.words, ""};
  }
  std::string fix = "free some memory; see the gpu lines above";
  if (device != nullptr && device->is_lost()) {
    fix = "see nvidia-smi and dmesg";
  } else if (route.route == Route::Gds || route.route == Route::CuFile) {
    fix = "see the gpu lines above and the filesystem and udev lines here";
  }
  return {Verdict::Warn, name, route.words, fix};
}

// The routes from an open file to a GPU, or to host memory if `device` is null.
std::vector<Check> route_checks(Engine& engine, const UniqueFd& file, Device* device,
                                bool is_nvme) {
  const EngineFile source{.fd = file.get()};
  std::vector<Check> checks;
  const auto preview = engine.preview(source, std::uint64_t{64} << 20, device);
  checks.push_back(
      {Verdict::Ok, "o_direct",
       preview.alignment > 1
           ? "reads can bypass the page cache in multiples of " + format_size(preview.alignment)
           : "not supported or unknown: all reads go through the page cache",
       ""});
  for (const auto& each : engine.possibilities(source, device)) {
    // Without a GPU, missing routes to one are not a warning.
    if (!each.possible && device == nullptr) continue;
    if (each.route == Route::Hbm) continue;  // only the daemon of a mount has it
    checks.push_back(route_check(each, device, is_nvme));
  }
  return checks;
}

// Opens regular files only, because opening a device may have effects. EINVAL for others.
UniqueFd open_file(const std::string& path) {
  const UniqueFd node(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!node || ::fstat(node.get(), &status) < 0) return {};
  errno = EINVAL;
  if (!S_ISREG(status.st_mode)) return {};
  const std::string same = "/proc/self/fd/" + std::to_string(node.get());
  return UniqueFd(::open(same.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

// Checks a directory or file and its filesystem and disk. `probe` is a file there to open.
Section place_section(const MachineView& machine, Engine& engine, const std::string& title,
                      const std::string& path, const std::string& probe) {
  Section section{title, {}};
  struct stat status {};
  if (::stat(path.c_str(), &status) < 0) {
    // This is how it should be: users access files through the mount.
    const bool is_closed = errno == EACCES;
    section.checks.push_back(
        {is_closed ? Verdict::Ok : Verdict::Fail, "path",
         is_closed ? "only root can enter it; run this as root to check it" : std::strerror(errno),
         is_closed ? "" : "mount the tier"});
    return section;
  }
  Device* device = engine.devices().all().empty() ? nullptr : engine.devices().all()[0].get();
  const std::string real = real_path(path);
  section.checks =
      disk_checks(machine, real, status.st_dev, device == nullptr ? Gpus::None : Gpus::Some);
  const auto abilities = ability_checks(S_ISDIR(status.st_mode) ? real : parent_path(real));
  section.checks.insert(section.checks.end(), abilities.begin(), abilities.end());
  const UniqueFd file = open_file(probe);
  if (!file) {
    section.checks.push_back(
        {Verdict::Warn, "routes",
         errno == ENOENT ? "need a file to check" : probe + ": " + std::strerror(errno),
         errno == EACCES ? "run this as root" : "give the path of a file there"});
    return section;
  }
  const auto disk = disk_of(machine, major(status.st_dev), minor(status.st_dev));
  const auto routes = route_checks(engine, file, device, disk && disk->is_nvme);
  section.checks.insert(section.checks.end(), routes.begin(), routes.end());
  return section;
}

Check access_check(const std::string& path, const std::vector<std::string>& tiers) {
  if (!closing_command(path, tiers))
    return {Verdict::Ok, "access", "only root can bypass the mount"};
  return {Verdict::Warn, "access",
          "users can bypass the mount; Sluice does not see what they change there",
          "sluice tier close " + shell_word(path)};
}

// What is not as usual with a tier.
std::vector<Check> state_checks(const Json& tier) {
  std::vector<Check> checks;
  for (const auto& state : member_of(tier, "states")) {
    const std::string name = text_of(state, "name");
    const bool is_crowded = name == "full" || name == "above-watermark";
    checks.push_back({flag_of(state, "serious") ? Verdict::Fail
                      : is_crowded              ? Verdict::Warn
                                                : Verdict::Ok,
                      name, text_of(state, "words"),
                      is_crowded ? "add a disk (sluice tier add) or remove files; sluice plan "
                                   "shows what would move"
                                 : ""});
  }
  return checks;
}

std::vector<Section> mount_sections(const MachineView& machine, Engine& engine,
                                    const Json& status) {
  std::vector<Section> sections{{"mount " + text_of(status, "mountpoint"), {}}};
  const auto release = machine.text("/proc/sys/kernel/osrelease").value_or("");
  const bool is_old = parse_kernel(release) < KernelVersion{6, 9};
  for (const auto& [name, feature] : member_of(status, "features").items()) {
    const bool on = flag_of(feature, "on");
    const std::string why = text_of(feature, "why");
    const bool unwanted = why.starts_with("turned off");
    const bool has_died = name == "keeper" && !is_old;
    sections[0].checks.push_back(
        {on ? Verdict::Ok : Verdict::Warn, name, why.empty() ? (on ? "in use" : "not in use") : why,
         on         ? ""
         : unwanted ? "set " + name + " = true in [debug], then mount again"
         : has_died ? "unmount, then mount again"
                    : "see the kernel lines above, then mount again"});
  }
  std::vector<std::string> paths;
  for (const auto& tier : member_of(status, "tiers")) paths.push_back(text_of(tier, "path"));
  for (const auto& tier : member_of(status, "tiers")) {
    const std::string path = text_of(tier, "path");
    const std::string title = "tier " + text_of(tier, "name") + ", " + path;
    if (!flag_of(tier, "online")) {
      sections.push_back({title,
                          {{Verdict::Fail, "online", text_of(tier, "why"),
                            "mount its disk; the pool then uses it again by itself. If it is dead, "
                            "'sluice tier replace " +
                                text_of(tier, "name") + "=PATH' puts another in its place"}}});
      continue;
    }
    sections.push_back(place_section(machine, engine, title, path, path + kMarker));
    struct stat status_of_path {};
    if (::stat(path.c_str(), &status_of_path) < 0) continue;  // reported above
    auto& checks = sections.back().checks;
    checks.insert(checks.begin(), access_check(path, paths));
    const auto states = state_checks(tier);
    checks.insert(checks.begin(), states.begin(), states.end());
  }
  return sections;
}

// Checks a given file or directory. A file in a mount is checked at its place on its tier.
Section named_section(const MachineView& machine, Engine& engine, const std::string& path,
                      bool is_directory) {
  // Outside of a mount any user may have set such an attribute.
  std::optional<std::string> location;
  if (sluice_mount_of(mount_table(), path)) {
    if (auto told = read_attribute(path, "user.sluice.location")) location = *told;
  }
  const std::string place = location ? *location : path;
  return place_section(machine, engine, location ? path + ", at " + place : path, place,
                       is_directory ? place + kMarker : place);
}

// A mount and the status that its daemon reports.
struct Answer {
  std::string point;
  Json status;              // null if the daemon does not answer
  std::vector<Check> dead;  // the reason
};

// Asks in a child process: a process that waits for a daemon that hangs cannot be interrupted.
Answer ask(const std::string& point) {
  const auto said = run_program({"/proc/self/exe", "status", "--json", point}, kDaemonTimeout);
  if (said.code < 0) {
    return {point,
            {},
            {{Verdict::Fail, "daemon", "does not answer",
              "see its log; to end it, kill its process, then run sluice umount " +
                  shell_word(point) + " and mount again"}}};
  }
  Json status = Json::parse(said.out, nullptr, /*allow_exceptions=*/false);
  if (said.code == 0 && status.is_object()) return {point, std::move(status), {}};
  if (said.err.find("has died") != std::string::npos) {
    return {point,
            {},
            {{Verdict::Fail, "daemon", "has died",
              "sluice umount " + shell_word(point) + ", then mount again"}}};
  }
  return {point,
          {},
          {{Verdict::Fail, "daemon", said.err.substr(0, said.err.find('\n')),
            "see its log, or run this as root"}}};
}

// The mounts among those that contain these paths whose daemons do not answer. Compares paths
// only and does not access the mounts.
std::vector<Answer> silent_mounts(const std::vector<std::string>& paths) {
  std::vector<Answer> out;
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    const auto point = sluice_mount_of(mount_table(), absolute_path(path));
    if (!point || (!out.empty() && out.back().point == *point)) continue;
    Answer answer = ask(*point);
    if (!answer.dead.empty()) out.push_back(std::move(answer));
  }
  return out;
}

Json to_json(const std::vector<Section>& sections) {
  Json list = Json::array();
  for (const auto& section : sections) {
    Json checks = Json::array();
    for (const auto& check : section.checks) {
      checks.push_back({{"what", check.what},
                        {"verdict", name_of(check.verdict)},
                        {"words", check.words},
                        {"fix", check.fix.empty() ? Json() : Json(check.fix)}});
    }
    list.push_back({{"title", section.title}, {"checks", std::move(checks)}});
  }
  return {{"version", SLUICE_VERSION}, {"sections", std::move(list)}};
}

void print_for_people(const Style& style, const std::vector<Section>& sections) {
  constexpr Color kColors[] = {Color::Green, Color::Yellow, Color::Red};
  std::string out;
  for (const auto& section : sections) {
    if (!out.empty()) out += "\n";
    out += style.paint(Color::Bold, safe_name(style, section.title)) + "\n";
    for (const auto& check : section.checks) {
      const std::string verdict(name_of(check.verdict));
      out += "  " + style.paint(kColors[static_cast<int>(check.verdict)], verdict) +
             std::string(6 - verdict.size(), ' ') + check.what +
             std::string(check.what.size() < 12 ? 12 - check.what.size() : 1, ' ') +
             safe_name(style, check.words) + "\n";
      if (!check.fix.empty())
        out += std::string(20, ' ') + "-> " + safe_name(style, check.fix) + "\n";
    }
  }
  std::fputs(out.c_str(), stdout);
}

bool has_failure(const std::vector<Section>& sections) {
  for (const auto& section : sections) {
    for (const auto& check : section.checks) {
      if (check.verdict == Verdict::Fail) return true;
    }
  }
  return false;
}

}  // namespace

int command_doctor(int argc, char** argv) {
  Arguments arguments;
  bool as_json = false;
  std::string color = "auto", first, second;
  arguments.flag("--json", as_json);
  arguments.option("--color", color);
  arguments.option("MOUNT", first);
  arguments.option("PATH", second);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for(kVerb, color);
  if (!style) return kUsage;

  // A single argument is MOUNT if it is a directory of a mount, otherwise PATH.
  std::string given = second.empty() ? first : second;
  std::vector<Answer> mounts = silent_mounts({first, second});
  bool is_directory = true, wants_mount = true;
  if (!mounts.empty()) {
    given.clear();  // accessing it would block
  } else {
    const auto mount = choose_mount(first);
    if (!second.empty() && !mount) return fail(kVerb, mount.error().text());
    if (mount) mounts.push_back(ask(*mount));
    if (failed_with(mount, ENOTUNIQ)) {
      for (const auto& point : sluice_mounts()) mounts.push_back(ask(point));
    }
    struct stat status {};
    if (!given.empty() && ::stat(given.c_str(), &status) < 0)
      return fail(kVerb, log::escaped(given) + ": " + std::strerror(errno));
    is_directory = S_ISDIR(status.st_mode);
    wants_mount = first.empty() || !second.empty() || is_directory;
    if (wants_mount && !mounts.empty() && second.empty()) given.clear();
  }

  const MachineView machine;
  Engine engine({});
  const auto daemon =
      static_cast<pid_t>(mounts.empty() ? 0 : number_of(mounts.front().status, "pid"));
  std::vector<Section> sections{{"kernel", kernel_checks(machine, daemon)},
                                {"gpu", gpu_checks(machine, engine)}};
  for (const auto& each : mounts) {
    if (!each.dead.empty()) {
      sections.push_back({"mount " + each.point, each.dead});
    } else if (wants_mount) {
      const auto more = mount_sections(machine, engine, each.status);
      sections.insert(sections.end(), more.begin(), more.end());
    }
  }
  if (!given.empty()) {
    sections.push_back(named_section(machine, engine, real_path(given), is_directory));
  }
  if (as_json) {
    std::puts(to_json(sections).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    print_for_people(*style, sections);
  }
  return has_failure(sections) ? kFindings : kDone;
}

}  // namespace sluice::tools::cli
