#include "engine/model/weight_sink.h"

#include <algorithm>

#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

void pack_rows(const ReadExtent& read) {
  const auto& [weight, slice, to, extent, bytes, pinned] = read;
  const FormatTraits& format = traits(weight.format);
  const size_t columns = slice.column_end - slice.column_begin;
  const size_t stride = row_bytes(weight.format, weight.columns);
  const size_t panel_size = panel_bytes(weight.format, columns);
  const std::byte* rows = bytes + slice.column_begin / format.block_elements * format.block_bytes;
  for (size_t row = extent.begin; row < extent.end;) {
    const size_t place = row - slice.row_begin;
    const size_t lane = place % kPanelRows;
    const size_t count = std::min(kPanelRows - lane, extent.end - row);
    std::byte* panel = to + place / kPanelRows * panel_size;
    pack_lanes(weight.format, columns, rows + (row - extent.begin) * stride, stride, lane, count,
               panel);
    row += count;
    if (row == slice.row_end) clear_lanes(weight.format, columns, lane + count, panel);
  }
}

}  // namespace

Result<void> HostWeightSink::take(const ReadExtent& read) {
  if (read.weight.is_matrix) {
    pack_rows(read);
    return {};
  }
  const FormatTraits& format = traits(read.weight.format);
  format.dequantize(read.bytes, (read.extent.end - read.extent.begin) * format.block_elements,
                    reinterpret_cast<float*>(read.to) + first_float(read));
  return {};
}

size_t first_float(const ReadExtent& read) {
  return read.extent.begin * traits(read.weight.format).block_elements - read.slice.column_begin;
}

}  // namespace lockstep
