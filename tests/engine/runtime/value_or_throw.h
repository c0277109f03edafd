// A result's value, or its error as an exception: for what a test needs before it can begin.
#pragma once

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "engine/base/result.h"

namespace lockstep {

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace lockstep
