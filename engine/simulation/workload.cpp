#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <utility>

#include "engine/base/json.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

constexpr size_t kTokensMost = size_t{1} << 24U;

// Mixes the bits of a number (the finalizer of SplitMix64, Steele and others 2014).
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

constexpr std::array<std::string_view, 7> kMembers = {
    "arrival", "prompt", "answer", "tenant", "prefix", "prefix_tokens", "conversation"};

Result<size_t> token_count(const Json& line, const char* name, size_t least, size_t absent) {
  if (!line.contains(name)) {
    if (absent >= least) return absent;
    return invalid_input("\"{}\" is missing", name);
  }
  const Json& value = line.at(name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() < least ||
      value.get<uint64_t>() > kTokensMost) {
    return invalid_input("\"{}\" must be an integer from {} to {}, not {}", name, least,
                         kTokensMost, to_text(value));
  }
  return value.get<size_t>();
}

Result<std::string> name_of(const Json& line, const char* name) {
  if (!line.contains(name)) return std::string();
  if (!line.at(name).is_string()) {
    return invalid_input("\"{}\" must be a string, not {}", name, to_text(line.at(name)));
  }
  return line.at(name).get<std::string>();
}

std::optional<size_t> parse_length(std::string_view text) {
  size_t length = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  const bool whole = error == std::errc() && stopped == text.data() + text.size();
  return whole && length >= 1 && length <= kTokensMost ? std::optional(length) : std::nullopt;
}

Result<void> check_members(const Json& line) {
  if (!line.is_object()) return invalid_input("must be an object, not {}", kind_name(line));
  for (const auto& [name, value] : line.items()) {
    if (std::ranges::find(kMembers, name) == kMembers.end()) {
      return invalid_input("\"{}\" is unknown; known are {}", name, fmt::join(kMembers, ", "));
    }
  }
  if (!line.contains("arrival") || !line.at("arrival").is_number() ||
      !(line.at("arrival").get<double>() >= 0)) {
    return invalid_input("\"arrival\" must be a number of seconds, 0 or more");
  }
  return {};
}

Result<SimulatedRequest> parse_request(const Json& line) {
  if (const auto known = check_members(line); !known) return std::unexpected(known.error());
  SimulatedRequest request;
  request.arrival = line.at("arrival").get<double>();
  const auto prompt = token_count(line, "prompt", 1, 0);
  if (!prompt) return std::unexpected(prompt.error());
  const auto answer = token_count(line, "answer", 1, 0);
  if (!answer) return std::unexpected(answer.error());
  request.prompt_tokens = *prompt;
  request.answer_tokens = *answer;
  for (const auto& [name, member] : {std::pair{"tenant", &SimulatedRequest::tenant},
                                     std::pair{"prefix", &SimulatedRequest::prefix},
                                     std::pair{"conversation", &SimulatedRequest::conversation}}) {
    auto text = name_of(line, name);
    if (!text) return std::unexpected(text.error());
    request.*member = std::move(*text);
  }
  const size_t whole = request.prefix.empty() ? 0 : *prompt;
  const auto prefix_tokens = token_count(line, "prefix_tokens", 0, whole);
  if (!prefix_tokens) return std::unexpected(prefix_tokens.error());
  if (*prefix_tokens > *prompt) {
    return invalid_input("\"prefix_tokens\" is {}, but the prompt has {}", *prefix_tokens, *prompt);
  }
  request.prefix_tokens = *prefix_tokens;
  return request;
}

}  // namespace

Result<std::vector<SimulatedRequest>> parse_trace(std::string_view text) {
  std::vector<SimulatedRequest> requests;
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto value = parse_json(line);
    if (!value) return invalid_input("line {}: {}", number, value.error().message);
    auto request = parse_request(*value);
    if (!request) return invalid_input("line {}: {}", number, request.error().message);
    requests.push_back(std::move(*request));
  }
  if (requests.empty()) return invalid_input("there is no request in it");
  std::ranges::stable_sort(requests, {}, &SimulatedRequest::arrival);
  return requests;
}

Result<LengthRange> parse_length_range(std::string_view text, std::string_view option) {
  const size_t hyphen = std::min(text.find('-'), text.size());
  const auto least = parse_length(text.substr(0, hyphen));
  const auto most = hyphen == text.size() ? least : parse_length(text.substr(hyphen + 1));
  if (!least || !most || *most < *least) {
    return invalid_input(
        "{}: must be a number of tokens from 1 to {}, or two with a hyphen "
        "between, the smaller first, not {}",
        option, kTokensMost, text);
  }
  return LengthRange{*least, *most};
}

std::vector<SimulatedRequest> make_arrivals(const ArrivalProcess& process) {
  std::mt19937_64 random(process.seed);
  // The library's distributions differ between libraries; these numbers are everywhere the same.
  const auto part = [&] { return static_cast<double>(random() >> 11U) * 0x1p-53; };
  const auto below = [&](size_t count) {
    return std::min(count - 1, static_cast<size_t>(part() * static_cast<double>(count)));
  };
  const auto length = [&](const LengthRange& range) {
    return range.least + below(range.most - range.least + 1);
  };
  std::vector<SimulatedRequest> requests;
  double now = 0;
  while (true) {
    now -= std::log1p(-part()) / process.requests_per_second;
    if (now >= process.seconds) return requests;
    SimulatedRequest request;
    request.arrival = now;
    request.prompt_tokens = length(process.prompt);
    request.answer_tokens = length(process.answer);
    request.prefix_tokens = std::min(process.prefix_tokens, request.prompt_tokens);
    request.prefix = fmt::format("prefix {}", below(process.prefix_count));
    request.tenant = fmt::format("tenant {}", below(process.tenant_count));
    requests.push_back(std::move(request));
  }
}

int32_t token_at(const SimulatedRequest& request, size_t number, size_t position) {
  const std::hash<std::string> hash;
  uint64_t stream = mix(number) ^ 1U;
  if (position < request.prefix_tokens) {
    stream = mix(hash(request.prefix)) ^ 2U;
  } else if (!request.conversation.empty()) {
    stream = mix(hash(request.conversation)) ^ 3U;
  }
  return static_cast<int32_t>(mix(stream + mix(position)) >> 33U);
}

}  // namespace lockstep
