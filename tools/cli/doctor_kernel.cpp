// SPDX-License-Identifier: BSD-2-Clause
// Checks the kernel, its limits and the rights of the daemon or of the user who would mount.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/units.hpp"
#include "fs/fuse/session.hpp"
#include "tools/cli/doctor.hpp"

namespace sluice::tools::cli {
namespace {

using Verdict = Check::Verdict;

constexpr std::uint64_t kEnoughLocked = 64 << 20;
constexpr std::uint64_t kEnoughFiles = 16384;

Check kernel(const MachineView& machine, pid_t) {
  const auto release = machine.text("/proc/sys/kernel/osrelease").value_or("");
  const KernelVersion version = parse_kernel(release);
  if (version >= KernelVersion{6, 9}) return {Verdict::Ok, "kernel", release};
  return {Verdict::Warn, "kernel",
          release +
              ": older than 6.9, so the daemon copies all data (no passthrough), and a crash "
              "of the daemon ends the mount",
          "use kernel 6.9 or newer"};
}

Check fuse(const MachineView& machine, pid_t) {
  if (machine.has("/dev/fuse")) return {Verdict::Ok, "fuse", "/dev/fuse exists"};
  const auto known = machine.text("/proc/filesystems").value_or("");
  if (known.find("\tfuse\n") != std::string::npos) {
    return {Verdict::Fail, "fuse", "the kernel supports it, but /dev/fuse does not exist",
            "give the container the device: docker run --device /dev/fuse"};
  }
  return {Verdict::Fail, "fuse", "the kernel module is not loaded", "modprobe fuse"};
}

Check passthrough(const MachineView& machine, pid_t) {
  const auto has = kernel_has(machine, "fuse_passthrough_");
  if (!has) {
    return {Verdict::Warn, "passthrough", "unknown: /proc/kallsyms is not readable",
            "mount a pool and see sluice status"};
  }
  if (*has) return {Verdict::Ok, "passthrough", "the kernel can read and write tiers directly"};
  return {Verdict::Warn, "passthrough", "the kernel, or its fuse module, does not support it",
          "use kernel 6.9 or newer with CONFIG_FUSE_PASSTHROUGH"};
}

Check cachestat(const MachineView&, pid_t) {
#ifdef SYS_cachestat
  constexpr long kNumber = SYS_cachestat;
#else
  constexpr long kNumber = 451;  // the same on every architecture
#endif
  // With an invalid descriptor a kernel that has the call returns EBADF.
  if (::syscall(kNumber, -1, nullptr, nullptr, 0) < 0 && errno == EBADF) {
    return {Verdict::Ok, "cachestat", "works: the content of the page cache is known"};
  }
  return {
      Verdict::Warn, "cachestat",
      errno == ENOSYS ? "the kernel does not have it: the content of the page cache is unknown"
                      : "refused: the content of the page cache is unknown",
      errno == ENOSYS ? "use kernel 6.5 or newer" : "allow cachestat(2) in the seccomp profile"};
}

// A file of the daemon in /proc, or of this process, whose limits and rights a daemon started from
// here would inherit.
std::string process_file(const MachineView& machine, pid_t daemon, const std::string& name) {
  const std::string who = daemon > 0 ? std::to_string(daemon) : "self";
  return machine.text("/proc/" + who + "/" + name).value_or("");
}

std::string whose(pid_t daemon) { return daemon > 0 ? "the daemon" : "this process"; }

// The fix if process_file() is empty: only the files of other processes may be hidden.
std::string to_read_it(pid_t daemon) {
  return daemon > 0 ? "run this as root, outside of containers" : "mount -t proc proc /proc";
}

Check memlock(const MachineView& machine, pid_t daemon) {
  const auto limit = parse_limit(process_file(machine, daemon, "limits"), "Max locked memory");
  if (!limit) {
    return {Verdict::Warn, "memlock", "cannot read the limit of " + whose(daemon),
            to_read_it(daemon)};
  }
  if (limit->soft == kUnlimited) {
    return {Verdict::Ok, "memlock", whose(daemon) + " may lock any amount of memory"};
  }
  const bool enough = limit->soft >= kEnoughLocked;
  const std::string words = whose(daemon) + " may lock " + format_size(limit->soft);
  if (enough || (daemon == 0 && ::geteuid() == 0)) {
    return {Verdict::Ok, "memlock", words + (enough ? "" : "; root may lock any amount")};
  }
  return {Verdict::Warn, "memlock", words,
          "ulimit -l unlimited; for a container --ulimit memlock=-1; for a service "
          "LimitMEMLOCK=infinity"};
}

Check open_files(const MachineView& machine, pid_t daemon) {
  const auto limit = parse_limit(process_file(machine, daemon, "limits"), "Max open files");
  if (!limit) {
    return {Verdict::Warn, "nofile", "cannot read the limit of " + whose(daemon),
            to_read_it(daemon)};
  }
  // A daemon raises its soft limit to the hard limit.
  const std::uint64_t most = daemon > 0 ? limit->soft : limit->hard;
  const std::string words =
      (daemon > 0 ? "the daemon" : "a daemon started from here") + std::string(" may have ") +
      (most == kUnlimited ? "any number of" : std::to_string(most)) + " descriptors";
  if (most < kEnoughFiles) {
    return {Verdict::Warn, "nofile", words + ": each open file needs one",
            "ulimit -Hn 1048576; for a service LimitNOFILE=1048576"};
  }
  const auto all = parts_of(machine.text("/proc/sys/fs/file-nr").value_or(""), '\t');
  if (all.size() == 3) {
    const auto used = parse_size(all[0]).value_or(0), top = parse_size(all[2]).value_or(0);
    if (used > top / 10 * 9) {
      return {Verdict::Warn, "nofile",
              "the machine has " + all[0] + " of at most " + all[2] + " files open",
              "sysctl fs.file-max=" + std::to_string(top * 4)};
    }
  }
  return {Verdict::Ok, "nofile", words};
}

Check leases(const MachineView& machine, pid_t) {
  if (machine.text("/proc/sys/fs/leases-enable").value_or("1") != "0") {
    return {Verdict::Ok, "leases", "enabled: moves notice when a file is in use"};
  }
  return {Verdict::Fail, "leases",
          "disabled: a file moves only after a minute without use, and programs that have it "
          "mapped are not noticed",
          "sysctl fs.leases-enable=1"};
}

Check request_size(const MachineView& machine, pid_t) {
  constexpr std::uint64_t kUsualPages = 256;
  const auto pages = machine.number("/proc/sys/fs/fuse/max_pages_limit");
  const auto size = format_size(pages.value_or(kUsualPages) *
                                static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  if (pages.value_or(kUsualPages) >= kUsualPages) {
    return {Verdict::Ok, "requests", "up to " + size};
  }
  return {Verdict::Warn, "requests", "at most " + size + ": large reads are split",
          "sysctl fs.fuse.max_pages_limit=" + std::to_string(kUsualPages)};
}

Check libfuse(const MachineView&, pid_t) { return {Verdict::Ok, "libfuse", libfuse_version()}; }

Check rights(const MachineView& machine, pid_t daemon) {
  constexpr unsigned kReadSearch = 2, kSysAdmin = 21, kLease = 28;  // capabilities(7)
  if (daemon == 0 && ::geteuid() != 0) {
    return {Verdict::Ok, "rights", "not root: this user cannot mount"};
  }
  for (const auto& line : parts_of(process_file(machine, daemon, "status"), '\n')) {
    if (!line.starts_with("CapEff:")) continue;
    const auto bits = std::strtoull(line.c_str() + std::strlen("CapEff:"), nullptr, 16);
    const auto lacks = [&](unsigned capability) { return ((bits >> capability) & 1) == 0; };
    const auto add = [](const char* name) {
      return std::string("give it CAP_") + name + "; for a container --cap-add " + name;
    };
    if (lacks(kSysAdmin)) {
      return {Verdict::Fail, "rights", "no CAP_SYS_ADMIN: cannot mount or use passthrough",
              add("SYS_ADMIN")};
    }
    if (lacks(kReadSearch)) {
      return {Verdict::Warn, "rights",
              "no CAP_DAC_READ_SEARCH: cannot open files by handle; each file that the kernel "
              "knows needs a descriptor",
              add("DAC_READ_SEARCH")};
    }
    if (lacks(kLease)) {
      return {Verdict::Warn, "rights",
              "no CAP_LEASE: no leases on files of other users, so these rarely move",
              add("LEASE")};
    }
    return {Verdict::Ok, "rights", "may mount, open files by handle and take leases"};
  }
  return {Verdict::Warn, "rights", "cannot read the capabilities of " + whose(daemon),
          to_read_it(daemon)};
}

}  // namespace

std::string_view name_of(Check::Verdict verdict) {
  switch (verdict) {
    case Check::Verdict::Ok:
      return "ok";
    case Check::Verdict::Warn:
      return "warn";
    case Check::Verdict::Fail:
      return "fail";
  }
  return "?";
}

std::vector<Check> kernel_checks(const MachineView& machine, pid_t daemon) {
  constexpr Check (*kChecks[])(const MachineView&, pid_t) = {
      kernel,    fuse,    libfuse,    rights, passthrough,
      cachestat, memlock, open_files, leases, request_size,
  };
  std::vector<Check> checks;
  for (const auto& check : kChecks) checks.push_back(check(machine, daemon));
  return checks;
}

}  // namespace sluice::tools::cli
