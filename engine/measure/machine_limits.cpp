#include "engine/measure/machine_limits.h"

#include <utility>

#include "engine/machine/arithmetic_speed.h"
#include "engine/machine/memory_speed.h"

namespace lockstep {

Result<std::vector<MachineArithmetic>> measure_arithmetic_of(std::span<const int> cpus,
                                                             std::string_view instruction_set,
                                                             double seconds) {
  std::vector<MachineArithmetic> measured;
  for (const ArithmeticLoop& loop : arithmetic_loops()) {
    // avx512bf16 computes with avx512's instructions as well; amx's vectors are not its speed.
    if (!instruction_set.empty() && !instruction_set.starts_with(loop.instruction_set)) continue;
    if (!loop.is_supported()) continue;
    const auto speed = measure_arithmetic(loop, cpus, seconds);
    if (!speed) return std::unexpected(speed.error());
    measured.push_back({.instruction_set = std::string(loop.instruction_set),
                        .operation = std::string(loop.operation),
                        .operations_per_second = speed->all_cores,
                        .one_core_operations_per_second = speed->one_core});
  }
  return measured;
}

Result<MachineLimits> measure_limits_of(std::span<const RankPlace> places,
                                        std::string_view instruction_set) {
  constexpr double kSeconds = 0.1;  // for each figure
  MachineLimits limits;
  const auto bandwidths = measure_read_bandwidths(places);
  if (!bandwidths) return std::unexpected(bandwidths.error());
  for (const double bandwidth : *bandwidths) limits.read_bytes_per_second += bandwidth;
  std::vector<int> cpus;
  for (const RankPlace& place : places) {
    cpus.insert(cpus.end(), place.cpus.begin(), place.cpus.end());
  }
  auto arithmetic = measure_arithmetic_of(cpus, instruction_set, kSeconds);
  if (!arithmetic) return std::unexpected(arithmetic.error());
  limits.arithmetic = std::move(*arithmetic);
  return limits;
}

}  // namespace lockstep
