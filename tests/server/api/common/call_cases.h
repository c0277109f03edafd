// Turns as models write them, and what they say.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct CallCase {
  std::string_view family;  // CallSyntax::name
  std::string_view text;
  std::string_view said;
  std::vector<std::string> calls = {};  // "name(arguments)"
  std::string_view reasoning = "";
};

// Families whose arguments are one value in a syntax of their own, or objects in lists.
std::vector<CallCase> literal_call_cases();

// Pairs within pairs, texts in quotes of their own, messages to functions, calls with ids.
std::vector<CallCase> recent_call_cases();

// Texts in quotes that do not end, names that come twice.
std::vector<CallCase> faulty_call_cases();

}  // namespace lockstep
