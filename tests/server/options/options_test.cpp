#include "server/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/paths.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view text)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("lockstep-options-{}-{}.json", getpid(), ++count_)) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

std::string error_of(const OptionSources& sources) {
  const auto values = resolve_options(sources);
  if (values) return "";
  EXPECT_EQ(values.error().kind, ErrorKind::kInvalidInput);
  return values.error().message;
}

std::string file_error(std::string_view text) {
  const TemporaryFile file(text);
  return error_of({.command_line = {}, .environment = {}, .file = file.path()});
}

std::string line_error(const std::string& name, const std::string& text) {
  return error_of({.command_line = {{name, text}}, .environment = {}, .file = {}});
}

TEST(Options, command_line_beats_environment_beats_file_beats_default) {
  const TemporaryFile file(R"({"port": 1, "sequences": 2, "batch-tokens": 3})");
  const auto values = resolve_options(
      {.command_line = {{"port", "10"}},
       .environment = {{"LOCKSTEP_PORT", "20"}, {"LOCKSTEP_SEQUENCES", "21"}, {"HOME", "/"}},
       .file = file.path()});
  ASSERT_TRUE(values) << values.error().message;
  EXPECT_EQ(values->at("port").value, 10);
  EXPECT_EQ(values->at("port").source, OptionSource::kCommandLine);
  EXPECT_EQ(values->at("sequences").value, 21);
  EXPECT_EQ(values->at("sequences").source, OptionSource::kEnvironment);
  EXPECT_EQ(values->at("batch-tokens").value, 3);
  EXPECT_EQ(values->at("batch-tokens").source, OptionSource::kFile);
  EXPECT_EQ(values->at("kv-format").value, "f16");
  EXPECT_EQ(values->at("kv-format").source, OptionSource::kDefault);
  const Options options = to_options(*values);
  EXPECT_EQ(options.http.port, 10);
  EXPECT_EQ(options.engine.sequence_count, 21U);
  EXPECT_EQ(options.engine.batch_tokens, 3U);
}

TEST(Options, the_tables_defaults_are_those_of_the_structs) {
  const Options made = to_options(*resolve_options({}));
  const Options plain;
  EXPECT_EQ(made.engine.model, plain.engine.model);
  EXPECT_EQ(made.engine.worker_count, plain.engine.worker_count);
  EXPECT_EQ(made.engine.context_tokens, plain.engine.context_tokens);
  EXPECT_EQ(made.engine.sequence_count, plain.engine.sequence_count);
  EXPECT_EQ(made.engine.batch_tokens, plain.engine.batch_tokens);
  EXPECT_EQ(made.engine.waiting_requests, plain.engine.waiting_requests);
  EXPECT_EQ(made.engine.first_token_target_seconds, plain.engine.first_token_target_seconds);
  EXPECT_EQ(made.engine.token_target_seconds, plain.engine.token_target_seconds);
  EXPECT_EQ(made.engine.kv_format, plain.engine.kv_format);
  EXPECT_EQ(made.engine.kv_key_format, plain.engine.kv_key_format);
  EXPECT_EQ(made.engine.kv_value_format, plain.engine.kv_value_format);
  EXPECT_EQ(made.engine.instruction_set, plain.engine.instruction_set);
  EXPECT_EQ(made.served_model_names, plain.served_model_names);
  EXPECT_EQ(made.http.host, plain.http.host);
  EXPECT_EQ(made.http.port, plain.http.port);
  EXPECT_EQ(made.drain_seconds, plain.drain_seconds);
  EXPECT_EQ(made.choices_max, plain.choices_max);
  EXPECT_EQ(made.metrics, plain.metrics);
  EXPECT_EQ(made.log_level, plain.log_level);
  EXPECT_EQ(made.http.limits.head_bytes, plain.http.limits.head_bytes);
  EXPECT_EQ(made.http.limits.head_fields, plain.http.limits.head_fields);
  EXPECT_EQ(made.http.limits.target_bytes, plain.http.limits.target_bytes);
  EXPECT_EQ(made.http.limits.body_bytes, plain.http.limits.body_bytes);
  EXPECT_EQ(made.http.limits.bodies_bytes, plain.http.limits.bodies_bytes);
  EXPECT_EQ(made.http.limits.head_deadline, plain.http.limits.head_deadline);
  EXPECT_EQ(made.http.limits.body_deadline, plain.http.limits.body_deadline);
  EXPECT_EQ(made.http.limits.write_deadline, plain.http.limits.write_deadline);
  EXPECT_EQ(made.http.limits.idle_deadline, plain.http.limits.idle_deadline);
  EXPECT_EQ(made.http.limits.unsent_bytes, plain.http.limits.unsent_bytes);
  EXPECT_EQ(made.http.limits.connections, plain.http.limits.connections);
  EXPECT_EQ(made.http.limits.connections_per_address, plain.http.limits.connections_per_address);
  EXPECT_EQ(made.http.limits.body_bytes_per_second, plain.http.limits.body_bytes_per_second);
  EXPECT_EQ(made.http.limits.body_grace, plain.http.limits.body_grace);
  EXPECT_EQ(made.http.limits.nesting, plain.http.limits.nesting);
  EXPECT_EQ(made.http.socket_mode, plain.http.socket_mode);
  EXPECT_EQ(made.http.tls_certificate, plain.http.tls_certificate);
  EXPECT_EQ(made.http.tls_key, plain.http.tls_key);
  EXPECT_EQ(made.http.cors_origins, plain.http.cors_origins);
  EXPECT_EQ(made.allowed_hosts, plain.allowed_hosts);
  EXPECT_EQ(made.api_keys, plain.api_keys);
  EXPECT_EQ(made.metrics_without_key, plain.metrics_without_key);
}

