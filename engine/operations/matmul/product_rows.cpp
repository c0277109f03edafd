#include "engine/operations/matmul/product_rows.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/pass/form_writer.h"

namespace lockstep {
namespace {

// The product of those rows that are in `rows`.
ProductRows among(const ProductRows& product, Range rows) {
  const size_t skipped = rows.begin - product.rows.begin;
  return {.rows = rows,
          .generated_end = product.generated_end,
          .input = product.input,
          .input_begin = product.input_begin + skipped,
          .factors = product.factors == nullptr ? nullptr : product.factors + skipped};
}

// The first row of a prompted token.
size_t first_prompted(const ProductRows& product) {
  return std::clamp(product.generated_end, product.rows.begin, product.rows.end);
}

// The factors of a product's rows: their own times the matrix's scale.
class RowFactors {
 public:
  RowFactors(const MatmulPart& part, const ProductRows& product) : factors_(product.factors) {
    const float scale = part.matrix.scale;
    if (scale == 1) return;
    const size_t count = product.rows.size();
    CHECK(count <= kMostProductRows, "a product of {} rows", count);
    for (size_t row = 0; row < count; ++row) {
      scaled_[row] = factors_ == nullptr ? scale : factors_[row] * scale;
    }
    factors_ = scaled_;
  }
  RowFactors(const RowFactors&) = delete;
  RowFactors& operator=(const RowFactors&) = delete;

  const float* data() const { return factors_; }

