// The launches of steps that are a part of no product, with every argument an address.
#pragma once

#include <cstddef>

#include "engine/graph/arenas.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_values.h"
#include "engine/operations/steps.h"

namespace lockstep {

// The rows of a value that a kernel walks over, where they are no experts'.
GpuRowSet row_set(Rows rows);

class GpuValueLaunches {
 public:
  // `addresses`: must outlive this. `batch`, `choice_rows`, `given_rows`: the rank's. `alone`: it
  // is the only rank.
  GpuValueLaunches(const ArenaAddresses& addresses, const GpuBatch& batch,
                   const uint32_t* choice_rows, const float* given_rows, bool alone)
      : addresses_(addresses),
        batch_(batch),
        choice_rows_(choice_rows),
        given_rows_(given_rows),
        alone_(alone) {}

  // CHECKs that no other rank has copies of them.
  GpuRows rows(const FormsOutput& output) const;
  // The same of rows in f32 that others may have copies of, from their first column on.
  GpuRows own_rows(const FormsOutput& output) const;
  GpuWalk walk(Rows rows, const Routing& routing) const;

  // The step has columns, or heads, on this rank.
  GpuElementwise launch(const FormStep& step) const;
  GpuElementwise launch(const ElementwiseStep& step) const;
  // Reads them where the host has written them, each once.
  GpuElementwise launch(const GivenRowsStep& step) const;
  // `sums`: the step before it, which has summed its input's chunks.
  GpuChunkSums launch(const NormSumsStep& sums) const;
  GpuWholeNorm launch(const NormScaleStep& step, const NormSumsStep& sums) const;
  GpuHeadRows launch(const HeadsStep& step) const;
  GpuHeadCopy launch(const CopyHeadsStep& step) const;
  GpuRowMeans launch(const MeanStep& step) const;
  // The activation, or the gate, of a step's products, which lie in f32.
  GpuElementwise launch_gate(const MatmulStep& step, const GateFinish& gate) const;
  GpuElementwise launch_gate(const ExpertGateStep& step) const;
  // A copy of what experts give, in its place, with the routing's weights, if these multiply what
  // experts read, and with the experts' biases.
  GpuElementwise launch_biases(const ExpertPart& part, const Routing& routing) const;
  GpuRowBiases biases_of(const ExpertPart& part) const;

 private:
  template <typename T>
  T* at(const ArenaOffset<T>& offset) const {
    return addresses_.at(offset);
  }
  GpuValues values(const PlainOutput& output) const;

  const ArenaAddresses& addresses_;
  const GpuBatch batch_;
  const uint32_t* choice_rows_;
  const float* given_rows_;
  const bool alone_;
};

}  // namespace lockstep
