"""cpp_functions.py, which tells tests/test_tree.py how long functions are."""

import pytest
from cpp_functions import functions


def found(text):
    return [(each.name, each.first, each.last) for each in functions(text)]


def test_functions_are_found_wherever_they_stand():
    text = """\
namespace lockstep {
namespace {

int one() {
  return 1;
}

// A comment with a { brace, and "a quote.
template <typename T, typename = std::enable_if_t<(sizeof(T) > 4)>>
[[nodiscard]] constexpr auto two(T value, Limits limits = {}) noexcept(sizeof(T) > 1)
    -> std::vector<T> {
  if (value) {
    return {};
  }
  return {value};
}

}  // namespace

class Thing final : public Base<int> {
 public:
  explicit Thing(int a) : Base(a), list_{a, a}, row_({.a = 1}) {}
  ~Thing() override {
    close();
  }
  bool operator==(const Thing& other) const { return list_ == other.list_; }
  int operator()(int a) const {
    return a;
  }

 private:
  std::vector<int> list_{1, 2};
  std::function<void()> call_ = [] {};
};

Thing::Thing(std::string_view name)
    : Base(name.size()),
      row_{.a = 1} {
  start();
}

const auto three = [](int a) -> int {
  return a;
};

enum class Colour : uint8_t { kRed, kBlue };
constexpr int kTable[] = {
    1,
    2,
};
extern "C" {
void four(void) {
}
}
}  // namespace lockstep

using namespace lockstep;

TEST_F(Things, are_good) {
  EXPECT_TRUE(true);
}

GPU_KERNEL_OF(kMost* kWarpThreads) void five(int* out) {
  struct Local {
    void ignored() {
    }
  };
}
"""
    assert found(text) == [
        ("one", 4, 6), ("two", 9, 16), ("Thing", 22, 22), ("~Thing", 23, 25),
        ("operator==", 26, 26), ("operator()", 27, 29), ("call_", 33, 33), ("Thing::Thing", 36, 40),
        ("three", 42, 44), ("four", 52, 53), ("Things.are_good", 59, 61), ("five", 63, 68)]


def test_braces_in_literals_comments_and_directives_are_none():
    text = """\
#define OPEN(a) \\
  { a
/* { */
int one() {
  const char* a = "{\\"{";
  const char* b = R"x({ )" { )x";
  const char c = '{', d = '\\'';
  const int e = 1'000'000;
  return *a + *b + c + d + e;  // {
}
int two() { return 2; }
"""
    assert found(text) == [("one", 4, 10), ("two", 11, 11)]


def test_a_table_counts_as_data():
    text = """\
std::vector<Row> rows() {
  static const std::vector<Row> table = {
      {"a", [](int a) {
         return a;
       }},
      {"b",
       {}},
  };
  const Row one = {1, 2};
  if (table.empty()) {
    return {
        one,
    };
  }
  return table;
}
"""
    [rows] = functions(text)
    assert (rows.first, rows.last, rows.table_lines, rows.lines) == (1, 16, 6, 10)


@pytest.mark.parametrize("text", ["int one() {", "int one() {}\n}\n"])
def test_a_file_whose_braces_do_not_match_is_refused(text):
    with pytest.raises(ValueError):
        functions(text)
