// Embeddings through the engine's door: of length 1, of the same bits however they are computed,
// and scheduled as everything else is. That the values are right is checked against another
// implementation (tests/server/test_embeddings.py).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/gguf_file.h"
#include "engine/serving/pooled_rows.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep {
namespace {

constexpr uint32_t kMeanType = 1;
constexpr uint32_t kLastType = 3;

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& bytes, std::string_view text) {
  append(bytes, uint64_t{text.size()});
  bytes += text;
}

// A copy of a model file that lasts as long as this object.
class ModelCopy {
 public:
  explicit ModelCopy(const std::filesystem::path& model)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("lockstep-embedding-{}-{}.gguf", getpid(), ++count_)) {
    std::ifstream file(model, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    write();
  }
  ~ModelCopy() { std::filesystem::remove(path_); }
  ModelCopy(const ModelCopy&) = delete;
  ModelCopy& operator=(const ModelCopy&) = delete;

  // Two keys more, of as many bytes as leave the tensors aligned.
  void add_key(const std::string& key, uint32_t type, std::string_view value) {
    constexpr size_t kHeaderBytes = 24;
    constexpr size_t kCountAt = 16;
    constexpr uint32_t kTextType = 8;
    std::string added;
    append_text(added, key);
    append(added, type);
    added += value;
    append_text(added, "x");
    append(added, kTextType);
    const size_t size = added.size() + sizeof(uint64_t);
    append_text(added, std::string((size + 31) / 32 * 32 - size, 'x'));
    uint64_t count = 0;
    std::memcpy(&count, &bytes_[kCountAt], sizeof count);
    count += 2;
    std::memcpy(&bytes_[kCountAt], &count, sizeof count);
    bytes_.insert(kHeaderBytes, added);
    write();
  }
  void set_pooling(uint32_t type) {
    constexpr uint32_t kUint32Type = 4;
    std::string value;
    append(value, type);
    add_key("llama.pooling_type", kUint32Type, value);
  }
  // One token's embedding becomes NaN (the file's is F16).
  void break_token(TokenId token) {
    const auto file = GgufFile::open(path_);
    if (!file) throw std::runtime_error(file.error().message);
    const GgufTensor* tensor = file->find_tensor("token_embd.weight");
    const uint16_t nan = 0x7e00;
    const size_t row = tensor->offset + static_cast<size_t>(token) * tensor->columns() * sizeof nan;
    for (size_t column = 0; column < tensor->columns(); ++column) {
      std::memcpy(&bytes_[row + column * sizeof nan], &nan, sizeof nan);
    }
    write();
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  void write() const {
    std::ofstream(path_, std::ios::binary)
        .write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
  }

  static inline int count_ = 0;
  std::filesystem::path path_;
  std::string bytes_;
};

class EmbeddingTest : public EngineTest {
 protected:
  EmbeddingTest() : model_(options_.model) { options_.context_tokens = 320; }

  void pool(uint32_t type) {
    pooled_ = std::make_unique<ModelCopy>(model_);
    pooled_->set_pooling(type);
    options_.model = pooled_->path();
    engine_.reset();
  }

  Request embedding_of(std::vector<TokenId> prompt) {
    Request asked;
    asked.prompt = std::move(prompt);
    asked.embedding = true;
    return asked;
  }
  // Tokens that are not all the same.
  static std::vector<TokenId> some_tokens(size_t count, uint32_t seed) {
    std::vector<TokenId> tokens;
    for (size_t index = 0; index < count; ++index) {
      seed = seed * 1664525U + 1013904223U;
      tokens.push_back(static_cast<TokenId>(3 + (seed >> 16U) % 200));
    }
    return tokens;
  }

  std::vector<float> embed(std::vector<TokenId> prompt) {
    Answer answer;
    submit(embedding_of(std::move(prompt)), answer);
    EXPECT_EQ(answer.wait(), FinishReason::kStop) << answer.error();
    EXPECT_EQ(answer.generated(), 0U);
    EXPECT_EQ(answer.text(), "");
    return answer.embedding();
  }

  std::filesystem::path model_;
  std::unique_ptr<ModelCopy> pooled_;
};

TEST_F(EmbeddingTest, has_length_1_the_models_width_and_depends_on_every_token) {
  for (const uint32_t type : {kMeanType, kLastType}) {
    pool(type);
    EXPECT_EQ(engine().model().pooling, type == kMeanType ? "mean" : "last");
    EXPECT_EQ(engine().model().embedding_width, 96U);
    const auto tokens = some_tokens(70, 1);
    const std::vector<float> whole = embed(tokens);
    ASSERT_EQ(whole.size(), 96U);
    double squares = 0;
    for (const float number : whole) squares += double{number} * number;
    EXPECT_NEAR(squares, 1, 1e-6);
    for (const size_t changed : {0U, 40U, 69U}) {
      auto others = tokens;
      others[changed] = others[changed] == 5 ? 6 : 5;
      EXPECT_NE(embed(others), whole) << changed;
    }
    // A single token's mean is its own row.
    if (type == kMeanType) pool(kLastType);
    const auto last = embed({7});
    pool(kMeanType);
    EXPECT_EQ(embed({7}), last);
  }
}

TEST_F(EmbeddingTest, has_the_pooled_rows_own_length_where_it_is_not_to_be_normalized) {
  for (const uint32_t type : {kMeanType, kLastType}) {
    pool(type);
    const auto tokens = some_tokens(70, 11);
    const std::vector<float> normal = embed(tokens);
    Request asked = embedding_of(tokens);
    asked.normalizes = false;
    Answer answer;
    submit(std::move(asked), answer);
    ASSERT_EQ(answer.wait(), FinishReason::kStop) << answer.error();
    const std::vector<float> raw = answer.embedding();
    ASSERT_EQ(raw.size(), normal.size());
    double squares = 0;
    for (const float number : raw) squares += double{number} * number;
    EXPECT_GT(std::abs(squares - 1), 0.01);
    for (size_t column = 0; column < raw.size(); ++column) {
      EXPECT_NEAR(raw[column] / std::sqrt(squares), normal[column], 1e-6) << column;
    }
  }
}

TEST_F(EmbeddingTest, a_file_that_says_nothing_means_the_last_token) {
  EXPECT_EQ(engine().model().pooling, "last");
  const auto tokens = some_tokens(50, 2);
  const auto unsaid = embed(tokens);
  pool(kLastType);
  EXPECT_EQ(embed(tokens), unsaid);
  pool(kMeanType);
  EXPECT_NE(embed(tokens), unsaid);
}

TEST_F(EmbeddingTest, has_the_same_bits_for_any_workers_ranks_chunks_and_instruction_sets) {
  const auto tokens = some_tokens(150, 3);
  for (const uint32_t type : {kMeanType, kLastType}) {
    for (const char* arithmetic : {"exact", "fast"}) {
      options_.arithmetic = arithmetic;
      options_.instruction_set = "";
      options_.batch_tokens = 512;
      pool(type);
      const std::vector<float> first = embed(tokens);
      for (const auto& [ranks, workers, batch] :
           {std::array{1U, 1U, 512U}, std::array{1U, 2U, 48U}, std::array{1U, 3U, 7U},
            std::array{2U, 1U, 48U}, std::array{2U, 2U, 512U}, std::array{3U, 1U, 64U}}) {
        SCOPED_TRACE(fmt::format("type {}, {}, {} ranks, {} workers, passes of {}", type,
                                 arithmetic, ranks, workers, batch));
        options_.rank_count = ranks;
        options_.worker_count = workers;
        options_.batch_tokens = batch;
        engine_.reset();
        EXPECT_EQ(embed(tokens), first);
      }
      options_.rank_count = 1;
      if (options_.arithmetic == "fast") continue;
      for (const KernelTable* table : all_kernel_tables()) {
        if (!machine_supports(*table)) continue;
        options_.instruction_set = table->name;
        engine_.reset();
        EXPECT_EQ(embed(tokens), first) << table->name;
      }
    }
  }
}

// Sums of partial results have bits of their own, and are the same numbers.
TEST_F(EmbeddingTest, is_the_same_under_reduce_but_for_rounding) {
  const auto tokens = some_tokens(60, 4);
  options_.arithmetic = "exact";
  const auto gathered = embed(tokens);
  options_.strategy = "reduce";
  options_.rank_count = 3;
  options_.worker_count = 1;
  engine_.reset();
  const auto reduced = embed(tokens);
  ASSERT_EQ(reduced.size(), gathered.size());
  double product = 0;
  for (size_t column = 0; column < reduced.size(); ++column) {
    product += double{reduced[column]} * gathered[column];
  }
  EXPECT_GT(product, 0.9999);
}

TEST_F(EmbeddingTest, has_the_same_bits_among_neighbours_and_where_pages_run_out) {
  for (const uint32_t type : {kMeanType, kLastType}) {
    options_.kv_pages = 0;
    pool(type);
    std::vector<std::vector<float>> alone;
    for (uint32_t index = 0; index < 6; ++index) {
      alone.push_back(embed(some_tokens(40 + 50 * index, index)));
    }
    std::vector<std::string> told;
    for (uint64_t index = 0; index < 3; ++index) {
      told.push_back(answer_to(request("beside it", 250, index)));
    }
    options_.kv_pages = 7;
    engine_.reset();
    std::vector<std::unique_ptr<Answer>> stories;
    std::vector<std::unique_ptr<Answer>> answers;
    std::vector<Request> together;
    const auto add = [&](Request asked, auto& to) {
      to.push_back(std::make_unique<Answer>());
      together.push_back(std::move(asked));
      together.back().on_output = to.back()->callback();
    };
    for (uint32_t index = 0; index < 6; ++index) {
      if (index % 2 == 0) add(request("beside it", 250, index / 2), stories);
      add(embedding_of(some_tokens(40 + 50 * index, index)), answers);
      together.back().priority = 1;
    }
    ASSERT_TRUE(engine().submit_all(std::move(together)).has_value());
    for (size_t index = 0; index < stories.size(); ++index) {
      EXPECT_EQ(stories[index]->wait(), FinishReason::kLength);
      EXPECT_EQ(stories[index]->text(), told[index]) << index;
    }
    for (size_t index = 0; index < answers.size(); ++index) {
      EXPECT_EQ(answers[index]->wait(), FinishReason::kStop);
      EXPECT_EQ(answers[index]->embedding(), alone[index]) << index;
    }
    EXPECT_GT(engine().statistics().preemptions, 0U);
  }
}

TEST_F(EmbeddingTest, of_the_last_token_takes_prefixes_and_of_all_tokens_does_not) {
  for (const uint32_t type : {kMeanType, kLastType}) {
    pool(type);
    const auto tokens = some_tokens(150, 8);
    const auto cold = embed(tokens);
    Answer warm;
    submit(embedding_of(tokens), warm);
    EXPECT_EQ(warm.wait(), FinishReason::kStop);
    EXPECT_EQ(warm.cached(), type == kLastType ? 128U : 0U);
    EXPECT_EQ(warm.embedding(), cold);
  }
}

TEST_F(EmbeddingTest, of_numbers_that_are_none_ends_its_request_alone) {
  for (const uint32_t type : {kMeanType, kLastType}) {
    pool(type);
    const auto good = some_tokens(100, 9);
    const auto healthy = embed(good);
    const TokenId broken = 230;
    pooled_->break_token(broken);
    engine_.reset();
    auto bad = good;
    bad[80] = broken;
    std::vector<Request> requests;
    std::vector<std::unique_ptr<Answer>> answers;
    for (const auto& prompt : {good, bad, good}) {
      answers.push_back(std::make_unique<Answer>());
      requests.push_back(embedding_of(prompt));
      requests.back().on_output = answers.back()->callback();
    }
    ASSERT_TRUE(engine().submit_all(std::move(requests)).has_value());
    EXPECT_EQ(answers[1]->wait(), FinishReason::kError);
    EXPECT_NE(answers[1]->error().find("NaN"), std::string::npos);
    EXPECT_TRUE(answers[1]->embedding().empty());
    for (const size_t index : {0U, 2U}) {
      EXPECT_EQ(answers[index]->wait(), FinishReason::kStop);
      EXPECT_EQ(answers[index]->embedding(), healthy);
    }
    Answer again;
    submit(embedding_of(bad), again);
    EXPECT_EQ(again.wait(), FinishReason::kError);
    EXPECT_EQ(again.cached(), 0U);
    EXPECT_EQ(engine().statistics().finished_error, 2U);
  }
}

TEST_F(EmbeddingTest, many_together_take_one_place_in_the_queue) {
  options_.sequence_count = 1;
  options_.waiting_requests = 2;
  NewsGate gate;
  Answer first;
  ASSERT_NO_FATAL_FAILURE(hold(gate, first));
  std::vector<std::unique_ptr<Answer>> answers;
  const auto submit_many = [&](size_t count) {
    std::vector<Request> requests;
    for (size_t index = 0; index < count; ++index) {
      answers.push_back(std::make_unique<Answer>());
      requests.push_back(embedding_of({5, 6, 7}));
      requests.back().on_output = answers.back()->callback();
    }
    return engine().submit_all(std::move(requests)).has_value();
  };
  EXPECT_TRUE(submit_many(30));
  EXPECT_TRUE(submit_many(30));
  EXPECT_FALSE(submit_many(2));
  answers.resize(60);
  gate.open();
  EXPECT_EQ(first.wait(), FinishReason::kLength);
  for (auto& answer : answers) EXPECT_EQ(answer->wait(), FinishReason::kStop);
  // All places are free again, and none is freed twice.
  for (int round = 0; round < 3; ++round) EXPECT_EQ(embed({5, 6, 7}), answers[0]->embedding());
}

TEST_F(EmbeddingTest, can_be_cancelled_and_ends_at_its_deadline) {
  NewsGate gate;
  Answer running;
  ASSERT_NO_FATAL_FAILURE(hold(gate, running, 20));
  Answer cancelled;
  Answer late;
  submit(embedding_of(some_tokens(300, 1)), cancelled);
  engine().cancel(last_id_);
  Request asked = embedding_of(some_tokens(300, 2));
  asked.deadline_seconds = 1e-9;
  submit(std::move(asked), late);
  gate.open();
  EXPECT_EQ(cancelled.wait(), FinishReason::kCancelled);
  EXPECT_EQ(late.wait(), FinishReason::kDeadline);
  EXPECT_TRUE(late.embedding().empty());
  EXPECT_EQ(running.wait(), FinishReason::kLength);
}

TEST_F(EmbeddingTest, fills_the_context_and_no_more) {
  EXPECT_EQ(embed(some_tokens(320, 1)).size(), 96U);
  const auto refused = engine().submit(embedding_of(some_tokens(321, 1)));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
  EXPECT_NE(refused.error().message.find("321"), std::string::npos) << refused.error().message;
}

TEST_F(EmbeddingTest, is_refused_where_the_file_is_for_something_else) {
  const auto refusal = [&] {
    engine_.reset();
    EXPECT_EQ(engine().model().pooling, "");
    const auto refused = engine().submit(embedding_of({5}));
    EXPECT_FALSE(refused.has_value());
    EXPECT_FALSE(answer_to(request("text all the same", 4)).empty());
    return refused ? "" : refused.error().message;
  };
  for (const auto& [type, why] : {std::pair{0U, "0 (none)"}, std::pair{2U, "the first token"},
                                  std::pair{4U, "ranks texts"}, std::pair{77U, "77"}}) {
    pool(type);
    const std::string message = refusal();
    EXPECT_NE(message.find("llama.pooling_type"), std::string::npos) << message;
    EXPECT_NE(message.find(why), std::string::npos) << message;
  }
  ModelCopy both_ways(model_);
  constexpr uint32_t kBoolType = 7;
  both_ways.add_key("llama.attention.causal", kBoolType, std::string(1, '\0'));
  options_.model = both_ways.path();
  EXPECT_NE(refusal().find("llama.attention.causal"), std::string::npos);
}

TEST(PooledRows, takes_rows_in_order_and_each_once) {
  PooledRows mean(Pooling::kMean, 3);
  EXPECT_TRUE(mean.wants(0));
  mean.add(std::vector<float>{3, 0});
  EXPECT_FALSE(mean.wants(0));  // computed again
  mean.add(std::vector<float>{0, 4});
  mean.add(std::vector<float>{3, 4});
  EXPECT_EQ(mean.normalized(), (std::vector<float>{0.6F, 0.8F}));
  EXPECT_EQ(mean.mean(), (std::vector<float>{2, 8.0F / 3}));
  PooledRows last(Pooling::kLast, 3);
  EXPECT_FALSE(last.wants(0));
  EXPECT_TRUE(last.wants(2));
  last.add(std::vector<float>{0, -2});
  EXPECT_FALSE(last.wants(2));
  EXPECT_EQ(last.normalized(), (std::vector<float>{0, -1}));
  EXPECT_EQ(last.mean(), (std::vector<float>{0, -2}));
}

TEST(PooledRows, are_none_of_zeros_or_of_what_is_not_finite) {
  for (const float value :
       {0.0F, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    PooledRows rows(Pooling::kMean, 1);
    rows.add(std::vector<float>{0, value});
    EXPECT_EQ(rows.normalized(), std::nullopt) << value;
    EXPECT_EQ(rows.mean().has_value(), value == 0) << value;
  }
  // Large and small rows have a direction as others have.
  for (const float value :
       {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
    PooledRows rows(Pooling::kMean, 1);
    rows.add(std::vector<float>{value, -value});
    ASSERT_TRUE(rows.normalized().has_value()) << value;
    EXPECT_FLOAT_EQ(rows.normalized()->front(), 0.70710678F);
  }
}

}  // namespace
}  // namespace lockstep