TEST(Options, threads_for_requests_are_as_many_as_the_engine_takes_on_and_some_more) {
  const auto threads = [](const std::string& given) {
    return to_options(*resolve_options({.command_line = {{"http-threads", given},
                                                         {"sequences", "5"},
                                                         {"waiting-requests", "7"}},
                                        .environment = {},
                                        .file = {}}))
        .http.limits.threads;
  };
  EXPECT_EQ(threads("auto"), (5U + 7U + 64U) * 3 / 2);  // for one client alone two thirds
  EXPECT_EQ(threads("3"), 3U);
}

TEST(Options, the_documented_file_has_every_option_with_its_default_and_no_other) {
  const std::filesystem::path path = source_dir() + "/config/lockstepd.json";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto document = parse_json(text, {.comments = true});
  ASSERT_TRUE(document) << document.error().message;
  EXPECT_EQ(document->size(), option_table().size());
  for (const OptionRow& row : option_table()) {
    ASSERT_TRUE(document->contains(row.name)) << row.name;
    EXPECT_EQ(document->at(std::string(row.name)), row.default_value) << row.name;
  }
  EXPECT_EQ(error_of({.command_line = {}, .environment = {}, .file = path}), "");
}

TEST(Options, every_default_is_a_value_that_its_own_row_allows) {
  for (const OptionRow& row : option_table()) {
    EXPECT_TRUE(option_from_json(row, row.default_value, "default")) << row.name;
    EXPECT_FALSE(row.help.empty()) << row.name;
  }
}

TEST(Options, errors_name_the_option_the_value_and_what_it_may_be) {
  EXPECT_THAT(line_error("port", "65536"),
              testing::AllOf(HasSubstr("--port"), HasSubstr("65536"), HasSubstr("0 to 65535")));
  EXPECT_THAT(line_error("kv-format", "f8"),
              testing::AllOf(HasSubstr("--kv-format"), HasSubstr("f16, bf16, f32, q8_0")));
  EXPECT_THAT(file_error(R"({"prot": 1})"), HasSubstr("\"prot\""));
  EXPECT_THAT(file_error(R"({"port": "80"})"), HasSubstr("\"port\""));
  EXPECT_THAT(error_of({.command_line = {}, .environment = {{"LOCKSTEP_PROT", "1"}}, .file = {}}),
              HasSubstr("LOCKSTEP_PROT"));
  EXPECT_THAT(error_of({.command_line = {}, .environment = {{"LOCKSTEP_PORT", "x"}}, .file = {}}),
              HasSubstr("LOCKSTEP_PORT"));
}

