// Raw speed of an engine: what is measured, and what came of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/interface/machine_measurement.h"

namespace lockstep {

// One measurement of raw speed: no sampling, no text, nothing else running.
struct MeasurementCase {
  uint32_t depth_tokens = 0;      // already in the cache of each sequence
  uint32_t prompt_tokens = 0;     // then given as a prompt, in passes of batch_tokens at most
  uint32_t generated_tokens = 0;  // then computed one pass per token
  uint32_t sequences = 1;         // side by side
  uint32_t repeats = 1;           // of what comes after the depth
  // The depth is not computed: its keys and values are zeros, which take as long to read.
  bool zero_depth = false;
};

// The work of some passes.
struct MeasuredWork {
  double seconds = 0;
  // That they had to read: every pass the matrices it multiplies with, as the file stores them, and
  // the keys and values of its sequences up to its end. Activations are not counted.
  double bytes = 0;
  // The products with weights: 2 per element of a matrix and token, those of the output matrix
  // for tokens whose logits are wanted alone. Attention is not counted.
  double operations = 0;
  // Passes with fewer prompted tokens than batch_tokens and the prompts would allow: where GPUs
  // alone compute, a pass has a deadline, which those of serving keep as far from.
  size_t shortened_passes = 0;
};

struct Measurement {
  MeasuredWork prompt;
  MeasuredWork generate;
};

// The measured limits of the processors and memory that the engine computes with; for GPUs
// the memory alone, by its clock and width unless shares follow what was measured.
struct MachineLimits {
  double read_bytes_per_second = 0;           // its workers reading their ranks' memory
  std::vector<MachineArithmetic> arithmetic;  // of its instruction set, all its workers together
};

}  // namespace lockstep
