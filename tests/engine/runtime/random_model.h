// Tiny models with random weights in any format, written where a test can load them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/tensor/format.h"

namespace lockstep {

// A model file of the llama architecture that lasts as long as this object. Rows are 256 wide, so
// that every format can hold them; two layers or more, four query heads on two KV heads; of two
// formats where `format` and `others` differ (attention values and the feed-forward's way down are
// in `others`). Experts are as wide as the feed-forward that they take the place of.
class RandomModel {
 public:
  // The experts of a mixture, of which each token goes to `used`. A count of 0: it is no mixture.
  struct Experts {
    uint32_t count = 0;
    uint32_t used = 0;
    uint32_t feed_forward = 512;  // columns of an expert's activation
  };

  // Whether the file holds rows of the weights' formats, or the very same values in F32.
  enum class Values : uint8_t { kAsTheyAre, kDequantized };

  // `window`: most keys that a token sees; 0: all.
  RandomModel(Format format, Format others, uint64_t seed, uint32_t window = 0, uint32_t layers = 2)
      : RandomModel(format, others, seed, window, layers, {}, Values::kAsTheyAre) {}
  RandomModel(Format format, Format others, uint64_t seed, Experts experts)
      : RandomModel(format, others, seed, 0, 2, experts, Values::kAsTheyAre) {}
  RandomModel(Format format, Format others, uint64_t seed, Values values)
      : RandomModel(format, others, seed, 0, 2, {}, values) {}
  ~RandomModel();
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  std::string path() const { return path_.string(); }

 private:
  RandomModel(Format format, Format others, uint64_t seed, uint32_t window, uint32_t layers,
              Experts experts, Values values);

  std::filesystem::path path_;
};

}  // namespace lockstep
