// The load of a file's weights into the ranks of one model.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "engine/model/gguf_file.h"
#include "engine/model/weight_loader.h"
#include "engine/runtime/ranks.h"

namespace lockstep {

class WeightFilling {
 public:
  // All of them outlive this.
  WeightFilling(const GgufFile& file, const Graph& graph, Ranks& ranks);

  // The bytes of the file that are read.
  uint64_t bytes() const { return bytes_to_load(file_, graph_, targets_); }
  // Blocks. `bytes_done` grows by bytes().
  Result<void> run(DirectIo direct, std::atomic<uint64_t>& bytes_done) const;

 private:
  const GgufFile& file_;
  const Graph& graph_;
  std::vector<std::unique_ptr<WeightSink>> sinks_;
  std::vector<LoadTarget> targets_;
};

}  // namespace lockstep
