// SPDX-License-Identifier: BSD-2-Clause
// What `sluice doctor` looks at: the kernel (doctor_kernel.cpp), the driver and what GPUDirect
// Storage needs (doctor_gpu.cpp), and the filesystem and disk below a directory (doctor_tier.cpp).
// Threads: immutable; each call reads the current state of the machine.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/machine.hpp"

namespace sluice::tools::cli {

struct Check {
  // Warn: it works, but not as well as it could. Fail: something does not work.
  enum class Verdict { Ok, Warn, Fail };
  Verdict verdict = Verdict::Ok;
  std::string what;      // "passthrough"
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

// Whether cuFile's configuration asks for P2PDMA. False if `text` can't be parsed.
bool asks_for_p2pdma(std::string_view cufile_json);

// The kernel and its limits. `daemon` is the process of a mount; 0: check this process instead.
std::vector<Check> kernel_checks(const MachineView& machine, pid_t daemon);
// What keeps the GPUs at these PCI addresses from using GPUDirect Storage; only the first line if
// there is no driver.
std::vector<Check> driver_checks(const MachineView& machine,
                                 const std::vector<std::string>& pci_addresses);
// What a filesystem supports as a tier, tested in the directory `path` with an unnamed file
// (O_TMPFILE), so that others see no change. One line with the reason if such a file can't be
// created.
std::vector<Check> ability_checks(const std::string& path);
// The filesystem and disk of a directory on a device. What only cuFile needs is not checked if
// there is no GPU.
enum class Gpus { None, Some };
std::vector<Check> disk_checks(const MachineView& machine, const std::string& path, dev_t device,
                               Gpus gpus);

}  // namespace sluice::tools::cli
