// The bytes and operations of passes through a model, whatever the kernels: the figures against
// which their speed is held.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/base/attention_window.h"
#include "engine/interface/measurements.h"
#include "engine/model/architecture.h"
#include "engine/operations/plan.h"
#include "engine/pass/batch.h"

namespace lockstep {

class ModelWork {
 public:
  ModelWork(const Graph& graph, const KvFormats& kv_format);

  // Adds a pass to what was done, but for its time; MeasuredWork says what is counted.
  void add(const Batch& batch, MeasuredWork& work) const;

 private:
  // The matrices of products: those that every token meets, and those that only tokens meet whose
  // logits are wanted.
  struct Matrices {
    double bytes = 0;  // as the file stores them
    double elements = 0;
  };
  Matrices layers_;
  Matrices output_;
  // All experts of a mixture together, and the part of them that one token meets.
  Matrices experts_;
  double expert_share_ = 0;
  // The cache's bytes of one token, in the layers with this window.
  struct Cache {
    AttentionWindow window;
    double bytes = 0;
  };
  std::vector<Cache> caches_;
};

}  // namespace lockstep
