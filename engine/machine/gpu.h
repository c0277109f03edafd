// A GPU that this process may use, as a value: tests make one up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// How one GPU reaches the memory of another.
enum class GpuLink : uint8_t {
  kSelf,
  kNvlink,
  kPeer,  // peer access; over PCIe, unless nobody was there to say that it is NVLink
  kHost,  // through the host's memory alone
};

// "self", "NVLink", "peer access", "through the host".
std::string_view link_name(GpuLink link);

struct Gpu {
  int index = 0;                 // the number that the CUDA runtime knows it by
  std::string name;              // "NVIDIA H200"
  std::string uuid;              // "GPU-5c31...", as nvidia-smi has it
  std::string pci_address;       // "0000:65:00.0"
  int node = -1;                 // Node::id it is attached to; -1: the machine does not say
  uint64_t memory_bytes = 0;     // that a process can have at most
  uint64_t free_bytes = 0;       // of them, now
  int capability_major = 0;      // compute capability, before the point
  int capability_minor = 0;      // and after it
  int multiprocessor_count = 0;  // all of them, in use or not
  double bytes_per_second = 0;   // of its memory, by clock and bus width; 0: it does not say
  std::vector<GpuLink> links;    // to each of Topology::gpus
};

struct GpuReading {
  std::vector<Gpu> gpus;  // by index
  std::string absence;    // why there are none, half a sentence; empty where there are some
  bool possible = true;   // false: this program asks for none, whatever is plugged in
};

// The GPUs that the CUDA runtime shows this process; where there is no runtime, no driver or no
// GPU, none and the reason. Never fails: a GPU that does not answer is left out, with a warning. A
// machine without a driver is told in well under a millisecond. `sysfs` is /sys, or a copy of its
// shape.
GpuReading read_gpus(const std::filesystem::path& sysfs = "/sys");

// The node a device of the PCI bus is attached to; -1: the kernel does not say.
int node_of_pci_device(const std::filesystem::path& sysfs, std::string_view address);

}  // namespace lockstep
