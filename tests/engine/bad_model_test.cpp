// A model file that was cut or damaged, through the engine's own door: an error of what was given,
// or, where the damage left a valid file, a model that loads and answers. Never anything else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model/gguf_file.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

const std::string kModel = source_dir() + "/tests/fixtures/vocabularies/spm.gguf";

class BadModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto whole = GgufFile::open(kModel);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    header_bytes_ = whole->tensors().front().offset;
    std::ifstream file(kModel, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_GT(bytes_.size(), 100'000U);
    path_ = ::testing::TempDir() + "lockstep-bad-" + std::to_string(getpid()) + ".gguf";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<std::unique_ptr<Engine>> open(const std::vector<char>& bytes) {
    std::ofstream(path_, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EngineOptions options;
    options.model = path_;
    options.worker_count = 1;
    options.context_tokens = 64;
    options.sequence_count = 1;
    options.batch_tokens = 16;
    return Engine::open(options);
  }

  // Loads it and asks for one token: what comes is not judged, only that nothing breaks.
  static void use(Engine& engine) {
    if (auto loaded = engine.load(); !loaded) return;
    Request request;
    request.prompt = {1, 2, 3};
    request.max_tokens = 1;
    ASSERT_TRUE(engine.submit(std::move(request)).has_value());
    engine.drain(60);
  }

  std::vector<char> bytes_;
  size_t header_bytes_ = 0;  // all before the first tensor's data
  std::string path_;
};

TEST_F(BadModel, cut_anywhere_it_is_refused) {
  for (size_t size = 0; size < bytes_.size(); size += 251) {
    const auto opened = open({bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(size)});
    ASSERT_FALSE(opened.has_value()) << size << " bytes";
    EXPECT_EQ(opened.error().kind, ErrorKind::kInvalidInput) << opened.error().message;
    EXPECT_NE(opened.error().message.find(path_), std::string::npos) << opened.error().message;
  }
}

TEST_F(BadModel, with_a_mutated_header_it_is_refused_or_works) {
  size_t refused = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<char> mutated = bytes_;
    for (uint64_t count = 1 + random() % 4; count > 0; --count) {
      const size_t at = random() % header_bytes_;
      const uint64_t kind = random() % 3;
      if (kind == 0) {
        mutated[at] = static_cast<char>(random());
      } else if (kind == 1) {
        mutated[at] = static_cast<char>(mutated[at] ^ (1 << (random() % 8)));
      } else {
        const uint64_t value = random() % 2 == 0 ? ~uint64_t{0} >> (random() % 64) : random();
        std::memcpy(&mutated[at], &value, sizeof value);
      }
    }
    auto opened = open(mutated);
    if (opened) {
      use(**opened);
    } else {
      ++refused;
      EXPECT_EQ(opened.error().kind, ErrorKind::kInvalidInput) << opened.error().message;
      EXPECT_FALSE(opened.error().message.empty());
    }
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(refused, 100U);
  EXPECT_LT(refused, 1000U);
}

}  // namespace
}  // namespace lockstep
