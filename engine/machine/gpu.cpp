#include "engine/machine/gpu.h"

#include <algorithm>
#include <cctype>
#include <fstream>

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
  std::string name(address);
  std::ranges::transform(name, name.begin(), [](unsigned char digit) {
    return static_cast<char>(std::tolower(digit));
  });
  std::ifstream file(sysfs / "bus/pci/devices" / name / "numa_node");
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

}  // namespace lockstep
