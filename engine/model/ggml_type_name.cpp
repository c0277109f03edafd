#include "engine/model/ggml_type_name.h"

#include <algorithm>
#include <array>

namespace lockstep {
namespace {

struct TypeName {
  uint32_t number = 0;
  std::string_view name;
};

// The numbers of enum ggml_type, those included that no file of today has.
constexpr auto kTypeNames = std::to_array<TypeName>({
    {0, "F32"},     {1, "F16"},         {2, "Q4_0"},        {3, "Q4_1"},        {4, "Q4_2"},
    {5, "Q4_3"},    {6, "Q5_0"},        {7, "Q5_1"},        {8, "Q8_0"},        {9, "Q8_1"},
    {10, "Q2_K"},   {11, "Q3_K"},       {12, "Q4_K"},       {13, "Q5_K"},       {14, "Q6_K"},
    {15, "Q8_K"},   {16, "IQ2_XXS"},    {17, "IQ2_XS"},     {18, "IQ3_XXS"},    {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"},      {22, "IQ2_S"},      {23, "IQ4_XS"},     {24, "I8"},
    {25, "I16"},    {26, "I32"},        {27, "I64"},        {28, "F64"},        {29, "IQ1_M"},
    {30, "BF16"},   {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"},
    {35, "TQ2_0"},  {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"},
});

}  // namespace

std::string_view ggml_type_name(uint32_t ggml_type) {
  const auto found = std::ranges::find(kTypeNames, ggml_type, &TypeName::number);
  return found == kTypeNames.end() ? std::string_view() : found->name;
}

}  // namespace lockstep
