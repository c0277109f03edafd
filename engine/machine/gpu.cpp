#include "engine/machine/gpu.h"

#include <fstream>

#include "engine/base/ascii.h"

namespace lockstep {

std::string_view link_name(GpuLink link) {
  switch (link) {
    case GpuLink::kSelf:
      return "self";
    case GpuLink::kNvlink:
      return "NVLink";
    case GpuLink::kPeer:
      return "peer access";
    case GpuLink::kHost:
      return "through the host";
  }
  return "";
}

int node_of_pci_device(const std::filesystem::path& sysfs, std::string_view address) {
  // The runtime writes hexadecimal digits in capitals, the kernel does not.
  const std::string name = ascii_lower(address);
  std::ifstream file(sysfs / "bus/pci/devices" / name / "numa_node");
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

}  // namespace lockstep
