#include "engine/text/ranking_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/text/traced_text.h"

namespace lockstep {

Result<RankingText> RankingText::read(const GgufFile& file) {
  const auto form = file.text("tokenizer.chat_template.rerank");
  if (!form) return std::unexpected(form.error());
  RankingText text;
  text.form_ = form->value_or("");
  return text;
}

RankingPrompt RankingText::encode(const Tokenizer& tokenizer, std::string_view query,
                                  std::string_view document, size_t tokens_max) const {
  RankingPrompt prompt;
  if (form_.empty()) {
    prompt.second_text = tokenizer.encode_pair(query, document, tokens_max, prompt.tokens);
    return prompt;
  }
  const std::array<std::pair<std::string_view, std::string_view>, 2> places = {
      {{"{query}", query}, {"{document}", document}}};
  TracedText text;
  for (size_t position = 0; position < form_.size();) {
    const std::string_view rest = std::string_view(form_).substr(position);
    const auto found = std::ranges::find_if(
        places, [&](const auto& place) { return rest.starts_with(place.first); });
    if (found != places.end()) {
      text.append(found->second, /*is_foreign=*/true);
      position += found->first.size();
    } else {
      const size_t next = std::min(rest.find('{', 1), rest.size());
      text.append(rest.substr(0, next), /*is_foreign=*/false);
      position += next;
    }
  }
  prompt.tokens = tokenizer.encode(text.text, {.add_special = false,
                                               .parse_special = true,
                                               .tokens_max = tokens_max,
                                               .foreign = text.foreign});
  return prompt;
}

}  // namespace lockstep
