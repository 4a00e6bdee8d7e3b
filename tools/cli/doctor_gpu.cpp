// SPDX-License-Identifier: BSD-2-Clause
// Checks the requirements of GPUDirect Storage: driver, nvidia-fs or P2PDMA, IOMMU.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/cli/doctor.hpp"

namespace sluice::tools::cli {
namespace {

using Verdict = Check::Verdict;

bool has_nvidia_gpu(const MachineView& machine) {
  for (const auto& address : machine.names("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + address;
    // PCI class 3 is display; it includes GPUs without a display output.
    if (machine.text(folder + "/vendor") == "0x10de" &&
        machine.text(folder + "/class").value_or("").starts_with("0x03")) {
      return true;
    }
  }
  return false;
}

Check nvidia_fs(const MachineView& machine) {
  if (const auto version = machine.text("/proc/driver/nvidia-fs/version")) {
    return {Verdict::Ok, "nvidia-fs", *version};
  }
  if (machine.has("/sys/module/nvidia_fs")) {
    return {Verdict::Warn, "nvidia-fs", "loaded, but /proc/driver/nvidia-fs is missing",
            "see dmesg for why it did not start"};
  }
  return {Verdict::Warn, "nvidia-fs", "the module is not loaded",
          "install nvidia-fs-dkms and run modprobe nvidia-fs; or use P2PDMA instead"};
}

std::string cufile_configuration(const MachineView& machine) {
  const char* path = std::getenv("CUFILE_ENV_PATH_JSON");
  return machine.text(path != nullptr ? path : "/etc/cufile.json").value_or("");
}

// All requirements must be met. Reports the first one that is not.
Check p2pdma(const MachineView& machine, const NvidiaDriver& driver,
             const std::vector<std::string>& pci_addresses) {
  const auto no = [](std::string words, std::string fix) {
    return Check{Verdict::Warn, "p2pdma", std::move(words), std::move(fix)};
  };
  if (kernel_has(machine, "pci_p2pdma_") == false) {
    return no("the kernel does not support it", "use kernel 6.2 or newer with CONFIG_PCI_P2PDMA");
  }
  if (!driver.is_open) {
    return no("the NVIDIA driver uses the closed kernel modules",
              "install the open kernel modules, 570 or newer");
  }
  for (const auto& address : pci_addresses) {
    const auto size = machine.text("/sys/bus/pci/devices/" + address + "/p2pmem/size");
    if (size && *size != "0") continue;
    return no(
        "the driver provides no P2PDMA memory of the GPU at " + address,
        "add: options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1\" "
        "to /etc/modprobe.d/nvidia.conf; a virtual machine also needs a BAR1 as large as the "
        "GPU's memory");
  }
  const char* asked = std::getenv("CUFILE_USE_PCIP2PDMA");
  const bool by_environment = asked != nullptr && std::strcmp(asked, "true") == 0;
  if (!by_environment && !asks_for_p2pdma(cufile_configuration(machine))) {
    return no("cuFile is not configured to use it",
              "set \"properties\": {\"use_pci_p2pdma\": true} in /etc/cufile.json");
  }
  return {Verdict::Ok, "p2pdma", "kernel, driver and cuFile's configuration allow it"};
}

Check iommu(const MachineView& machine) {
  if (machine.names("/sys/class/iommu").empty()) return {Verdict::Ok, "iommu", "off"};
  for (const auto& group : machine.names("/sys/kernel/iommu_groups")) {
    const auto type = machine.text("/sys/kernel/iommu_groups/" + group + "/type").value_or("");
    if (type.starts_with("DMA")) {
      return {Verdict::Warn, "iommu",
              "translates addresses: disks cannot access GPU memory directly",
              "add iommu=pt to the kernel command line"};
    }
  }
  return {Verdict::Ok, "iommu", "on, in passthrough mode"};
}

}  // namespace

std::optional<NvidiaDriver> parse_driver(std::string_view text) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."
  for (const auto& line : parts_of(text, '\n')) {
    if (!line.starts_with("NVRM version:")) continue;
    NvidiaDriver driver{"", line.find("Open Kernel Module") != std::string::npos};
    for (const auto& word : parts_of(line, ' ')) {
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

std::vector<Check> driver_checks(const MachineView& machine,
                                 const std::vector<std::string>& pci_addresses) {
  const auto driver = parse_driver(machine.text("/proc/driver/nvidia/version").value_or(""));
  if (!driver && !pci_addresses.empty()) {
    return {{Verdict::Ok, "driver", "works; its version is unknown (no /proc/driver/nvidia)"}};
  }
  if (!driver && has_nvidia_gpu(machine)) {
    return {{Verdict::Fail, "driver", "there is an NVIDIA GPU, but its driver is not loaded",
             "install NVIDIA's open kernel modules, then modprobe nvidia"}};
  }
  if (!driver) {
    return {
        {Verdict::Ok, "driver", "no NVIDIA GPU: GPU reads use host memory, everything else works"}};
  }
  Check module = nvidia_fs(machine);
  Check direct = p2pdma(machine, *driver, pci_addresses);
  // GPUDirect Storage needs one of the two.
  const auto waive = [](Check& lacking, const Check& other) {
    if (lacking.verdict == Verdict::Ok || other.verdict != Verdict::Ok) return;
    lacking = {Verdict::Ok, lacking.what,
               lacking.words + "; not needed, because " + other.what + " works"};
  };
  waive(module, direct);
  waive(direct, module);
  return {{Verdict::Ok, "driver",
           driver->version + (driver->is_open ? ", open modules" : ", closed modules")},
          std::move(module),
          std::move(direct),
          iommu(machine)};
}

}  // namespace sluice::tools::cli
