#include "server/api/openai/embeddings_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "engine/base/json_text.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "embeddings are little endian");

std::string floats_in_base64(std::span<const float> numbers) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::span<const std::byte> bytes = std::as_bytes(numbers);
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t begin = 0; begin < bytes.size(); begin += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - begin);
    uint32_t group = 0;
    for (size_t place = 0; place < 3; ++place) {
      group = group << 8U | (place < count ? std::to_integer<uint32_t>(bytes[begin + place]) : 0);
    }
    for (size_t digit = 0; digit < 4; ++digit) {
      text += digit <= count ? kDigits[group >> (18 - 6 * digit) & 63U] : '=';
    }
  }
  return text;
}

// Written as text: as a value, each number would take many times the place. Numbers are the
// shortest that an f32 is read back from.
std::string EmbeddingsBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  std::string text = R"({"object":"list","data":[)";
  const auto end = std::back_inserter(text);
  for (size_t index = 0; index < whole.size(); ++index) {
    fmt::format_to(end, R"({}{{"object":"embedding","index":{},"embedding":)",
                   index == 0 ? "" : ",", index);
    if (base64_) {
      fmt::format_to(end, R"("{}"}})", floats_in_base64(whole[index].embedding));
    } else {
      fmt::format_to(end, "[{}]}}", fmt::join(whole[index].embedding, ","));
    }
  }
  fmt::format_to(end, R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                 to_text(Json(name_)), usage.prompt_tokens, usage.prompt_tokens);
  return text;
}

}  // namespace lockstep
