// SPDX-License-Identifier: BSD-2-Clause
#include "tools/doctor.hpp"

#include <dirent.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/path.hpp"
#include "base/units.hpp"

namespace sluice {
namespace {

using Verdict = Check::Verdict;

constexpr const char* kAllSymbols = "/proc/kallsyms";
constexpr const char* kUring = "/sys/module/fuse/parameters/enable_uring";
constexpr std::uint64_t kEnoughLocked = 64 << 20;

// Lines of `text`, and words of a line.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// Whether the kernel, or a module of it, has a function whose name begins with `name`. Nothing if
// it doesn't tell.
std::optional<bool> has_symbol(const MachineView& machine, const std::string& name) {
  const auto symbols = machine.text(kAllSymbols);
  if (!symbols || symbols->empty()) return std::nullopt;
  return symbols->find(" " + name) != std::string::npos;
}

Check kernel(const MachineView& machine, pid_t) {
  const auto release = machine.text("/proc/sys/kernel/osrelease").value_or("");
  const KernelVersion version = parse_kernel(release);
  if (version >= KernelVersion{6, 14}) return {Verdict::Ok, "kernel", release};
  const bool has_passthrough = version >= KernelVersion{6, 9};
  return {Verdict::Warn, "kernel",
          release + (has_passthrough ? ": older than 6.14, so requests do not go by io_uring"
                                     : ": older than 6.9, so the daemon copies all bytes itself"),
          "use kernel 6.14 or newer"};
}

Check fuse(const MachineView& machine, pid_t) {
  if (machine.has("/dev/fuse")) return {Verdict::Ok, "fuse", "/dev/fuse is there"};
  const auto known = machine.text("/proc/filesystems").value_or("");
  if (known.find("\tfuse\n") != std::string::npos) {
    return {Verdict::No, "fuse", "the kernel has it, but there is no /dev/fuse",
            "give the container the device: docker run --device /dev/fuse"};
  }
  return {Verdict::No, "fuse", "the kernel has no FUSE loaded", "modprobe fuse"};
}

Check passthrough(const MachineView& machine, pid_t) {
  const auto has = has_symbol(machine, "fuse_passthrough_");
  if (!has) return {Verdict::Warn, "passthrough", "the kernel does not say; 'sluice status' does"};
  if (*has) return {Verdict::Ok, "passthrough", "the kernel can read tiers itself"};
  return {Verdict::Warn, "passthrough", "the kernel, or the fuse module if loaded, has none",
          "use a kernel of 6.9 or newer with CONFIG_FUSE_PASSTHROUGH"};
}

Check io_uring(const MachineView& machine, pid_t) {
  const auto enabled = machine.text(kUring);
  if (!enabled) {
    return {Verdict::Warn, "io_uring", "FUSE of this kernel can't: small requests take 10 us more",
            "use a kernel of 6.14 or newer with CONFIG_FUSE_IO_URING"};
  }
  if (*enabled != "Y") {
    return {Verdict::Warn, "io_uring", "switched off for FUSE: small requests take 10 us more",
            std::string("echo Y > ") + kUring + " before mounting; for good: options fuse " +
                "enable_uring=Y in /etc/modprobe.d/fuse.conf"};
  }
  if (machine.text("/proc/sys/kernel/io_uring_disabled").value_or("0") == "2") {
    return {Verdict::Warn, "io_uring", "forbidden to all processes",
            "sysctl kernel.io_uring_disabled=0"};
  }
  return {Verdict::Ok, "io_uring", "FUSE requests can go by io_uring"};
}

Check cachestat(const MachineView&, pid_t) {
#ifdef SYS_cachestat
  constexpr long kNumber = SYS_cachestat;
#else
  constexpr long kNumber = 451;  // the same on every architecture
#endif
  // A descriptor that is none: whoever has the call says EBADF.
  if (::syscall(kNumber, -1, nullptr, nullptr, 0) < 0 && errno == EBADF) {
    return {Verdict::Ok, "cachestat", "what the page cache has can be asked"};
  }
  return {
      Verdict::Warn, "cachestat",
      errno == ENOSYS ? "the kernel can't tell what the page cache has (6.5 and newer can)"
                      : "refused here: the page cache's content can't be asked",
      errno == ENOSYS ? "use kernel 6.5 or newer" : "allow cachestat(2) in the seccomp profile"};
}

Check memlock(const MachineView& machine, pid_t daemon) {
  const std::string who = daemon > 0 ? std::to_string(daemon) : "self";
  const auto limit = parse_memlock(machine.text("/proc/" + who + "/limits").value_or(""));
  const std::string whose = daemon > 0 ? "the daemon" : "this process";
  if (!limit) return {Verdict::Warn, "memlock", "the limit of " + whose + " can't be read"};
  if (*limit == std::numeric_limits<std::uint64_t>::max()) {
    return {Verdict::Ok, "memlock", whose + " may lock any amount of memory"};
  }
  const std::string words = whose + " may lock " + format_size(*limit);
  if (*limit >= kEnoughLocked || (daemon == 0 && ::geteuid() == 0)) {
    return {Verdict::Ok, "memlock", words + (*limit >= kEnoughLocked ? "" : "; root any amount")};
  }
  return {Verdict::Warn, "memlock", words,
          "ulimit -l unlimited; for a container --ulimit memlock=-1; for a service "
          "LimitMEMLOCK=infinity"};
}

Check nvidia_fs(const MachineView& machine) {
  if (const auto version = machine.text("/proc/driver/nvidia-fs/version")) {
    return {Verdict::Ok, "nvidia-fs", *version};
  }
  if (machine.has("/sys/module/nvidia_fs")) {
    return {Verdict::Warn, "nvidia-fs", "loaded, but /proc/driver/nvidia-fs is missing",
            "see dmesg for why it did not start"};
  }
  return {Verdict::No, "nvidia-fs", "the module is not loaded",
          "install nvidia-fs-dkms and run modprobe nvidia-fs; or use P2PDMA instead"};
}

std::string cufile_configuration(const MachineView& machine) {
  const char* path = std::getenv("CUFILE_ENV_PATH_JSON");
  return machine.text(path != nullptr ? path : "/etc/cufile.json").value_or("");
}

// All gates must be open; the first that is not is the one thing to fix.
Check p2pdma(const MachineView& machine, const NvidiaDriver& driver,
             const std::vector<std::string>& pci_addresses) {
  const auto no = [](std::string words, std::string fix) {
    return Check{Verdict::No, "p2pdma", std::move(words), std::move(fix)};
  };
  if (has_symbol(machine, "pci_p2pdma_") == false) {
    return no("the kernel can't", "use a kernel of 6.2 or newer with CONFIG_PCI_P2PDMA");
  }
  if (!driver.is_open) {
    return no("the NVIDIA driver is the closed one",
              "install the open kernel modules, 570 or newer");
  }
  for (const auto& address : pci_addresses) {
    const auto size = machine.text("/sys/bus/pci/devices/" + address + "/p2pmem/size");
    if (size && *size != "0") continue;
    return no("the driver offers no memory of the GPU at " + address + " for it",
              "options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1\" "
              "in /etc/modprobe.d/nvidia.conf; a virtual machine also needs a BAR1 as large as the "
              "GPU's memory");
  }
  const char* asked = std::getenv("CUFILE_USE_PCIP2PDMA");
  const bool by_environment = asked != nullptr && std::strcmp(asked, "true") == 0;
  if (!by_environment && !asks_for_p2pdma(cufile_configuration(machine))) {
    return no("cuFile is not told to use it",
              "\"properties\": {\"use_pci_p2pdma\": true} in /etc/cufile.json");
  }
  return {Verdict::Ok, "p2pdma", "kernel, driver and cuFile's configuration allow it"};
}

Check iommu(const MachineView& machine) {
  if (machine.names("/sys/class/iommu").empty()) return {Verdict::Ok, "iommu", "off"};
  for (const auto& group : machine.names("/sys/kernel/iommu_groups")) {
    const auto type = machine.text("/sys/kernel/iommu_groups/" + group + "/type").value_or("");
    if (type.starts_with("DMA")) {
      return {Verdict::Warn, "iommu", "translates addresses: disks can't reach the GPU directly",
              "iommu=pt on the kernel's command line"};
    }
  }
  return {Verdict::Ok, "iommu", "on, and lets addresses through"};
}

Check filesystem(const MachineView& machine, const std::string& path) {
  const auto found = filesystem_of(machine.text("/proc/self/mountinfo").value_or(""), path);
  if (!found) return {Verdict::Warn, "filesystem", "not in /proc/self/mountinfo"};
  const auto options = split(found->options, ',');
  const auto has = [&](const char* option) {
    return std::find(options.begin(), options.end(), option) != options.end();
  };
  if (found->type == "tmpfs" || found->type == "ramfs") {
    return {Verdict::Warn, "filesystem",
            found->type + ": memory, so nothing is ever read from disk"};
  }
  if (found->type != "ext4" && found->type != "xfs") {
    return {Verdict::Warn, "filesystem", found->type + ": GPUDirect Storage takes ext4 and xfs",
            "put the tier on ext4 or xfs"};
  }
  if (has("data=journal") || has("data=writeback")) {
    return {Verdict::Warn, "filesystem", "ext4 without data=ordered: cuFile refuses it",
            "mount it with -o data=ordered"};
  }
  return {Verdict::Ok, "filesystem", found->type};
}

Check disk(const MachineView& machine, dev_t device) {
  const auto found = disk_of(machine, major(device), minor(device));
  if (!found) return {Verdict::Warn, "disk", "not a block device: no direct path to a GPU"};
  if (!found->raid.empty()) {
    return {Verdict::Warn, "disk",
            found->name + ": " + found->raid +
                "; P2PDMA takes no RAID, nvidia-fs takes RAID 0 and 1 of NVMe"};
  }
  if (found->is_nvme) return {Verdict::Ok, "disk", found->name + ": NVMe"};
  return {
      Verdict::Warn, "disk",
      found->name +
          (found->name.starts_with("vd") ? ": a virtual disk"  // called rotational, whatever it is
           : found->is_rotational        ? ": a hard disk"
                                         : ": not NVMe") +
          "; a direct path to the GPU takes NVMe, the other routes any"};
}

Check udev(const MachineView& machine, dev_t device) {
  const std::string entry =
      "/run/udev/data/b" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  if (machine.has(entry)) return {Verdict::Ok, "udev", entry};
  return {Verdict::Warn, "udev", "no " + entry + ": cuFile refuses the tier's files",
          machine.has("/run/udev/data") ? "udevadm trigger"
                                        : "start udev; for a container -v /run/udev:/run/udev:ro"};
}

}  // namespace

std::string_view name_of(Check::Verdict verdict) {
  switch (verdict) {
    case Verdict::Ok:
      return "ok";
    case Verdict::Warn:
      return "warn";
    case Verdict::No:
      return "no";
  }
  return "?";
}

std::optional<std::string> MachineView::text(const std::string& path) const {
  std::ifstream in(root_ + path);
  if (!in) return std::nullopt;
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool MachineView::has(const std::string& path) const {
  return ::access((root_ + path).c_str(), F_OK) == 0;
}

std::vector<std::string> MachineView::names(const std::string& path) const {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir((root_ + path).c_str()),
                                                      ::closedir);
  if (!directory) return names;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string MachineView::resolved(const std::string& path) const {
  if (!has(path)) return {};
  const std::string real = real_path(root_ + path);
  const std::string root = root_.empty() ? root_ : real_path(root_);
  return real.starts_with(root) ? real.substr(root.size()) : std::string();
}

KernelVersion parse_kernel(std::string_view release) {
  KernelVersion version;
  const char* end = release.data() + release.size();
  const auto first = std::from_chars(release.data(), end, version.major);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return {};
  if (std::from_chars(first.ptr + 1, end, version.minor).ec != std::errc()) return {};
  return version;
}

std::optional<std::uint64_t> parse_memlock(std::string_view limits) {
  constexpr std::string_view kName = "Max locked memory";
  for (const auto& line : split(limits, '\n')) {
    if (!line.starts_with(kName)) continue;
    const auto words = split(std::string_view(line).substr(kName.size()), ' ');
    if (words.empty()) return std::nullopt;
    if (words[0] == "unlimited") return std::numeric_limits<std::uint64_t>::max();
    return parse_size(words[0]);
  }
  return std::nullopt;
}

std::optional<NvidiaDriver> parse_driver(std::string_view text) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."
  for (const auto& line : split(text, '\n')) {
    if (!line.starts_with("NVRM version:")) continue;
    NvidiaDriver driver{"", line.find("Open Kernel Module") != std::string::npos};
    for (const auto& word : split(line, ' ')) {
      const bool is_version =
          word.find('.') != std::string::npos && std::all_of(word.begin(), word.end(), [](char c) {
            return c == '.' || (c >= '0' && c <= '9');
          });
      if (is_version) driver.version = word;
    }
    return driver;
  }
  return std::nullopt;
}

bool asks_for_p2pdma(std::string_view cufile_json) {
  const auto json = nlohmann::json::parse(cufile_json, nullptr, /*allow_exceptions=*/false,
                                          /*ignore_comments=*/true);
  if (!json.is_object()) return false;
  const auto properties = json.find("properties");
  if (properties == json.end() || !properties->is_object()) return false;
  const auto wanted = properties->find("use_pci_p2pdma");
  return wanted != properties->end() && wanted->is_boolean() && wanted->get<bool>();
}

std::optional<MountedFilesystem> filesystem_of(std::string_view mountinfo,
                                               const std::string& path) {
  // "36 35 98:0 /root /mnt/point rw,noatime master:1 - ext4 /dev/sda1 rw,data=ordered": proc(5).
  std::optional<MountedFilesystem> found;
  std::size_t longest = 0;
  for (const auto& line : split(mountinfo, '\n')) {
    const auto fields = split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 7 || fields.end() - dash < 4) continue;
    const std::string& point = fields[4];
    const bool holds = point == "/" || path == point || path.starts_with(point + "/");
    // Of two at one point the later hides the earlier.
    if (!holds || point.size() < longest) continue;
    longest = point.size();
    found = MountedFilesystem{dash[1], dash[3]};
  }
  return found;
}

