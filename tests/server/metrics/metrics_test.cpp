#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "server/metrics/families.h"
#include "server/metrics/http_metrics.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::string text_of(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

HttpRecord record(std::string_view method, std::string_view route, int status, double seconds) {
  HttpRecord made;
  made.method = method;
  made.route = route;
  made.status = status;
  made.seconds = seconds;
  return made;
}

TEST(Metrics, a_histograms_buckets_are_cumulative_and_end_with_the_count) {
  HistogramSnapshot snapshot;
  snapshot.upper_bounds = {1, 2};
  snapshot.bucket_counts = {3, 0, 4};
  snapshot.count = 7;
  snapshot.sum = 12.5;
  const std::string text = text_of({histogram_family("x_seconds", "X.", snapshot, {{"a", "b"}})});
  EXPECT_THAT(text, HasSubstr("# TYPE x_seconds histogram\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{a=\"b\",le=\"1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{a=\"b\",le=\"2\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{a=\"b\",le=\"+Inf\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_count{a=\"b\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_sum{a=\"b\"} 12.5\n"));
}

TEST(Metrics, the_engines_numbers_come_out_under_their_names) {
  EngineStatistics statistics;
  statistics.load = {.bytes_done = 1, .bytes_total = 4, .seconds = 1.5, .ready = false};
  statistics.requests_running = 2;
  statistics.requests_waiting = 3;
  statistics.finished_stop = 4;
  statistics.finished_cancelled = 5;
  statistics.kv_pages = 10;
  statistics.kv_pages_free = 7;
  statistics.weight_bytes = 1000;
  ModelInfo info;
  info.architecture = "llama";
  info.instruction_set = "avx2";
  const std::string text = text_of(engine_families(statistics, info, "a \"name\""));
  const std::string model = "model=\"a \\\"name\\\"\"";
  const auto has = [&](const std::string& line) { EXPECT_THAT(text, HasSubstr(line)); };
  has("lockstep_requests_running{" + model + "} 2\n");
  has("lockstep_requests_waiting{" + model + "} 3\n");
  has("lockstep_requests_total{" + model + ",finish_reason=\"stop\"} 4\n");
  has("lockstep_requests_total{" + model + ",finish_reason=\"length\"} 0\n");
  has("lockstep_requests_total{" + model + ",finish_reason=\"cancelled\"} 5\n");
  has("lockstep_requests_total{" + model + ",finish_reason=\"error\"} 0\n");
  has("lockstep_kv_cache_pages{" + model + ",state=\"used\"} 3\n");
  has("lockstep_kv_cache_pages{" + model + ",state=\"free\"} 7\n");
  has("lockstep_memory_bytes{" + model + ",kind=\"weights\"} 1000\n");
  has("lockstep_model_load_progress_ratio{" + model + "} 0.25\n");
  has("lockstep_model_load_seconds{" + model + "} 1.5\n");
  has("isa=\"avx2\"");
}

TEST(Metrics, the_caches_size_is_a_label_once_there_is_a_cache) {
  EngineStatistics statistics;
  ModelInfo info;
  info.kv_page_tokens = 64;
  EXPECT_EQ(text_of(engine_families(statistics, info, "m")).find("lockstep_cache_config_info{"),
            std::string::npos);
  statistics.kv_pages = 10;
  EXPECT_THAT(text_of(engine_families(statistics, info, "m")),
              HasSubstr("lockstep_cache_config_info{model=\"m\",block_size=\"64\",num_gpu_blocks="
                        "\"10\"} 1\n"));
}

TEST(Metrics, a_gpus_memory_and_time_are_told_and_a_nodes_are_not) {
  EngineStatistics statistics;
  statistics.ranks.resize(2);
  RankStatistics& gpu = statistics.ranks[0];
  gpu.node = 1;
  gpu.gpu = 3;
  gpu.gpu_title = "gpu3 Simulated GPU";
  gpu.weight_bytes = 1000;
  gpu.kv_bytes = 200;
  gpu.scratch_bytes = 50;
  gpu.host_scratch_bytes = 10;
  gpu.gpu_seconds = 2.5;
  statistics.ranks[1].weight_bytes = 7;
  const std::string text = text_of(engine_families(statistics, ModelInfo(), "m"));
  const auto has = [&](const std::string& line) { EXPECT_THAT(text, HasSubstr(line)); };
  has("lockstep_gpu_memory_bytes{model=\"m\",gpu=\"3\",kind=\"weights\"} 1000\n");
  has("lockstep_gpu_memory_bytes{model=\"m\",gpu=\"3\",kind=\"kv\"} 200\n");
  // The bytes of them that lie in the host's memory are not the GPU's.
  has("lockstep_gpu_memory_bytes{model=\"m\",gpu=\"3\",kind=\"activations\"} 40\n");
  has("lockstep_gpu_pass_seconds_total{model=\"m\",gpu=\"3\"} 2.5\n");
  has("rank=\"0\",node=\"1\",gpu=\"gpu3 Simulated GPU\"");
  EXPECT_EQ(text.find("lockstep_gpu_memory_bytes{model=\"m\",gpu=\"-1\""), std::string::npos);
}

TEST(Metrics, routes_are_counted_by_method_and_status_and_are_there_from_the_start) {
  HttpMetrics metrics;
  metrics.add_routes({HttpRoute{"POST", "/tokenize", {}, false}});
  EXPECT_THAT(
      text_of(metrics.families()),
      HasSubstr(
          "lockstep_http_requests_total{route=\"/tokenize\",method=\"POST\",code=\"200\"} 0\n"));
  metrics.observe(record("POST", "/tokenize", 200, 0.5));
  metrics.observe(record("POST", "/tokenize", 418, 0.5));
  const std::string text = text_of(metrics.families());
  EXPECT_THAT(
      text,
      HasSubstr(
          "lockstep_http_requests_total{route=\"/tokenize\",method=\"POST\",code=\"200\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("code=\"418\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_http_request_duration_seconds_count{route=\"/tokenize\","
                              "method=\"POST\"} 2\n"));
}

TEST(Metrics, a_client_cannot_make_series_with_methods_and_paths_of_its_own) {
  HttpMetrics metrics;
  for (int index = 0; index < 1000; ++index) {
    const std::string simulated = fmt::format("M{}", index);
    HttpRecord made = record(simulated, "", 404, 0);
    made.path = simulated;
    metrics.observe(made);
  }
  const std::string text = text_of(metrics.families());
  EXPECT_THAT(text, HasSubstr("lockstep_http_requests_total{route=\"none\",method=\"other\","
                              "code=\"404\"} 1000\n"));
  EXPECT_EQ(text.find("M1"), std::string::npos);
}

TEST(Metrics, the_process_tells_of_itself) {
  const std::string text = text_of(process_families());
  for (const std::string_view name :
       {"process_cpu_seconds_total ", "process_resident_memory_bytes ",
        "process_virtual_memory_bytes ", "process_start_time_seconds ", "process_open_fds ",
        "process_max_fds "}) {
    EXPECT_THAT(text, HasSubstr(std::string(name)));
  }
}

}  // namespace
}  // namespace lockstep
