#include "engine/machine/arithmetic_speed.h"

#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "engine/machine/arithmetic/loops.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

bool has_baseline() {
  return true;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

bool has_avx512_vnni() {
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

// Linux lends tiles to processes that ask for them.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx_bf16() {
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         may_use_tiles();
}

bool has_amx_int8() {
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
         may_use_tiles();
}

// Operations of one round: two per product, the lanes times the products that each sums up.
constexpr size_t vectors(size_t products) {
  return kVectorChains * 2 * products;
}
constexpr size_t tiles(size_t products) {
  return kTileChains * 2 * 16 * 16 * products;
}

constexpr ArithmeticLoop kLoops[] = {
    {"scalar", "f32 multiply and add", vectors(4), has_baseline, baseline_f32},
    {"avx2", "f32 multiply-add", vectors(8), has_avx2, avx2_f32},
    {"avx2", "int8 dot product", vectors(32), has_avx2, avx2_int8},
    {"avx512", "f32 multiply-add", vectors(16), has_avx512, avx512_f32},
    {"avx512", "int8 dot product", vectors(64), has_avx512_vnni, avx512_int8},
    {"avx512bf16", "bf16 dot product", vectors(32), has_avx512_bf16, avx512_bf16},
    {"amx", "bf16 tile product", tiles(32), has_amx_bf16, amx_bf16},
    {"amx", "int8 tile product", tiles(64), has_amx_int8, amx_int8},
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// By the first `count` of the workers, all at once.
double best_rate(const ArithmeticLoop& loop, Workers& workers, size_t count, double seconds) {
  constexpr double kLeastSeconds = 2e-3;  // long against the moment by which workers start apart
  const auto seconds_of = [&](size_t rounds) {
    const Clock::time_point start = Clock::now();
    workers.run([&](size_t worker) {
      if (worker < count) loop.run(rounds);
    });
    return seconds_since(start);
  };
  size_t rounds = 1024;
  while (seconds_of(rounds) < kLeastSeconds) rounds *= 2;
  double best = 0;
  const Clock::time_point start = Clock::now();
  do {
    best = std::max(best, static_cast<double>(rounds) / seconds_of(rounds));
  } while (seconds_since(start) < seconds);
  return best * static_cast<double>(loop.operations_per_round * count);
}

}  // namespace

std::span<const ArithmeticLoop> arithmetic_loops() {
  return kLoops;
}

Result<ArithmeticSpeed> measure_arithmetic(const ArithmeticLoop& loop, std::span<const int> cpus,
                                           double seconds) {
  auto workers = Workers::start(cpus);
  if (!workers) return std::unexpected(workers.error());
  ArithmeticSpeed speed;
  speed.all_cores = best_rate(loop, **workers, cpus.size(), seconds);
  speed.one_core = cpus.size() == 1 ? speed.all_cores : best_rate(loop, **workers, 1, seconds);
  return speed;
}

}  // namespace lockstep