std::optional<Disk> disk_of(const MachineView& machine, unsigned major_number,
                            unsigned minor_number) {
  std::string folder = machine.resolved("/sys/dev/block/" + std::to_string(major_number) + ":" +
                                        std::to_string(minor_number));
  if (folder.empty()) return std::nullopt;
  if (machine.has(folder + "/partition")) folder = parent_path(folder);
  Disk disk{folder.substr(folder.rfind('/') + 1), machine.text(folder + "/md/level").value_or(""),
            false, machine.text(folder + "/queue/rotational") == "1"};
  const auto slaves = machine.names(folder + "/slaves");
  disk.is_nvme = slaves.empty() && disk.name.starts_with("nvme");
  if (slaves.empty()) return disk;
  disk.is_nvme = true;
  for (const auto& slave : slaves) {
    const auto number = split(machine.text(folder + "/slaves/" + slave + "/dev").value_or(""), ':');
    unsigned numbers[2] = {0, 0};
    for (std::size_t i = 0; i < 2 && i < number.size(); ++i) {
      std::from_chars(number[i].data(), number[i].data() + number[i].size(), numbers[i]);
    }
    const auto below = disk_of(machine, numbers[0], numbers[1]);
    disk.is_nvme = disk.is_nvme && below && below->is_nvme;
    if (below && disk.raid.empty()) disk.raid = below->raid;
  }
  return disk;
}

std::vector<Check> kernel_checks(const MachineView& machine, pid_t daemon) {
  constexpr Check (*kChecks[])(const MachineView&, pid_t) = {kernel,   fuse,      passthrough,
                                                             io_uring, cachestat, memlock};
  std::vector<Check> checks;
  for (const auto& check : kChecks) checks.push_back(check(machine, daemon));
  return checks;
}

std::vector<Check> driver_checks(const MachineView& machine,
                                 const std::vector<std::string>& pci_addresses) {
  const auto driver = parse_driver(machine.text("/proc/driver/nvidia/version").value_or(""));
  if (!driver) {
    return {{Verdict::No, "driver", "no NVIDIA driver is loaded",
             "install NVIDIA's open kernel modules, if this machine has a GPU"}};
  }
  return {{Verdict::Ok, "driver",
           driver->version + (driver->is_open ? ", open modules" : ", closed modules")},
          nvidia_fs(machine),
          p2pdma(machine, *driver, pci_addresses),
          iommu(machine)};
}

std::vector<Check> disk_checks(const MachineView& machine, const std::string& path, dev_t device) {
  return {filesystem(machine, path), disk(machine, device), udev(machine, device)};
}

}  // namespace sluice
