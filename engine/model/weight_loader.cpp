#include "engine/model/weight_loader.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "engine/base/check.h"
#include "engine/machine/file_reader.h"

namespace lockstep {
namespace {

// What one worker reads at a time: large enough for the disk, small enough to share evenly.
constexpr size_t kStretchBytes = 2U << 20U;

// Rows [row_begin, row_end) of one weight, whole panels.
struct Stretch {
  const WeightSlice* slice = nullptr;
  const GgufTensor* tensor = nullptr;
  size_t row_begin = 0;
  size_t row_end = 0;
};

std::vector<Stretch> cut_into_stretches(const GgufFile& file, const Graph& graph,
                                        const Plan& plan) {
  std::vector<Stretch> stretches;
  for (const WeightSlice& slice : plan.weights) {
    const Weight& weight = graph.weights()[slice.weight];
    const GgufTensor* tensor = file.find_tensor(weight.name);
    CHECK(tensor != nullptr, "the graph has a weight {} that the file lacks", weight.name);
    const size_t row_size = row_bytes(weight.format, weight.columns);
    if (slice.size_bytes == 0) continue;
    const size_t rows = std::max<size_t>(1, kStretchBytes / (row_size * kPanelRows)) * kPanelRows;
    for (size_t row = slice.row_begin; row < slice.row_end; row += rows) {
      stretches.push_back({&slice, tensor, row, std::min(row + rows, slice.row_end)});
    }
  }
  return stretches;
}

class Loader {
 public:
  Loader(const Graph& graph, const std::vector<FileReader>& readers, std::vector<Stretch> stretches,
         std::atomic<uint64_t>& bytes_done)
      : graph_(graph),
        readers_(readers),
        stretches_(std::move(stretches)),
        bytes_done_(bytes_done) {}

  // Takes stretches until none is left or one has failed. Run by every worker.
  void work() {
    std::vector<std::byte> rows;
    while (!failed_.load(std::memory_order_relaxed)) {
      const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= stretches_.size()) return;
      try {
        if (auto loaded = load(stretches_[index], rows); !loaded) fail(loaded.error());
      } catch (const std::bad_alloc&) {
        fail({ErrorKind::kMachineRefused, "no memory left for reading weights"});
      }
    }
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    failed_.store(true, std::memory_order_relaxed);
  }

  Result<void> load(const Stretch& stretch, std::vector<std::byte>& rows) {
    const Weight& weight = graph_.weights()[stretch.slice->weight];
    const size_t row_size = row_bytes(weight.format, weight.columns);
    rows.resize((stretch.row_end - stretch.row_begin) * row_size);
    const uint64_t offset = stretch.tensor->offset + stretch.row_begin * row_size;
    if (auto read = readers_[stretch.tensor->part].read(offset, rows); !read) return read;
    if (weight.is_matrix) {
      pack(stretch, weight, row_size, rows);
    } else {
      std::vector<float> values(weight.columns);
      traits(weight.format).dequantize(rows.data(), weight.columns, values.data());
      std::copy(values.begin() + static_cast<std::ptrdiff_t>(stretch.slice->column_begin),
                values.begin() + static_cast<std::ptrdiff_t>(stretch.slice->column_end),
                reinterpret_cast<float*>(stretch.slice->address));
    }
    bytes_done_.fetch_add(rows.size(), std::memory_order_relaxed);
    return {};
  }

  void pack(const Stretch& stretch, const Weight& weight, size_t row_size,
            const std::vector<std::byte>& rows) {
    const WeightSlice& slice = *stretch.slice;
    const size_t columns = slice.column_end - slice.column_begin;
    const size_t skipped = row_bytes(weight.format, slice.column_begin);
    const size_t held = row_bytes(weight.format, columns);
    std::vector<std::byte> held_rows(kPanelRows * held);
    for (size_t row = stretch.row_begin; row < stretch.row_end; row += kPanelRows) {
      const size_t count = std::min(kPanelRows, stretch.row_end - row);
      for (size_t r = 0; r < count; ++r) {
        std::copy_n(rows.data() + (row - stretch.row_begin + r) * row_size + skipped, held,
                    held_rows.data() + r * held);
      }
      const size_t panel = (row - slice.row_begin) / kPanelRows;
      pack_panel(weight.format, columns, held_rows.data(), count,
                 slice.address + panel * panel_bytes(weight.format, columns));
    }
  }

  const Graph& graph_;
  const std::vector<FileReader>& readers_;  // by part
  std::vector<Stretch> stretches_;
  std::atomic<uint64_t>& bytes_done_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::optional<Error> error_;  // the first; guarded by mutex_ while work() runs
};

}  // namespace

uint64_t bytes_to_load(const GgufFile& file, const Graph& graph,
                       std::span<const LoadTarget> ranks) {
  uint64_t bytes = 0;
  for (const Stretch& stretch : cut_into_stretches(file, graph, ranks.front().plan)) {
    const Weight& weight = graph.weights()[stretch.slice->weight];
    bytes += (stretch.row_end - stretch.row_begin) * row_bytes(weight.format, weight.columns);
  }
  return bytes;
}

Result<void> load_weights(const GgufFile& file, const Graph& graph,
                          std::span<const LoadTarget> ranks, std::atomic<uint64_t>& bytes_done) {
  for (const LoadTarget& rank : ranks) {
    Loader loader(graph, file.readers(), cut_into_stretches(file, graph, rank.plan), bytes_done);
    rank.workers.run([&](size_t) { loader.work(); });
    if (loader.error()) return std::unexpected(*loader.error());
  }
  for (const FileReader& reader : file.readers()) {
    if (auto unchanged = reader.check_unchanged(); !unchanged) return unchanged;
  }
  return {};
}

}  // namespace lockstep
