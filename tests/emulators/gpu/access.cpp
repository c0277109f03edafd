#include "tests/emulators/gpu/access.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "tests/emulators/gpu/addresses.h"
#include "tests/emulators/gpu/block_shared.h"
#include "tests/emulators/gpu/syntax.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {
namespace {

template <typename Function>
void for_lanes(uint32_t lanes, Function function) {
  if (lanes == kAllLanes) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) function(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) function(static_cast<uint32_t>(std::countr_zero(lanes)));
  }
}

template <typename Space, typename Element, typename Register, uint32_t kCount>
void load(Warp& warp, const Instruction& instruction) {
  HostAddresses from;
  if (!Space::find(warp, instruction, instruction.registers[kCount], instruction.immediate,
                   sizeof(Element) * kCount, Touch::kRead, from)) {
    return;
  }
  if constexpr (kCount == 1 && sizeof(Element) == sizeof(Register)) {
    if (from.in_a_row) {
      std::memcpy(warp.lanes<Register>(instruction.registers[0]), from[0],
                  kLanes * sizeof(Register));
      return;
    }
  }
  std::array<Register*, kCount> to;
  for (uint32_t k = 0; k < kCount; ++k) to[k] = warp.lanes<Register>(instruction.registers[k]);
  for_lanes(warp.active(), [&](uint32_t lane) {
    std::array<Element, kCount> elements;
    std::memcpy(elements.data(), from[lane], sizeof(elements));
    for (uint32_t k = 0; k < kCount; ++k) to[k][lane] = static_cast<Register>(elements[k]);
  });
}

template <typename Space, typename Element, typename Register, uint32_t kCount>
void store(Warp& warp, const Instruction& instruction) {
  HostAddresses to;
  if (!Space::find(warp, instruction, instruction.registers[0], instruction.immediate,
                   sizeof(Element) * kCount, Touch::kWrite, to)) {
    return;
  }
  if constexpr (kCount == 1 && sizeof(Element) == sizeof(Register)) {
    if (to.in_a_row) {
      std::memcpy(to[0], warp.lanes<Register>(instruction.registers[1]), kLanes * sizeof(Register));
      return;
    }
  }
  std::array<const Register*, kCount> from;
  for (uint32_t k = 0; k < kCount; ++k) {
    from[k] = warp.lanes<const Register>(instruction.registers[k + 1]);
  }
  for_lanes(warp.active(), [&](uint32_t lane) {
    std::array<Element, kCount> elements;
    for (uint32_t k = 0; k < kCount; ++k) elements[k] = static_cast<Element>(from[k][lane]);
    std::memcpy(to[lane], elements.data(), sizeof(elements));
  });
}

template <typename T>
std::atomic_ref<T> atomic_at(std::byte* address) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(address));
}

template <typename T>
void load_acquire(Warp& warp, const Instruction& instruction) {
  HostAddresses from;
  if (!GlobalSpace::find(warp, instruction, instruction.registers[1], instruction.immediate,
                         sizeof(T), Touch::kRead, from)) {
    return;
  }
  T* const to = warp.lanes<T>(instruction.registers[0]);
  for_lanes(warp.active(), [&](uint32_t lane) {
    to[lane] = atomic_at<T>(from[lane]).load(std::memory_order_acquire);
  });
}

template <typename T>
void store_release(Warp& warp, const Instruction& instruction) {
  HostAddresses to;
  if (!GlobalSpace::find(warp, instruction, instruction.registers[0], instruction.immediate,
                         sizeof(T), Touch::kWrite, to)) {
    return;
  }
  const T* const from = warp.lanes<const T>(instruction.registers[1]);
  for_lanes(warp.active(), [&](uint32_t lane) {
    atomic_at<T>(to[lane]).store(from[lane], std::memory_order_release);
  });
}

template <typename Element, typename Register>
void uniform_parameter(Warp& warp, const Instruction& instruction) {
  const std::vector<std::byte>& parameters = warp.block().launch.parameters;
  Element element;
  std::memcpy(&element, parameters.data() + instruction.immediate, sizeof(element));
  Register* const to = warp.lanes<Register>(instruction.registers[0]);
  for (uint32_t lane = 0; lane < kLanes; ++lane) to[lane] = static_cast<Register>(element);
}

