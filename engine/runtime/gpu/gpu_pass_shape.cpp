#include "engine/runtime/gpu/gpu_pass_shape.h"

#include <algorithm>
#include <bit>
#include <variant>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_product.h"

namespace lockstep {
namespace {

// Rounding at most doubles a number. It is what sums between GPUs are sent by: of one token as of
// eight they would go eight times beyond what was measured to choose their way. Grids of whatever
// walks over rows, and of experts' products, fit as well; products' kernels are made for 8, 16, 32
// and 64 tokens, and fewer are eight to them. Each step is several recordings.
constexpr uint32_t kTokenSteps[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

// A product of so many is one kernel for each run of parts of one format.
constexpr uint32_t kFewTokens = 8;

// Fewer units are so many, which saves recordings: with a rank's 8 KV heads they are no more blocks
// than a GPU has multiprocessors, and those without keys end at once. Not measured.
constexpr uint32_t kFewestUnits = 16;

// The GPU's memory that a launch in a recording takes. Not measured; published: around 10 KB
// with drivers from CUDA 12.4 on (64 KB with older ones, which this program does not run with).
constexpr size_t kRecordedLaunchBytes = 16 << 10;

uint32_t round_up_tokens(uint32_t tokens) {
  if (tokens == 0) return 0;
  for (const uint32_t step : kTokenSteps) {
    if (tokens <= step) return step;
  }
  return tokens;
}

uint32_t round_up_units(uint32_t units) {
  return units == 0 ? 0 : std::max(kFewestUnits, std::bit_ceil(units));
}

// At the end of a pass with logits: a barrier, two that search for candidates, two that draw.
constexpr size_t kSearchLaunches = 5;

// Kernels of a step in a pass that only generates, at most: what Builder makes of it. A product
// takes one for each run of parts of one format.
template <typename Work>
size_t launches_of(const Work&) {
  return 1;
}
size_t launches_of(const ClearPagesStep&) {
  return 0;
}
size_t launches_of(const HandOverStep&) {
  return 0;
}
size_t launches_of(const EmbedStep& step) {
  return step.gather ? 2 : 1;
}
size_t launches_of(const FormStep& step) {
  return step.output.gather ? 2 : 1;
}
size_t launches_of(const NormSumsStep& step) {
  return step.gather ? 2 : 0;
}
size_t launches_of(const AttendStep& step) {
  return forms_f32_apart(step) ? 2 : 1;
}
size_t launches_of(const NormScaleStep& step) {
  return step.columns == step.norm.columns ? 1 : 2;
}
size_t runs_of(const MatmulStep& step) {
  size_t count = 0;
  for (size_t part = 0; part < step.parts.size(); ++part) {
    const auto format = [&](size_t index) { return step.parts[index].matrix.format; };
    const bool begins = part % kGpuProductParts == 0 || format(part) != format(part - 1);
    count += begins ? 1 : 0;
  }
  return count;
}
size_t launches_of(const MatmulStep& step) {
  const auto* const gate = std::get_if<GateFinish>(&step.finish);
  return runs_of(step) + (gate != nullptr && !is_fused_gate(*gate, step.parts) ? 1 : 0);
}
size_t launches_of(const RouteStep& step) {
  return step.scores ? 2 : 0;
}
size_t launches_of(const ExpertGateStep& step) {
  return step.is_one_product_on_gpus() ? 1 : 3;
}
size_t launches_of(const ExpertProductStep& step) {
  return step.part.is_plain() && !step.routing.weighs_inputs ? 1 : 2;
}
size_t launches_of(const ExpertSumStep&) {
  return 2;
}

}  // namespace

bool forms_f32_apart(const AttendStep& step) {
  return step.leaves_output && step.forms && step.forms->forms[ActivationForm::kF32].is_read();
}

bool is_fused_gate(const GateFinish& gate, const std::vector<MatmulPart>& parts) {
  return gate.activation == ActivationFunction::kSilu && parts.size() == 2 &&
         parts[0].matrix.format == parts[1].matrix.format &&
         parts[0].matrix.rows == parts[1].matrix.rows;
}

bool reads_sum(const NormStep& norm, const AllReduceStep& sum) {
  return sum.rows == Rows::kTokens && sum.output == norm.residual &&
         sum.output_stride == norm.residual_stride && sum.columns == norm.columns;
}

GpuPassShape round_up_shape(const GpuBatchCounts& counts) {
  const bool alone = counts.sequences == counts.tokens && counts.split == counts.tokens;
  return {.tokens = round_up_tokens(counts.tokens),
          .logits = round_up_tokens(counts.logits),
          .units = round_up_units(counts.attention_units),
          .prompt_tiles = counts.prompt_tiles,
          .prompted = counts.tokens - counts.generated,
          .generated = counts.generated == counts.tokens ? 0 : counts.generated,
          .walked = counts.split < counts.generated,
          .attends_at_once = alone};
}

std::vector<GpuPassShape> generation_shapes(uint32_t sequences, uint32_t units) {
  std::vector<GpuPassShape> shapes;
  uint32_t before = 0;  // the rounded numbers of tokens begin above it
  for (const uint32_t tokens : kTokenSteps) {
    if (before >= sequences) break;
    // Each token has a unit at least, and no more than it can have.
    const uint32_t most = round_up_units(std::min(units, tokens * kGpuTokenUnits));
    for (uint32_t rounded = round_up_units(before + 1); rounded <= most; rounded *= 2) {
      shapes.push_back(
          {.tokens = tokens, .logits = tokens, .units = rounded, .attends_at_once = true});
    }
    before = tokens;
  }
  return shapes;
}

std::vector<GpuPassShape> generation_shapes(const Plan& plan) {
  const GpuBatchLimits& limits = std::get<GpuAreas>(plan.areas).limits;
  const size_t sequences = std::min(limits.sequences, plan.chunk_tokens);
  return generation_shapes(static_cast<uint32_t>(sequences),
                           static_cast<uint32_t>(limits.attention_units));
}

size_t generation_launches(const Plan& plan) {
  size_t count = kSearchLaunches;
  const AllReduceStep* sum = nullptr;  // if it is the last launch so far
  size_t sum_norms = 0;
  for (const Step& step : plan.steps) {
    const auto* const norm = std::get_if<NormStep>(&step.work);
    if (norm != nullptr && sum != nullptr && sum_norms < kGpuProductNorms &&
        reads_sum(*norm, *sum)) {
      ++sum_norms;
      continue;
    }
    const size_t launches =
        std::visit([](const auto& kind) { return launches_of(kind); }, step.work);
    count += launches;
    if (launches == 0) continue;
    sum = std::get_if<AllReduceStep>(&step.work);
    sum_norms = 0;
  }
  return count;
}

size_t recording_bytes(const Plan& plan) {
  const size_t few = generation_launches(plan);
  size_t runs = 0;
  for (const Step& step : plan.steps) {
    if (const auto* product = std::get_if<MatmulStep>(&step.work)) runs += runs_of(*product);
  }
  size_t launches = 0;
  for (const GpuPassShape& shape : generation_shapes(plan)) {
    // A product of many tokens may be two kernels; one of F32 weights is one for every 64 tokens.
    launches += few + (shape.tokens <= kFewTokens ? 0 : runs * divide_up(shape.tokens, 64U));
  }
  return launches * kRecordedLaunchBytes;
}

}  // namespace lockstep
