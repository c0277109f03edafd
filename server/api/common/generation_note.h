// The log's part of a request that generated, beside what HTTP knows of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

struct GenerationNote {
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of them: taken from the prefix cache
  uint64_t generated_tokens = 0;
  std::string_view finish = {};                    // of its last choice
  std::optional<double> queue_seconds = {};        // until the engine took its first request up
  std::optional<double> first_token_seconds = {};  // from the submission to the first of any choice
  std::optional<double> per_token_seconds = {};    // mean, after the first of each choice
  std::string body = {};                           // of the HTTP request, where prompts are logged
};

}  // namespace lockstep
