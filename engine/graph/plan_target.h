// A plan's dependence on the device that runs it: a body for processors and one for GPUs. The
// planner asks it at plan time alone; options_on() chooses it by a rank's place.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/graph/activation_buffers.h"
#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/split.h"
#include "engine/tensor/format.h"

namespace lockstep {

struct PlanOptions;

// Areas that one step alone needs.
class StepAreas {
 public:
  explicit StepAreas(ActivationBuffers& activations) : activations_(activations) {}

  Stretch take(ActivationForm form, Arena arena, size_t columns, size_t row_count);
  Stretch take_f32(Arena arena, size_t columns, size_t row_count) {
    return take(ActivationForm::kF32, arena, columns, row_count);
  }
  // After the step: all that have been taken since the last call.
  void release();

 private:
  ActivationBuffers& activations_;
  std::vector<Stretch> taken_;
};

// One rank's part of a plan that is being made.
struct PlanSubject {
  const Graph& graph;
  const Split& split;
  size_t rank = 0;
  const PlanOptions& options;
};

// Stateless.
class PlanTarget {
 public:
  PlanTarget() = default;
  PlanTarget(const PlanTarget&) = delete;
  PlanTarget& operator=(const PlanTarget&) = delete;
  virtual ~PlanTarget() = default;

  // The size of a matrix in memory, and what each weight is aligned to.
  virtual size_t matrix_bytes(Format format, size_t rows, size_t columns) const = 0;
  virtual size_t weight_alignment() const = 0;

  // Before the steps: the device's own areas, which are never released. `kv`: the rank's.
  virtual DeviceAreas place_areas(const PlanSubject& subject, const KvLayout& kv,
                                  ActivationBuffers& activations) const = 0;
  // The same once all steps of the plan are made, behind everything else of the scratch arena.
  virtual void place_last_areas(const PlanOptions& options, Plan& plan) const = 0;

  // True where the results of a gate's products are never written: what follows takes them.
  virtual bool fuses_gate(const ExpertGateStep& step) const = 0;
  // For the step of a rank that has experts; what it needs beside its input and outputs.
  virtual std::optional<GatheredRows> place_gathered(const ExpertGateStep& step,
                                                     const PlanOptions& options,
                                                     StepAreas& areas) const = 0;
  // `row_count`: of the step's input.
  virtual void place_products(ExpertSumStep& step, size_t row_count, const PlanOptions& options,
                              StepAreas& areas) const = 0;
};

// Matrices are PackedMatrix, areas NodeAreas.
const PlanTarget& node_plan_target();
// Matrices are GpuMatrix, areas GpuAreas.
const PlanTarget& gpu_plan_target();

// The number of query heads of a KV head, and of columns that this rank computes, in the layer of
// attention that has most of them. 0: there is no attention.
struct WidestAttention {
  size_t group = 0;
  size_t columns = 0;
};
WidestAttention widest_attention(const PlanSubject& subject);

}  // namespace lockstep
