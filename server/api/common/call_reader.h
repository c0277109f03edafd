// Reads one call of a tool from text that comes in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/common/parameter_types.h"

namespace lockstep {

class CallReader {
 public:
  enum class State {
    kOpen,    // wants more
    kWhole,   // the call is complete, and sound
    kBroken,  // it is no call
  };

  static constexpr size_t kBytesMax = size_t{1} << 20U;  // a call longer than this is text

  virtual ~CallReader() = default;

  // Takes bytes up to the end of the call, or of its name, and says how many it took. The name is
  // an end since the rest may be no call's.
  virtual size_t push(std::string_view text) = 0;
  virtual State state() const = 0;
  // Once it is known.
  virtual const std::optional<std::string>& name() const = 0;
  // Once it is: the kinds of the function's parameters, which outlive this.
  virtual void set_parameters(const ParameterKinds& /*kinds*/) {}
  // The JSON text of the arguments that came since the last call of this; "{}" at the end of a
  // call without arguments.
  virtual std::string take_arguments() = 0;
  // Everything that was taken and is the call's.
  virtual const std::string& raw() const = 0;

  // A mark within a text in quotes is none, unless the quote is no quote: then the call, or one of
  // its values, ended at the mark, and what was taken behind it comes again.
  // The text that comes again; the caller pushes it, or reads it otherwise if the call is over.
  virtual std::string take_rest() = 0;
  // No more text will come, so that an open quote is none. True if take_rest() has something.
  virtual bool end_text() = 0;
};

}  // namespace lockstep
