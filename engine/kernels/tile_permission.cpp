#include "engine/kernels/tile_permission.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace lockstep {

namespace {

// The states of the processor that the system saves and restores (XCR0), or none if it does not say
// so.
uint64_t saved_states() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kSaysSo = 1U << 27U;  // OSXSAVE
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSaysSo) == 0) return 0;
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32U | low;
}

// Linux documentation, arch/x86/xstate.rst.
std::string ask_permission() {
  constexpr uint64_t kTileStates = uint64_t{3} << 17U;  // the configuration's, and the tiles'
  if ((saved_states() & kTileStates) != kTileStates) {
    return "a kernel that saves tile registers (Linux 5.16 or later)";
  }
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return {};
  return fmt::format("permission to use tile registers (arch_prctl: {})", strerror(errno));
}

TileSupport ask() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  TileSupport support;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    support.bf16 = (d >> 22U & 1U) != 0;
    support.tiles = (d >> 24U & 1U) != 0;
  }
  if (support.tiles && support.bf16) support.refusal = ask_permission();
  return support;
}

}  // namespace

const TileSupport& tile_support() {
  static const TileSupport support = ask();
  return support;
}

}  // namespace lockstep
