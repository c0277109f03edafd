// The texts of what steps are made of, for plan_text(): arena+offset, rows with their stride.
// Each step's own text stands in its operation's folder.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include "engine/graph/arenas.h"
#include "engine/graph/graph.h"
#include "engine/graph/step_buffers.h"
#include "engine/kernels/activation_function.h"
#include "engine/kernels/profile.h"

namespace lockstep {

inline constexpr std::string_view kRowNames[] = {"tokens", "logits", "experts"};
inline constexpr std::string_view kPairNames[] = {"interleaved", "halves"};

// The name of an enumerator, by its number.
template <typename Enum, size_t kCount>
std::string_view name_in(const std::string_view (&names)[kCount], Enum value) {
  return names[static_cast<size_t>(value)];
}

std::string text_of(Arena arena, size_t bytes);

template <typename T>
std::string text_of(const ArenaOffset<T>& offset) {
  return text_of(offset.arena, offset.bytes);
}

template <typename T>
std::string text_of(const ArenaOffset<T>& rows, size_t stride) {
  return fmt::format("{}/{}", text_of(rows), stride);
}

std::string text_of(const ChunkSums& chunks);
std::string text_of(const Forms& forms);
std::string text_of(const FormsOutput& output);
std::string text_of(const NormFactor& norm);
std::string text_of(const NormOutput& norm);
std::string text_of(const PlannedMatrix& matrix);
std::string text_of(const ProductForms& forms);
std::string text_of(const Routing& routing);
std::string text_of(const PlainRows& rows);
std::string text_of(const PlainOutput& output);
// "tokens ", or "experts " with their routing.
std::string text_of(Rows rows, const Routing& routing);
// SiLU goes without saying.
std::string text_of(const Activation& activation);

inline std::string text_of(const std::monostate&) {
  return "";
}

}  // namespace lockstep
