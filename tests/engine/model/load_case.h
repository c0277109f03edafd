// A simulated model and a simulated split of it: what the loader's tests load.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/machine/workers.h"
#include "engine/model/gguf_file.h"
#include "engine/model/load_extents.h"
#include "engine/model/weight_loader.h"
#include "engine/operations/plan.h"

namespace lockstep::test {

// A folder that lasts as long as this object.
class LoadFolder {
 public:
  explicit LoadFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~LoadFolder();
  LoadFolder(const LoadFolder&) = delete;
  LoadFolder& operator=(const LoadFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct LoadShape {
  uint64_t seed = 1;
  size_t ranks = 1;
  size_t workers = 1;  // of each rank
  size_t tensors = 40;
  uint16_t parts = 1;     // files
  bool for_gpus = false;  // formats that GPUs have kernels for alone
};

// A file of matrices, by themselves or as experts of one tensor, and vectors in all formats; plans
// in which each weight is cut in some way (rows, columns, all on every rank, runs that overlap,
// nothing), and arenas for their slices.
class LoadCase {
 public:
  LoadCase(const std::filesystem::path& folder, const LoadShape& shape);

  // The first part's path.
  const std::filesystem::path& path() const { return path_; }
  const GgufFile& file() const { return *file_; }
  const Graph& graph() const { return graph_; }
  std::vector<RankToLoad> ranks() const;
  // Row `row` of a slice, dequantized straight from the file.
  std::vector<float> row_values(const WeightSlice& slice, size_t row) const;

  // Loads into arenas that hold something else before.
  Result<LoadReport> load(const LoadOptions& options = {});
  uint64_t bytes_done() const { return bytes_done_; }
  uint64_t bytes_to_load();

  // The bytes that the arenas must hold then: packed row by row, straight from the file. All
  // arenas, one after the other, with what lies between the slices.
  const std::vector<std::byte>& expected() const { return expected_; }
  std::vector<std::byte> loaded() const;

 private:
  void write_files(const std::filesystem::path& folder, const LoadShape& shape);
  void make_plans(const LoadShape& shape);
  void fill_expected();

  std::filesystem::path path_;
  std::vector<std::vector<std::byte>> weights_;  // as in the file
  Graph graph_;
  std::unique_ptr<GgufFile> file_;
  std::vector<Plan> plans_;
  std::vector<std::byte> storage_;
  size_t arena_bytes_ = 0;
  std::byte* arena_ = nullptr;  // within storage_, 64-byte aligned
  std::vector<std::byte> expected_;
  std::vector<std::unique_ptr<Workers>> workers_;
  std::vector<LoadTarget> targets_;
  std::atomic<uint64_t> bytes_done_ = 0;
};

}  // namespace lockstep::test
