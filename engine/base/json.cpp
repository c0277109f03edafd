#include "engine/base/json.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/pause_point.h"

namespace lockstep {
namespace {

constexpr size_t kValuesPerPause = 32;
constexpr size_t kBytesPerPause = 4096;

// The text as the parser reads it: long strings take long, too.
class PausingText {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit PausingText(const char* position) : position_(position) {}

  reference operator*() const { return *position_; }
  PausingText& operator++() {
    ++position_;
    if (reinterpret_cast<uintptr_t>(position_) % kBytesPerPause == 0) pause_point();
    return *this;
  }
  bool operator==(const PausingText&) const = default;

 private:
  const char* position_;
};

// Builds the value from the parser's events. Objects are appended to, with a set of names beside
// each open one: looking a name up in the ordered object itself would make many names quadratic.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return fail("binary values are not JSON"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!open_.back().names.insert(name).second) {
      return fail(fmt::format("the name \"{:.64}\" is there twice in one object", name));
    }
    open_.back().name = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    // The library's message without its own prefix "[json.exception.parse_error.101] ".
    std::string_view message = exception.what();
    if (const size_t end = message.find("] "); end != message.npos) message.remove_prefix(end + 2);
    if (const size_t end = message.find(": "); end != message.npos) message.remove_prefix(end + 2);
    return fail(fmt::format("it is not valid JSON: at byte {}: {:.200}", position, message));
  }

  std::string error;
  Json result;

 private:
  struct Open {
    Json value;
    std::string name;  // of the member being read, in an object
    // Ordered: a client that knows the hash could make one bucket of all its names.
    std::set<std::string> names;
  };

  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }

  bool count() {
    if (values_ % kValuesPerPause == 0) pause_point();
    if (++values_ <= limits_.values) return true;
    return fail(fmt::format("it has more than {} values", limits_.values));
  }

  bool open(Json container) {
    if (!count()) return false;
    if (open_.size() >= limits_.depth) {
      return fail(fmt::format("it is nested more than {} levels deep", limits_.depth));
    }
    open_.push_back(Open{std::move(container), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return place(std::move(value));
  }

  bool add(Json value) { return count() && place(std::move(value)); }

  bool place(Json value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      auto& members = open_.back().value.get_ref<Json::object_t&>();
      static_cast<Json::object_t::Container&>(members).emplace_back(std::move(open_.back().name),
                                                                    std::move(value));
    }
    return true;
  }

  JsonLimits limits_;
  size_t values_ = 0;
  std::vector<Open> open_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  try {
    const PausingText begin(text.data());
    const PausingText end(text.data() + text.size());
    if (!Json::sax_parse(begin, end, &builder, Json::input_format_t::json, true, limits.comments)) {
      return invalid_input("{}", builder.error);
    }
  } catch (const nlohmann::detail::exception& exception) {
    return invalid_input("it is not valid JSON: {}", exception.what());
  }
  return std::move(builder.result);
}

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_indented_text(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string_view kind_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    default:
      return "a number";
  }
}

}  // namespace lockstep
