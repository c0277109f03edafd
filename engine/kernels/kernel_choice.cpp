#include "engine/kernels/kernel_choice.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

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

// AVX-512's row with those products; made here, where no instruction of either is used.
const KernelTable& avx512bf16_kernel_table() {
  static const KernelTable table = [] {
    const KernelTable& pairs = avx512bf16_pair_kernels();
    KernelTable row = avx512_kernel_table();
    row.name = "avx512bf16";
    row.has_bf16_dots = true;
    row.matmul_bf16 = pairs.matmul_bf16;
    row.matmul_bf16_dots = pairs.matmul_bf16_dots;
    return row;
  }();
  return table;
}

}  // namespace

const KernelTable& amx_kernel_table() {
  static const KernelTable table = [] {
    const KernelTable& unit = amx_unit_kernels();
    KernelTable row = avx512_kernel_table();
    row.name = "amx";
    row.has_tiles = true;
    row.matmul_bf16 = unit.matmul_bf16;
    row.gated_bf16 = unit.gated_bf16;
    row.attend_bf16 = unit.attend_bf16;
    return row;
  }();
  return table;
}

namespace {

// The features that a row needs of the machine beyond x86-64-v2 and does not find, separated by
// commas; empty if it finds all. The builtin asks both the processor and whether the system saves
// the registers.
std::string missing_features(const KernelTable& table) {
  const bool amx = &table == &amx_kernel_table();
  const bool bf16_dots = amx || table.has_bf16_dots;
  const bool avx512 = bf16_dots || &table == &avx512_kernel_table();
  const bool avx2 = avx512 || &table == &avx2_kernel_table();
  std::string missing;
  const auto need = [&](bool needed, bool present, std::string_view name) {
    if (!needed || present) return;
    if (!missing.empty()) missing += ", ";
    missing += name;
  };
  need(avx2, __builtin_cpu_supports("avx2"), "avx2");
  need(avx2, __builtin_cpu_supports("fma"), "fma");
  need(avx2, __builtin_cpu_supports("f16c"), "f16c");
  need(avx2, __builtin_cpu_supports("bmi2"), "bmi2");
  need(avx512, __builtin_cpu_supports("avx512f"), "avx512f");
  need(avx512, __builtin_cpu_supports("avx512bw"), "avx512bw");
  need(avx512, __builtin_cpu_supports("avx512dq"), "avx512dq");
  need(avx512, __builtin_cpu_supports("avx512vl"), "avx512vl");
  need(avx512, __builtin_cpu_supports("avx512vnni"), "avx512_vnni");
  need(bf16_dots, __builtin_cpu_supports("avx512bf16"), "avx512_bf16");
  need(bf16_dots, __builtin_cpu_supports("avx512vbmi"), "avx512_vbmi");
  if (amx) {
    const TileSupport& tiles = tile_support();
    need(true, tiles.tiles, "amx-tile");
    need(true, tiles.bf16, "amx-bf16");
    need(true, tiles.refusal.empty(), tiles.refusal);
  }
  return missing;
}

// "scalar, avx2, ...": all rows, or only those that this machine supports.
std::string table_names(bool only_supported) {
  std::string names;
  for (const KernelTable* table : all_kernel_tables()) {
    if (only_supported && !machine_supports(*table)) continue;
    if (!names.empty()) names += ", ";
    names += table->name;
  }
  return names;
}

}  // namespace

const TileSupport& tile_support() {
  static const TileSupport support = ask();
  return support;
}

std::span<const KernelTable* const> all_kernel_tables() {
  static const std::array<const KernelTable*, 5> tables = {
      &scalar_kernel_table(), &avx2_kernel_table(), &avx512_kernel_table(),
      &avx512bf16_kernel_table(), &amx_kernel_table()};
  return tables;
}

bool machine_supports(const KernelTable& table) {
  return missing_features(table).empty();
}

// AMD's Zen 4 and 5 begin a bf16 dot product in every cycle. Intel's Granite Rapids was measured to
// take two for one, which makes it half as fast as two multiply-adds.
bool machine_prefers(const KernelTable& table) {
  return &table != &avx512bf16_kernel_table() || __builtin_cpu_is("amd");
}

size_t preferred_panel_streams() {
  return __builtin_cpu_is("intel") ? 2 : 1;
}

Result<const KernelTable*> choose_kernel_table(std::string_view name) {
  const std::span<const KernelTable* const> tables = all_kernel_tables();
  if (name.empty()) {
    const KernelTable* best = tables.front();
    for (const KernelTable* table : tables) {
      if (machine_supports(*table) && machine_prefers(*table)) best = table;
    }
    return best;
  }
  for (const KernelTable* table : tables) {
    if (table->name != name) continue;
    const std::string missing = missing_features(*table);
    if (missing.empty()) return table;
    return invalid_input("instruction set '{}' needs {}, which this machine lacks; it supports: {}",
                         name, missing, table_names(true));
  }
  return invalid_input("unknown instruction set '{}'; known are: {}", name, table_names(false));
}

}  // namespace lockstep
