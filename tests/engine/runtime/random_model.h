// Tiny models with random weights in any format, written where a test can load them.
#pragma once

#include <filesystem>
#include <string>

#include "engine/tensor/format.h"

namespace lockstep {

// A model file of the llama architecture that lasts as long as this object. Rows are 256 wide, so
// that every format can hold them; two layers or more, four query heads on two KV heads; a mixture
// where `format` and `others` differ (attention values and the feed-forward's way down are in
// `others`).
class RandomModel {
 public:
  // `window`: most keys that a token sees; 0: all.
  RandomModel(Format format, Format others, uint64_t seed, uint32_t window = 0,
              uint32_t layers = 2);
  ~RandomModel();
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
