// The cost of one exchange between ranks: a token's activation given to all, and a barrier of all
// ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/result.h"
#include "engine/machine/rank_places.h"
#include "engine/runtime/ranks.h"

namespace lockstep {

// The repeats of one measurement, if kFewRepeats of them took `seconds`: so many that it is long
// against the clock and what begins and ends it, and short for a person, also where the system
// shares the processors.
inline constexpr size_t kFewRepeats = 4;
size_t repeats_for(double seconds);

enum class ExchangeKind : uint8_t { kBarrier, kAllGather, kAllReduce };

// Ranks that exchange, without a model.
class ExchangeMeasurement {
 public:
  // For tensors of at most `most_bytes`. Fails with kMachineRefused.
  static Result<ExchangeMeasurement> make(std::span<const RankPlace> places, size_t most_bytes);

  // Seconds of one exchange of a tensor of `bytes`, its barrier included: the median of several
  // rounds of many. As in a pass, every worker changes what it gives before, and looks at all it
  // has got after, one word of every cache line.
  double measure(ExchangeKind kind, size_t bytes);

 private:
  ExchangeMeasurement(std::unique_ptr<Ranks> ranks, size_t most_bytes)
      : ranks_(std::move(ranks)), most_bytes_(most_bytes) {}

  std::unique_ptr<Ranks> ranks_;
  size_t most_bytes_;
};

// Seconds of one all_gather in which the ranks together push `bytes`, each worker its part. 0 for
// one rank. Fails with kMachineRefused.
Result<double> measure_exchange(std::span<const RankPlace> places, size_t bytes);

}  // namespace lockstep