// Calls the function with the integer type that an element's bytes are taken for, and with that of
// its register; returns what it returns, or null where the register is too small.
template <typename Function>
Handler with_types(std::string_view type, uint32_t register_bytes, Function function) {
  const auto with_register = [&]<typename Element>(std::type_identity<Element> element) -> Handler {
    if (register_bytes < sizeof(Element)) return nullptr;
    if constexpr (sizeof(Element) <= 2) {
      if (register_bytes == 2) return function(element, std::type_identity<uint16_t>{});
    }
    if constexpr (sizeof(Element) <= 4) {
      if (register_bytes == 4) return function(element, std::type_identity<uint32_t>{});
    }
    return register_bytes == 8 ? function(element, std::type_identity<uint64_t>{}) : nullptr;
  };
  const bool is_signed = type[0] == 's';
  switch (type_bytes(type)) {
    case 1:
      return is_signed ? with_register(std::type_identity<int8_t>{})
                       : with_register(std::type_identity<uint8_t>{});
    case 2:
      return is_signed ? with_register(std::type_identity<int16_t>{})
                       : with_register(std::type_identity<uint16_t>{});
    case 4:
      return is_signed ? with_register(std::type_identity<int32_t>{})
                       : with_register(std::type_identity<uint32_t>{});
    case 8:
      return with_register(std::type_identity<uint64_t>{});
    default:
      return nullptr;
  }
}

template <typename Space>
Handler find_plain(const AccessName& name, uint32_t register_bytes) {
  return with_types(
      name.type, register_bytes,
      [&]<typename Element, typename Register>(std::type_identity<Element>,
                                               std::type_identity<Register>) -> Handler {
        const auto of_count = [&]<uint32_t kCount>() -> Handler {
          if (name.is_load) return &load<Space, Element, Register, kCount>;
          if constexpr (std::is_same_v<Space, ParameterSpace> || std::is_signed_v<Element>) {
            return nullptr;
          } else {
            return &store<Space, Element, Register, kCount>;
          }
        };
        switch (name.count) {
          case 1:
            return of_count.template operator()<1>();
          case 2:
            return of_count.template operator()<2>();
          default:
            return of_count.template operator()<4>();
        }
      });
}

Handler find_ordered(const AccessName& name, uint32_t register_bytes) {
  if (name.space != "global" || name.count != 1) return nullptr;
  if (type_bytes(name.type) != register_bytes) return nullptr;
  if (register_bytes == 4) return name.is_load ? &load_acquire<uint32_t> : &store_release<uint32_t>;
  if (register_bytes == 8) return name.is_load ? &load_acquire<uint64_t> : &store_release<uint64_t>;
  return nullptr;
}

}  // namespace

std::optional<AccessName> read_access_name(std::string_view name) {
  AccessName result;
  const auto next = [&] {
    const size_t dot = name.find('.');
    const std::string_view word = name.substr(0, dot);
    name = dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
    return word;
  };
  const std::string_view kind = next();
  if (kind != "ld" && kind != "st") return std::nullopt;
  result.is_load = kind == "ld";
  std::string_view word = next();
  if (word == (result.is_load ? "acquire" : "release")) {
    result.is_ordered = true;
    const std::string_view scope = next();
    if (scope != "sys" && scope != "gpu") return std::nullopt;
    word = next();
  }
  result.space = word;
  word = next();
  const auto begins = [&](std::string_view start) { return word.substr(0, start.size()) == start; };
  // How it is cached, and that nobody writes there, changes nothing here.
  while (word == "nc" || word == "cg" || begins("L1::") || begins("L2::")) word = next();
  if (word == "v2" || word == "v4") {
    result.count = word == "v2" ? 2 : 4;
    word = next();
  }
  result.type = word;
  if (!name.empty() || type_bytes(word) == 0 || result.space.empty()) return std::nullopt;
  return result;
}

Handler find_access(const AccessName& name, uint32_t register_bytes) {
  if (name.is_ordered) return find_ordered(name, register_bytes);
  if (name.space == "global") return find_plain<GlobalSpace>(name, register_bytes);
  if (name.space == "shared") return find_plain<SharedSpace>(name, register_bytes);
  if (name.space == "local") return find_plain<LocalSpace>(name, register_bytes);
  return name.space == "param" ? find_plain<ParameterSpace>(name, register_bytes) : nullptr;
}

Handler find_uniform_parameter(std::string_view type, uint32_t register_bytes) {
  return with_types(type, register_bytes,
                    []<typename Element, typename Register>(std::type_identity<Element>,
                                                            std::type_identity<Register>) {
                      return &uniform_parameter<Element, Register>;
                    });
}

void atomic_add(Warp& warp, const Instruction& instruction) {
  HostAddresses at;
  if (!GlobalSpace::find(warp, instruction, instruction.registers[1], instruction.immediate,
                         sizeof(uint32_t), Touch::kWrite, at)) {
    return;
  }
  uint32_t* const before = warp.lanes<uint32_t>(instruction.registers[0]);
  const uint32_t* const added = warp.lanes<const uint32_t>(instruction.registers[2]);
  for_lanes(warp.active(), [&](uint32_t lane) {
    before[lane] = atomic_at<uint32_t>(at[lane]).fetch_add(added[lane], std::memory_order_acq_rel);
  });
}

}  // namespace lockstep::ptx
