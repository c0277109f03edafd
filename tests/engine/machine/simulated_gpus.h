// Machines with GPUs, as values.
#pragma once

#include <string>
#include <vector>

#include "engine/machine/topology.h"
#include "tests/engine/machine/sysfs_tree.h"

namespace lockstep {

constexpr uint64_t kGiB = 1U << 30U;

// A GPU of compute capability 9.0 with 80 GiB, all of them free; without links.
inline Gpu simulated_gpu(int index, int node) {
  Gpu gpu;
  gpu.index = index;
  gpu.name = "Simulated GPU";
  gpu.uuid = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(index);
  gpu.pci_address = "0000:" + std::to_string(10 + index) + ":00.0";
  gpu.node = node;
  gpu.memory_bytes = 80 * kGiB;
  gpu.free_bytes = 80 * kGiB;
  gpu.capability_major = 9;
  gpu.multiprocessor_count = 132;
  gpu.bytes_per_second = 3.3e12;
  return gpu;
}

// Two sockets of four cores; two GPUs on each, joined by NVLink, and to those of the other socket
// not at all but for gpu1 and gpu2, by PCIe.
inline Topology machine_with_gpus() {
  using enum GpuLink;
  Topology topology = topology_of(two_socket_machine(), "0-15", "0-1");
  topology.gpus = {simulated_gpu(0, 0), simulated_gpu(1, 0), simulated_gpu(2, 1),
                   simulated_gpu(3, 1)};
  topology.gpus[0].links = {kSelf, kNvlink, kHost, kHost};
  topology.gpus[1].links = {kNvlink, kSelf, kPeer, kHost};
  topology.gpus[2].links = {kHost, kPeer, kSelf, kNvlink};
  topology.gpus[3].links = {kHost, kHost, kNvlink, kSelf};
  topology.no_gpus = "";
  return topology;
}

}  // namespace lockstep
