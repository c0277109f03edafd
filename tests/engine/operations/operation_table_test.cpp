// The table of operations: a row for each, which says how it is planned.
#include "engine/operations/operation_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

namespace lockstep {
namespace {

TEST(OperationTable, has_a_row_for_each_operation_in_order) {
  ASSERT_EQ(operation_table().size(), kOperationCount);
  std::set<std::string_view> names;
  for (size_t index = 0; index < kOperationCount; ++index) {
    EXPECT_EQ(static_cast<size_t>(operation_table()[index]->operation), index);
    names.insert(operation_table()[index]->name);
  }
  EXPECT_EQ(names.size(), kOperationCount);
}

TEST(OperationTable, says_of_each_operation_how_it_is_planned) {
  for (const OperationRow* const row : operation_table()) {
    EXPECT_NE(row->plan, nullptr) << row->name;
    EXPECT_FALSE(row->name.empty()) << static_cast<size_t>(row->operation);
  }
}

TEST(OperationTable, says_what_state_is_kept_where_one_is) {
  for (const OperationRow* const row : operation_table()) {
    EXPECT_EQ(row->state != nullptr, has_state({.operation = row->operation})) << row->name;
  }
}

// A product's matrix is cut as what reads it needs, so what hands a product on is none itself.
TEST(OperationTable, hands_on_what_is_no_product) {
  for (const OperationRow* const row : operation_table()) {
    EXPECT_FALSE(row->hands_on && row->split == SplitRule::kProduct) << row->name;
  }
}

}  // namespace
}  // namespace lockstep
