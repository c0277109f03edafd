// The values of a simulation of daemons under load, given and found. Times are in seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// One request. Its tokens are stand-ins that only say what is equal to what: the first
// `prefix_tokens` of a prompt are those of every request with the same `prefix`; what follows them,
// the answer too, is that of every request with the same `conversation`, position by position, and
// without one the request's own.
struct SimulatedRequest {
  double arrival = 0;  // seconds from the start; a list of requests is in this order
  std::string tenant;
  size_t prompt_tokens = 0;  // at least 1
  size_t answer_tokens = 1;  // at least 1
  std::string prefix;
  size_t prefix_tokens = 0;  // at most prompt_tokens
  std::string conversation;
};

// Numbers from `least` to `most`, each as likely.
struct LengthRange {
  size_t least = 1;
  size_t most = 1;
};

// Requests that come independently of one another (a Poisson process).
struct ArrivalProcess {
  double requests_per_second = 1;
  double seconds = 60;
  LengthRange prompt = {260, 260};
  LengthRange answer = {48, 48};
  size_t prefix_tokens = 0;  // of each prompt, as far as it has so many
  size_t prefix_count = 1;   // different ones, each as likely
  size_t tenant_count = 1;   // likewise
  uint64_t seed = 1;
};

// One row of the results of `bench --json`.
struct BenchRow {
  size_t prompt_tokens = 0;
  size_t generated_tokens = 0;  // per sequence; exactly one of the two is above 0
  size_t depth_tokens = 0;
  size_t sequences = 1;
  double tokens_per_second = 0;
};

// The time of a pass as a sum of parts, in seconds.
struct PassCosts {
  // A pass of so many generated tokens alone, beside the keys that they see. Between two numbers
  // and beyond them it is on the line through the nearest two, also for a pass without any.
  struct Generation {
    size_t tokens = 0;
    double seconds = 0;
  };
  std::vector<Generation> generation;  // two at least, ascending
  double generated_key = 0;            // each that a generated token sees
  double prompts = 0;                  // any pass with a prompt, more than one without
  double prompt_token = 0;             // beside the keys that it sees
  double prompt_key = 0;               // each that a token of a prompt sees
};

// One daemon. The options of the same names are the daemon's.
struct ReplicaOptions {
  size_t sequences = 8;
  size_t batch_tokens = 512;
  size_t kv_pages = 512;  // of 64 tokens
  size_t waiting_requests = 1024;
  size_t waiting_prompt_tokens = 262'144;
  double first_token_target = 2;
  double token_target = 0.5;
};

struct FleetOptions {
  size_t replicas = 1;                   // at least 1
  std::string router = "prefix-active";  // of router_names()
  ReplicaOptions replica;
  PassCosts costs;
  // A request is good that has its first token within the first limit, and its tokens on average
  // within the second of one another.
  double first_token_limit = 2;
  double token_limit = 0.5;
  double router_seconds = 0.05;  // how old a replica's state is at most when the router looks
  double skipped_seconds = 0;    // requests that come before are not counted
  uint64_t seed = 1;             // of the router's draws
};

struct FleetReport {
  size_t requests = 0;
  size_t refused = 0;
  size_t good = 0;
  double seconds = 0;  // from the first counted arrival to the last counted answer
  double answer_tokens = 0;
  std::vector<double> first_tokens;  // of those that were answered
  std::vector<double> mean_gaps;     // of those with two tokens and more
  std::vector<double> longest_gaps;
  // All requests, counted or not.
  uint64_t prompt_tokens_asked = 0;  // that were looked up in the prefix caches
  uint64_t prompt_tokens_found = 0;
  uint64_t preemptions = 0;
  std::vector<double> busy;  // by replica: the part of the time in which it computed

  double good_part() const {
    return requests == 0 ? 1 : static_cast<double>(good) / static_cast<double>(requests);
  }
};

}  // namespace lockstep
