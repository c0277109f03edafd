// Files that were cut or changed at random: an error, or a parse that is consistent with itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "tests/engine/model/gguf_samples.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using test::GgufWriter;

// A whole model that the gguf package wrote.
std::vector<std::byte> read_real_file() {
  std::ifstream file(source_dir() + "/tests/fixtures/vocabularies/spm.gguf", std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const auto* first = reinterpret_cast<const std::byte*>(content.data());
  return {first, first + content.size()};
}

// Copies, so that a sanitizer sees a read past the cut.
Result<GgufFile> parse_copy(std::span<const std::byte> bytes) {
  return test::parse({bytes.begin(), bytes.end()});
}

void expect_error_or_consistency(std::span<const std::byte> bytes) {
  const auto file = parse_copy(bytes);
  if (file) {
    test::expect_consistent(*file, bytes.size());
  } else {
    EXPECT_EQ(file.error().kind, ErrorKind::kInvalidInput);
    EXPECT_FALSE(file.error().message.empty());
  }
}

TEST(GgufDamage, a_file_cut_anywhere_in_its_header_is_refused) {
  const std::vector<std::byte> bytes = test::sample().bytes();
  const uint64_t data_end = bytes.size();
  // The last tensor has no padding behind it, so that every shorter file lacks something.
  for (size_t length = 0; length < data_end; ++length) {
    const auto file = parse_copy(std::span(bytes).first(length));
    ASSERT_FALSE(file) << length;
    ASSERT_EQ(file.error().kind, ErrorKind::kInvalidInput);
  }
}

TEST(GgufDamage, a_real_file_cut_all_over_and_at_every_byte_of_its_lists_is_refused) {
  const std::vector<std::byte> bytes = read_real_file();
  const auto whole = test::parse(bytes);
  ASSERT_TRUE(whole) << whole.error().message;
  const size_t data_begin = whole->tensors().front().offset;
  std::vector<size_t> lengths;
  for (size_t length = 0; length < bytes.size(); length += 127) lengths.push_back(length);
  for (size_t length = 0; length < 700; ++length) lengths.push_back(length);
  // The list of tensors is the end of the header.
  for (size_t length = data_begin - 1000; length < data_begin; ++length) lengths.push_back(length);
  lengths.push_back(bytes.size() - 1);
  for (const size_t length : lengths) {
    const auto file = parse_copy(std::span(bytes).first(std::min(length, bytes.size() - 1)));
    ASSERT_FALSE(file) << length;
    ASSERT_EQ(file.error().kind, ErrorKind::kInvalidInput);
  }
  EXPECT_TRUE(parse_copy(bytes));
}

TEST(GgufDamage, bytes_behind_the_last_tensor_change_nothing) {
  std::vector<std::byte> bytes = test::sample().bytes();
  const auto before = test::parse(bytes);
  bytes.resize(bytes.size() + 12345, std::byte{0x55});
  const auto after = test::parse(bytes);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(before->metadata(), after->metadata());
  EXPECT_EQ(before->tensors().size(), after->tensors().size());
}

// One to eight changes of bytes, bits, or whole integers that are near a border.
void mutate(std::vector<std::byte>& bytes, size_t header_bytes, std::mt19937_64& random) {
  const auto below = [&random](uint64_t limit) { return random() % limit; };
  for (uint64_t left = 1 + below(8); left > 0; --left) {
    const size_t at = below(header_bytes);
    switch (below(4)) {
      case 0:
        bytes[at] = static_cast<std::byte>(below(256));
        break;
      case 1:
        bytes[at] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 2: {
        const uint64_t value = (uint64_t{1} << below(64)) + below(3) - 1;
        std::memcpy(bytes.data() + std::min(at, bytes.size() - 8), &value, 8);
        break;
      }
      default: {
        const auto value = static_cast<uint32_t>(below(40));
        std::memcpy(bytes.data() + std::min(at, bytes.size() - 4), &value, 4);
      }
    }
  }
}

void expect_every_mutation_handled(const std::vector<std::byte>& bytes, size_t header_bytes,
                                   uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < count; ++round) {
    SCOPED_TRACE(fmt::format("seed {}, round {}", seed, round));
    std::vector<std::byte> changed = bytes;
    mutate(changed, header_bytes, random);
    expect_error_or_consistency(changed);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(GgufDamage, a_thousand_mutations_of_a_real_header_give_errors_or_consistent_files) {
  const std::vector<std::byte> bytes = read_real_file();
  const auto file = test::parse(bytes);
  ASSERT_TRUE(file);
  expect_every_mutation_handled(bytes, file->tensors().front().offset, 1, 1000);
}

TEST(GgufDamage, ten_thousand_mutations_of_a_small_header_give_errors_or_consistent_files) {
  const std::vector<std::byte> bytes = test::sample().bytes();
  const auto file = test::parse(bytes);
  ASSERT_TRUE(file);
  expect_every_mutation_handled(bytes, file->tensors().front().offset, 2, 10000);
}

TEST(GgufDamage, every_integer_of_the_header_may_take_every_border_value) {
  const GgufWriter writer = test::sample();
  const std::vector<std::byte> bytes = writer.bytes();
  std::vector<uint64_t> values = {0, 1, (uint64_t{1} << 42) + 1, ~uint64_t{0}};
  for (const int power : {3, 5, 7, 8, 15, 16, 31, 32, 61, 62, 63}) {
    for (const uint64_t offset : {~uint64_t{0}, uint64_t{0}, uint64_t{1}}) {
      values.push_back((uint64_t{1} << power) + offset);
    }
  }
  size_t cases = 0;
  for (const GgufWriter::Field& field : writer.fields()) {
    for (const uint64_t value : values) {
      SCOPED_TRACE(fmt::format("{} = {}", field.name, value));
      std::vector<std::byte> changed = bytes;
      std::memcpy(changed.data() + field.offset, &value, field.bytes);
      expect_error_or_consistency(changed);
      if (HasFatalFailure()) return;
      ++cases;
    }
  }
  EXPECT_GT(cases, 4000u);
}

}  // namespace
}  // namespace lockstep
