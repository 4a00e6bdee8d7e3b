// SPDX-License-Identifier: BSD-2-Clause
// What `sluice doctor` looks at: the kernel (doctor_kernel.cpp), the driver and its gates to
// GPUDirect Storage (doctor_gpu.cpp), and the filesystem and disk below a directory
// (doctor_tier.cpp). Threads: pure but for the look at the machine as it is then.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/machine.hpp"

namespace sluice {

struct Check {
  // Warn: it works, but not as well as it could. Fail: something does not work.
  enum class Verdict { Ok, Warn, Fail };
  Verdict verdict = Verdict::Ok;
  std::string what;      // "io_uring"
  std::string words;     // what was found
  std::string fix = {};  // the one thing to do; empty: nothing, or nothing that can be done here

  bool operator==(const Check&) const = default;
};
std::string_view name_of(Check::Verdict verdict);  // "ok", "warn", "fail"

// Of /proc/driver/nvidia/version.
struct NvidiaDriver {
  std::string version;  // "580.65.06"
  bool is_open = false;

  bool operator==(const NvidiaDriver&) const = default;
};
std::optional<NvidiaDriver> parse_driver(std::string_view text);

// Whether cuFile's configuration asks for P2PDMA. False for a text that is none.
bool asks_for_p2pdma(std::string_view cufile_json);

// The kernel and its limits. `daemon` is the one of a mount; 0: none, this process counts.
std::vector<Check> kernel_checks(const MachineView& machine, pid_t daemon);
// What stands between the GPUs at these PCI addresses and GPUDirect Storage; only the first line if
// there is no driver.
std::vector<Check> driver_checks(const MachineView& machine,
                                 const std::vector<std::string>& pci_addresses);
// What a filesystem can do for a tier, tried in the directory `path` with a file that has no name
// and is gone at the end (O_TMPFILE): nothing that others see changes. One line that says why if
// that can't be had.
std::vector<Check> ability_checks(const std::string& path);
// The filesystem and disk of a directory on a device. What only cuFile asks for is no matter where
// there is no GPU.
enum class Gpus { None, Some };
std::vector<Check> disk_checks(const MachineView& machine, const std::string& path, dev_t device,
                               Gpus gpus);

}  // namespace sluice