TEST(Options, values_of_another_type_or_out_of_range_are_refused) {
  for (const std::string text :
       {"", " 1", "1 ", "+1", "1.0", "1e3", "0x10", "-1", "nan", "auto", "99999999999999999999"}) {
    EXPECT_NE(line_error("port", text), "") << text;
  }
  for (const std::string text : {"", "nan", "inf", "-1", "1s", "86401"}) {
    EXPECT_NE(line_error("drain-seconds", text), "") << text;
  }
  for (const std::string text : {"", "yes", "TRUE", "2"}) {
    EXPECT_NE(line_error("metrics", text), "") << text;
  }
  for (const std::string value : {"1.5", "true", "null", "[1]", "{}", "-1", "1e400", "\"1\""}) {
    EXPECT_NE(file_error("{\"sequences\": " + value + "}"), "") << value;
  }
}

TEST(Options, a_file_that_is_no_json_object_is_refused_by_name) {
  EXPECT_THAT(file_error("{\"port\": 1"), HasSubstr("lockstep-options-"));
  EXPECT_THAT(file_error("[]"), HasSubstr("an array"));
  EXPECT_THAT(file_error("{\"port\": 1, \"port\": 2}"), HasSubstr("twice"));
  EXPECT_THAT(error_of({.command_line = {}, .environment = {}, .file = "/nowhere/x.json"}),
              HasSubstr("/nowhere/x.json"));
}

TEST(Options, comments_are_allowed_in_the_file) {
  EXPECT_EQ(file_error("// one\n{/* two */\"port\": 1}"), "");
}

TEST(Options, the_file_may_be_named_by_the_environment) {
  const TemporaryFile file(R"({"port": 7})");
  const auto values = resolve_options(
      {.command_line = {}, .environment = {{"LOCKSTEP_CONFIG", file.path().string()}}, .file = {}});
  ASSERT_TRUE(values) << values.error().message;
  EXPECT_EQ(values->at("port").value, 7);
}

TEST(Options, auto_and_lists_are_understood_everywhere) {
  const TemporaryFile file(R"({"workers": "auto", "served-model-name": "one"})");
  const auto from_file =
      resolve_options({.command_line = {}, .environment = {}, .file = file.path()});
  ASSERT_TRUE(from_file);
  EXPECT_EQ(to_options(*from_file).engine.worker_count, 0U);
  EXPECT_THAT(to_options(*from_file).served_model_names, testing::ElementsAre("one"));
  const auto from_line = resolve_options(
      {.command_line = {{"workers", "auto"}, {"served-model-name", "a,b"}, {"isa", "auto"}},
       .environment = {},
       .file = {}});
  ASSERT_TRUE(from_line);
  EXPECT_THAT(to_options(*from_line).served_model_names, testing::ElementsAre("a", "b"));
  EXPECT_EQ(to_options(*from_line).engine.instruction_set, "");
}

TEST(Options, the_printed_configuration_is_json_with_every_option_and_its_source) {
  const auto values =
      resolve_options({.command_line = {{"port", "1"}}, .environment = {}, .file = {}});
  const Json printed = Json::parse(print_options(*values));
  EXPECT_EQ(printed.size(), option_table().size());
  EXPECT_EQ(printed["port"], Json({{"value", 1}, {"source", "command line"}}));
  EXPECT_EQ(printed["host"], Json({{"value", "127.0.0.1"}, {"source", "default"}}));
}

}  // namespace
}  // namespace lockstep
