#include "tests/engine/model/load_case.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_tile.h"
#include "engine/kernels/packed_matrix.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/model/gguf_writer.h"

namespace lockstep::test {
namespace {

constexpr std::byte kUnfilled{0xA5};

using Cuts = std::vector<std::pair<size_t, size_t>>;  // by rank

size_t at_most(RandomEngine& random, size_t most) {
  return random() % (most + 1);
}

// [0, count) in as many parts as there are ranks, some of them empty; at multiples of `step`.
Cuts cut_apart(RandomEngine& random, size_t ranks, size_t count, size_t step) {
  std::vector<size_t> borders = {0, count};
  for (size_t rank = 1; rank < ranks; ++rank) {
    borders.push_back(std::min(count, at_most(random, count / step) * step));
  }
  std::ranges::sort(borders);
  Cuts cuts;
  for (size_t rank = 0; rank < ranks; ++rank) cuts.emplace_back(borders[rank], borders[rank + 1]);
  std::ranges::shuffle(cuts, random);
  return cuts;
}

Cuts cut_anyhow(RandomEngine& random, size_t ranks, size_t count) {
  Cuts cuts;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t begin = at_most(random, count);
    cuts.emplace_back(begin, begin + at_most(random, count - begin));
  }
  return cuts;
}

Cuts same_for_all(size_t ranks, std::pair<size_t, size_t> cut) {
  return Cuts(ranks, cut);
}

struct WeightCut {
  Cuts rows;
  Cuts columns;
};

WeightCut cut_matrix(RandomEngine& random, size_t ranks, const Weight& weight) {
  const auto all_rows = same_for_all(ranks, {0, weight.rows});
  const auto all_columns = same_for_all(ranks, {0, weight.columns});
  switch (random() % 7) {
    case 0:
      return {all_rows, all_columns};
    case 1:
      return {all_rows,
              cut_apart(random, ranks, weight.columns, traits(weight.format).block_elements)};
    case 2:
      return {cut_anyhow(random, ranks, weight.rows), all_columns};
    case 3:
      return {same_for_all(ranks, {0, 0}), all_columns};
    case 4:
      return {cut_apart(random, ranks, weight.rows, 32), all_columns};
    default:
      return {cut_apart(random, ranks, weight.rows, 1), all_columns};
  }
}

WeightCut cut_vector(RandomEngine& random, size_t ranks, const Weight& weight) {
  const auto row = same_for_all(ranks, {0, 1});
  if (random() % 2 == 0) return {row, same_for_all(ranks, {0, weight.columns})};
  return {row, cut_apart(random, ranks, weight.columns, traits(weight.format).block_elements)};
}

Format random_format(RandomEngine& random, bool for_gpus) {
  while (true) {
    const Format format = all_formats()[random() % all_formats().size()].format;
    if (!for_gpus || has_gpu_kernels(format)) return format;
  }
}

}  // namespace

LoadFolder::LoadFolder(const std::filesystem::path& parent) {
  std::string name = (parent / "lockstep-load-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder below " + name);
  path_ = name;
}

LoadFolder::~LoadFolder() {
  std::filesystem::remove_all(path_);
}

LoadCase::LoadCase(const std::filesystem::path& folder, const LoadShape& shape) {
  write_files(folder, shape);
  file_ = std::make_unique<GgufFile>(GgufFile::open(path_).value());
  make_plans(shape);
  fill_expected();
  const std::vector<int> cpus(shape.workers, -1);
  for (size_t rank = 0; rank < shape.ranks; ++rank) {
    workers_.push_back(Workers::start(cpus, true).value());
    targets_.push_back({.plan = plans_[rank], .weights = arena_, .workers = *workers_.back()});
  }
}

void LoadCase::write_files(const std::filesystem::path& folder, const LoadShape& shape) {
  RandomEngine random(shape.seed);
  std::vector<GgufWriter> writers(shape.parts);
  for (uint16_t part = 0; part < shape.parts; ++part) {
    if (shape.parts == 1) break;
    writers[part].add("split.no", part).add("split.count", shape.parts);
    writers[part].add("split.tensors.count", static_cast<int32_t>(shape.tensors));
  }
  for (size_t tensor = 0; tensor < shape.tensors; ++tensor) {
    const FormatTraits& format = traits(random_format(random, shape.for_gpus));
    const size_t columns =
        format.block_elements * (1 + at_most(random, format.block_elements == 1 ? 300 : 8));
    const bool is_matrix = tensor % 3 != 2;
    const size_t rows = is_matrix ? 1 + at_most(random, 150) : 1;
    const bool is_mixture = is_matrix && tensor % 4 == 1;
    const size_t experts = is_mixture ? 1 + at_most(random, 4) : 1;
    const std::string name = fmt::format("tensor.{}", tensor);
    std::vector<uint64_t> dimensions = {columns};
    if (is_matrix) dimensions.push_back(rows);
    if (is_mixture) dimensions.push_back(experts);
    std::vector<std::byte> bytes;
    for (size_t expert = 0; expert < experts; ++expert) {
      weights_.push_back(random_rows(format.format, rows, columns, random));
      bytes.insert(bytes.end(), weights_.back().begin(), weights_.back().end());
      if (is_matrix) graph_.add_matrix(name, format.format, rows, columns, expert * rows);
    }
    if (!is_matrix) graph_.add_vector(name, format.format, columns);
    writers[tensor * shape.parts / shape.tensors].add_tensor(name, format.format, dimensions,
                                                             std::move(bytes));
  }
  for (uint16_t part = 0; part < shape.parts; ++part) {
    const auto path = folder / (shape.parts == 1 ? std::string("model.gguf")
                                                 : fmt::format("model-{:05}-of-{:05}.gguf",
                                                               part + 1, shape.parts));
    writers[part].write(path);
    // Long ago: what is written later has another time, however coarse the clock is.
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    if (part == 0) path_ = path;
  }
}