 private:
  const float* factors_;
  float scaled_[kMostProductRows];
};

// Bytes from one element of a row to the next; of kQ8 from quant to quant.
size_t bytes_of_element(ActivationForm form) {
  switch (form) {
    case ActivationForm::kF32:
      return sizeof(float);
    case ActivationForm::kQ8:
      return sizeof(int8_t);
    case ActivationForm::kBf16:
    case ActivationForm::kBf16Dots:
      break;
  }
  return sizeof(uint16_t);
}

// One part's panels for rows that share a form of the input.
MatmulArguments arguments_of(const MatmulPart& part, Range panels, const ProductRows& product,
                             const RowFactors& factors, ActivationForm form, const Pass& pass) {
  const FormBuffer& input = product.input[form];
  return {.matrix = pass.matrix_at(part.matrix),
          .panel_begin = panels.begin,
          .panel_end = panels.end,
          .input = pass.at(input.rows) + product.input_begin * input.stride_bytes +
                   part.first_column * bytes_of_element(form),
          .input_stride_bytes = input.stride_bytes,
          .row_columns = product.input.columns,
          .row_first = part.first_column,
          .token_count = product.rows.size(),
          .output = pass.at(part.output) + product.rows.begin * part.output_stride,
          .output_stride = part.output_stride,
          .token_scales = factors.data(),
          .bias = pass.at(part.bias),
          .accumulate = part.accumulate,
          .panel_streams = pass.panel_streams};
}

void multiply(const MatmulPart& part, Range panels, const ProductRows& product, ActivationForm form,
              const Pass& pass) {
  if (product.rows.empty()) return;
  const MatmulKernel kernel = matmul_kernel(pass.kernels, part.matrix.format, form);
  const RowFactors factors(part, product);
  kernel(arguments_of(part, panels, product, factors, form, pass));
}

// Calls compute(row, first column, count, values) for the columns of each row, and writes the
// values in their forms.
template <typename Compute>
void write_activation(const FormsOutput& output, Range columns, const ProductRows& product,
                      const Pass& pass, Compute compute) {
  constexpr size_t kColumnsAtOnce = 512;
  alignas(64) float values[kColumnsAtOnce];
  for (size_t row = product.rows.begin; row < product.rows.end; ++row) {
    const bool generated = row < product.generated_end;
    for (size_t begin = columns.begin; begin < columns.end; begin += kColumnsAtOnce) {
      const Range stretch = {begin, std::min(columns.end, begin + kColumnsAtOnce)};
      compute(row, begin, stretch.size(), values);
      write_forms(pass, values, output, row, stretch, generated);
    }
  }
}

void finish_gate(const GateParts& parts, const Activation& activation, const FormsOutput& output,
                 Range columns, const ProductRows& product, const Pass& pass) {
  const auto& [gate, up] = parts;
  const float* const gate_rows = pass.at(gate.output);
  const float* const up_rows = pass.at(up.output);
  const GateKernel kernel = gate_kernel(pass.kernels, activation.function);
  write_activation(output, columns, product, pass,
                   [&](size_t row, size_t begin, size_t count, float* values) {
                     kernel(gate_rows + row * gate.output_stride + begin,
                            up_rows + row * up.output_stride + begin, count,
                            activation.parameters.data(), values);
                   });
}

// True where tokens of this kind go into a gate, and what follows on, as kBf16 alone.
bool is_gated_in_bf16(const GateParts& parts, const FormsOutput& output, bool generated) {
  for (const MatmulPart* part : {&parts.gate, &parts.up}) {
    const ProductForms& forms = part->forms;
    if ((generated ? forms.generated : forms.prompted) != ActivationForm::kBf16) return false;
  }
  for (size_t form = 0; form < kActivationFormCount; ++form) {
    const FormBuffer& buffer = output.forms.buffers[form];
    const bool is_bf16 = static_cast<ActivationForm>(form) == ActivationForm::kBf16;
    if ((generated ? buffer.generated : buffer.prompted) != is_bf16) return false;
  }
  return true;
}

// The first of the rows that one kernel takes from a gate's input to its output: the others need
// one for each of its operations. rows.end if there is no such kernel, or few rows for it.
size_t first_gated(const GateParts& parts, const FormsOutput& output, const ProductRows& product,
                   const Pass& pass) {
  const Range rows = product.rows;
  const Format format = parts.gate.matrix.format;
  if (parts.up.matrix.format != format) return rows.end;
  if (gated_kernel(pass.kernels, format) == nullptr) return rows.end;
  if (!is_gated_in_bf16(parts, output, /*generated=*/false)) return rows.end;
  const bool all = is_gated_in_bf16(parts, output, /*generated=*/true);
  const size_t first = all ? rows.begin : first_prompted(product);
  return rows.end - first > kStaticRows ? first : rows.end;
}

void multiply_gated(const GateParts& parts, const FormsOutput& output, Range panels,
                    const ProductRows& product, const Pass& pass) {
  const RowFactors gate_factors(parts.gate, product);
  const RowFactors up_factors(parts.up, product);
  const auto arguments = [&](const MatmulPart& part, const RowFactors& factors) {
    return arguments_of(part, panels, product, factors, ActivationForm::kBf16, pass);
  };
  const FormBuffer& rows = output.forms[ActivationForm::kBf16];
  gated_kernel(pass.kernels, parts.gate.matrix.format)(
      {.gate = arguments(parts.gate, gate_factors),
       .up = arguments(parts.up, up_factors),
       .output = pass.at(rows.rows) + product.rows.begin * rows.stride_bytes +
                 output.first_column * sizeof(uint16_t),
       .output_stride_bytes = rows.stride_bytes});
  complete_bf16(pass, output, product.rows, columns_of(panels, parts.gate.matrix));
}

}  // namespace

Range columns_of(Range panels, const PlannedMatrix& matrix) {
  return {panels.begin * kPanelRows, std::min(panels.end * kPanelRows, matrix.rows)};
}

void multiply(const MatmulPart& part, Range panels, const ProductRows& product, const Pass& pass) {
  if (part.remote) {
    const size_t columns = columns_of(panels, part.matrix).size();
    pass.counters.exchange_bytes.add(product.rows.size() * columns * sizeof(float));
  }
  if (part.forms.prompted == part.forms.generated) {
    return multiply(part, panels, product, part.forms.prompted, pass);
  }
  const size_t border = first_prompted(product);
  multiply(part, panels, among(product, {product.rows.begin, border}), part.forms.generated, pass);
  multiply(part, panels, among(product, {border, product.rows.end}), part.forms.prompted, pass);
}

void multiply_gate(const GateParts& parts, const Activation& activation, const FormsOutput& output,
                   Range panels, const ProductRows& product, const Pass& pass) {
  const size_t gated = activation == ActivationFunction::kSilu
                           ? first_gated(parts, output, product, pass)
                           : product.rows.end;
  const ProductRows others = among(product, {product.rows.begin, gated});
  for (const MatmulPart* part : {&parts.gate, &parts.up}) multiply(*part, panels, others, pass);
  finish_gate(parts, activation, output, columns_of(panels, parts.gate.matrix), others, pass);
  if (gated == product.rows.end) return;
  multiply_gated(parts, output, panels, among(product, {gated, product.rows.end}), pass);
}

void multiply_activated(const MatmulPart& part, const Activation& activation,
                        const FormsOutput& output, Range panels, const ProductRows& product,
                        const Pass& pass) {
  multiply(part, panels, product, pass);
  const float* const rows = pass.at(part.output);
  const ActivationKernel kernel = activation_kernel(pass.kernels, activation.function);
  write_activation(output, columns_of(panels, part.matrix), product, pass,
                   [&](size_t row, size_t begin, size_t count, float* values) {
                     kernel(rows + row * part.output_stride + begin, count,
                            activation.parameters.data(), values);
                   });
}

}  // namespace lockstep
