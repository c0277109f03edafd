#include "engine/serving/reasoning_watch.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kSpace = " \n\t\r";

// Whether `text` ends with a part of `mark` that more text may complete.
bool ends_within(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (text.ends_with(mark.substr(0, size))) return true;
  }
  return false;
}

}  // namespace

ReasoningWatch::ReasoningWatch(ReasoningLimit limit)
    : limit_(std::move(limit)), place_(limit_.is_open ? Place::kWithin : Place::kBefore) {
  if (limit_.close.empty() || limit_.end.empty()) place_ = Place::kBehind;
  if (place_ == Place::kWithin && limit_.tokens == 0) place_ = Place::kEnding;
}

std::optional<TokenId> ReasoningWatch::next() const {
  if (place_ != Place::kEnding) return std::nullopt;
  return end()[ended_];
}

void ReasoningWatch::add(std::string_view bytes) {
  switch (place_) {
    case Place::kBefore: {
      text_ += bytes;
      const std::string_view text = text_;
      const std::string_view said =
          text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
      if (said.size() < limit_.open.size() && limit_.open.starts_with(said)) return;
      if (!said.starts_with(limit_.open)) {
        place_ = Place::kBehind;
        return add_behind("");
      }
      place_ = Place::kWithin;
      const std::string rest(said.substr(limit_.open.size()));
      text_.clear();
      if (!rest.empty()) return add_within(rest);
      if (limit_.tokens == 0) place_ = Place::kEnding;
      return;
    }
    case Place::kWithin:
      return add_within(bytes);
    case Place::kEnding:
      if (++ended_ < end().size()) return;
      ended_ = 0;
      is_spent_ = true;
      text_.clear();
      place_ = Place::kBehind;
      return;
    case Place::kBehind:
      return add_behind(bytes);
  }
}

void ReasoningWatch::add_behind(std::string_view bytes) {
  const std::string_view again = limit_.again;
  if (again.empty() || limit_.end_again.empty()) return;
  text_ += bytes;
  const size_t found = text_.find(again);
  if (found == std::string::npos) {
    text_.erase(0, text_.size() - std::min(text_.size(), again.size() - 1));
    return;
  }
  const std::string rest = text_.substr(found + again.size());
  text_.clear();
  place_ = Place::kWithin;
  if (!rest.empty()) return add_within(rest);
  if (tokens_ >= limit_.tokens) place_ = Place::kEnding;
}

void ReasoningWatch::add_within(std::string_view bytes) {
  text_ += bytes;
  ++tokens_;
  if (const size_t found = text_.find(limit_.close); found != std::string::npos) {
    const std::string rest = text_.substr(found + limit_.close.size());
    --tokens_;  // the mark is none of the reasoning
    text_.clear();
    place_ = Place::kBehind;
    return add_behind(rest);
  }
  const size_t kept = std::min(text_.size(), limit_.close.size());
  text_.erase(0, text_.size() - kept);
  // A mark that the model has begun by itself is let come to its end.
  if (tokens_ >= limit_.tokens && !ends_within(text_, limit_.close)) place_ = Place::kEnding;
}

}  // namespace lockstep