void LoadCase::make_plans(const LoadShape& shape) {
  RandomEngine random(shape.seed + 1'000'000);
  plans_.resize(shape.ranks);
  size_t offset = 0;
  for (WeightId id = 0; id < graph_.weights().size(); ++id) {
    const Weight& weight = graph_.weights()[id];
    const WeightCut cut = weight.is_matrix ? cut_matrix(random, shape.ranks, weight)
                                           : cut_vector(random, shape.ranks, weight);
    for (size_t rank = 0; rank < shape.ranks; ++rank) {
      WeightSlice slice;
      slice.weight = id;
      std::tie(slice.row_begin, slice.row_end) = cut.rows[rank];
      std::tie(slice.column_begin, slice.column_end) = cut.columns[rank];
      const size_t rows = slice.row_end - slice.row_begin;
      const size_t columns = slice.column_end - slice.column_begin;
      slice.size_bytes = weight.is_matrix ? (rows + kPanelRows - 1) / kPanelRows *
                                                panel_bytes(weight.format, columns)
                                          : rows * columns * sizeof(float);
      slice.offset = offset;
      plans_[rank].weights.push_back(slice);
      offset += round_up<size_t>(slice.size_bytes + 64, 64);  // with something between them
    }
  }
  arena_bytes_ = offset;
  storage_.resize(arena_bytes_ + 64);
  arena_ = reinterpret_cast<std::byte*>(
      round_up<uintptr_t>(reinterpret_cast<uintptr_t>(storage_.data()), 64));
}

void LoadCase::fill_expected() {
  expected_.assign(arena_bytes_, kUnfilled);
  for (const Plan& plan : plans_) {
    for (const WeightSlice& slice : plan.weights) {
      const Weight& weight = graph_.weights()[slice.weight];
      const FormatTraits& format = traits(weight.format);
      const size_t stride = row_bytes(weight.format, weight.columns);
      const size_t columns = slice.column_end - slice.column_begin;
      std::byte* target = expected_.data() + slice.offset;
      const std::byte* source = weights_[slice.weight].data() +
                                slice.column_begin / format.block_elements * format.block_bytes;
      if (!weight.is_matrix) {
        std::vector<float> values(columns);
        if (columns > 0) format.dequantize(source, columns, values.data());
        if (columns > 0) std::memcpy(target, values.data(), slice.size_bytes);
        continue;
      }
      std::memset(target, 0, slice.size_bytes);
      for (size_t row = slice.row_begin; row < slice.row_end; ++row) {
        const size_t place = row - slice.row_begin;
        pack_lanes(weight.format, columns, source + row * stride, stride, place % kPanelRows, 1,
                   target + place / kPanelRows * panel_bytes(weight.format, columns));
      }
    }
  }
}

std::vector<RankToLoad> LoadCase::ranks() const {
  std::vector<RankToLoad> ranks;
  for (const Plan& plan : plans_) ranks.push_back({.plan = &plan});
  return ranks;
}

std::vector<float> LoadCase::row_values(const WeightSlice& slice, size_t row) const {
  const Weight& weight = graph_.weights()[slice.weight];
  const FormatTraits& format = traits(weight.format);
  std::vector<float> values(slice.column_end - slice.column_begin);
  const std::byte* file = weights_[slice.weight].data() +
                          (slice.row_begin + row) * row_bytes(weight.format, weight.columns) +
                          slice.column_begin / format.block_elements * format.block_bytes;
  if (!values.empty()) format.dequantize(file, values.size(), values.data());
  return values;
}

Result<LoadReport> LoadCase::load(const LoadOptions& options) {
  std::fill_n(arena_, arena_bytes_, kUnfilled);
  bytes_done_ = 0;
  return load_weights(*file_, graph_, targets_, bytes_done_, options);
}

uint64_t LoadCase::bytes_to_load() {
  return lockstep::bytes_to_load(*file_, graph_, targets_);
}

std::vector<std::byte> LoadCase::loaded() const {
  return {arena_, arena_ + arena_bytes_};
}

}  // namespace lockstep::test
