#include "engine/placement/settings.h"

#include <gtest/gtest.h>

#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"

namespace lockstep {
namespace {

TEST(Settings, what_is_automatic_is_left_open) {
  const auto settings = parse(EngineOptions(), machine_of(machine_with_gpus()));
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  EXPECT_FALSE(settings->devices.has_value());
  EXPECT_FALSE(settings->strategy.has_value());
  EXPECT_FALSE(settings->batch_is_given);
  EXPECT_EQ(settings->context_or(4096), 4096U);
}

TEST(Settings, names_are_parsed_and_devices_found_on_the_machine) {
  EngineOptions options;
  options.devices = "gpu2,node1";
  options.strategy = "reduce";
  options.exchange_format = "bf16";
  options.kv_format = "q8_0";
  options.context_tokens = 100;
  const auto settings = parse(options, machine_of(machine_with_gpus()));
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  ASSERT_TRUE(settings->devices.has_value());
  EXPECT_EQ(settings->devices->gpus, std::vector<int>{2});
  EXPECT_EQ(settings->devices->nodes, std::vector<int>{1});
  EXPECT_EQ(settings->strategy, Strategy::kReduce);
  EXPECT_TRUE(settings->bf16_sums);
  EXPECT_EQ(settings->kv_format, KvFormat::kQ8_0);
  EXPECT_EQ(settings->context_or(4096), 100U);
}

TEST(Settings, keys_and_values_have_the_caches_format_or_their_own) {
  const Machine machine = machine_of(machine_with_gpus());
  EngineOptions options;
  options.devices = "cpu";
  options.kv_format = "q8_0";
  EXPECT_EQ(parse(options, machine)->kv_format_name, "q8_0");
  options.kv_value_format = "q4_h";
  const auto mixed = parse(options, machine);
  ASSERT_TRUE(mixed.has_value()) << mixed.error().message;
  EXPECT_EQ(mixed->kv_format, KvFormats(KvFormat::kQ8_0, KvFormat::kQ4H));
  EXPECT_EQ(mixed->kv_format_name, "q8_0/q4_h");
  options.kv_key_format = "q4_h";
  EXPECT_EQ(parse(options, machine)->kv_format_name, "q4_h");
  options.kv_key_format = "q3";
  const auto unknown = parse(options, machine);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("\"q3\" is not known"), std::string::npos);
}

TEST(Settings, a_batch_holds_every_sequence_and_has_logits_for_each) {
  const Machine machine = machine_of(machine_with_gpus());
  EngineOptions options;
  options.sequence_count = 700;
  const auto many = parse(options, machine);
  ASSERT_TRUE(many.has_value()) << many.error().message;
  EXPECT_EQ(many->batch_tokens, 700U);
  EXPECT_EQ(many->logit_rows, 700U);
  options.batch_tokens = 64;
  EXPECT_FALSE(parse(options, machine).has_value()) << "700 sequences in 64 tokens";
  options.sequence_count = 4;
  options.logit_rows = 500;
  EXPECT_EQ(parse(options, machine)->logit_rows, 64U);
}

TEST(Settings, ranks_go_back_to_the_options_as_they_were_chosen) {
  EngineOptions options;
  options.rank_count = 2;
  options.worker_count = 3;
  options.shares = {2, 1};
  const auto settings = parse(options, machine_of(machine_with_gpus()));
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  EXPECT_EQ(with_ranks_of(*settings, EngineOptions()).shares, options.shares);
  const EngineOptions alone = with_ranks_of(with_one_rank(*settings), options);
  EXPECT_EQ(alone.rank_count, 1U);
  EXPECT_EQ(alone.worker_count, 0U);
  EXPECT_TRUE(alone.shares.empty());
}

}  // namespace
}  // namespace lockstep
