// Loads, stores and what else touches memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tests/emulators/gpu/program.h"

namespace lockstep::ptx {

// The parts of a load's or store's name, such as "ld.global.nc.L1::no_allocate.v4.u32".
struct AccessName {
  bool is_load = true;
  bool is_ordered = false;  // acquire or release
  std::string_view space;
  std::string_view type;
  uint32_t count = 1;  // elements
};

// Empty: nothing that is known.
std::optional<AccessName> read_access_name(std::string_view name);

// Runs such an access with registers of so many bytes a lane. Written: the elements; read: the
// address, or the address and the elements. Null: there is none.
Handler find_access(const AccessName& name, uint32_t register_bytes);

// A parameter of the launch, the same for all lanes; the immediate is its place. Null: none of that
// type.
Handler find_uniform_parameter(std::string_view type, uint32_t register_bytes);

// atom.acq_rel.gpu.global.add.u32: written: what was there; read: address, what is added.
void atomic_add(Warp& warp, const Instruction& instruction);

// cp.async: read: target in shared memory, source in global memory; the immediate is the upper half
// for the target's offset, the lower half for the source's (both signed).
template <uint32_t kBytes>
void copy_later(Warp& warp, const Instruction& instruction);
void commit_copies(Warp& warp, const Instruction& instruction);
// All groups but the last `immediate` ones.
void wait_for_copies(Warp& warp, const Instruction& instruction);

}  // namespace lockstep::ptx
