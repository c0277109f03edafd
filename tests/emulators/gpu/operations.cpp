#include "tests/emulators/gpu/operations.h"

namespace lockstep::ptx {

const Operation* Operations::find(std::string_view name) {
  static const Operations operations = [] {
    Operations table;
    add_integer_operations(table);
    add_float_operations(table);
    add_conversions(table);
    add_comparisons(table);
    add_moves(table);
    return table;
  }();
  const auto found = operations.table_.find(name);
  return found == operations.table_.end() ? nullptr : &found->second;
}

}  // namespace lockstep::ptx
