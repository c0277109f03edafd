// JSON that clients write grammars in: parsed within bounds, its objects' members in their order.
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/text/grammar/sources.h"

namespace lockstep {
namespace {

// Appends members beside a set of names: looking each up in an ordered object would be quadratic.
class SourceBuilder : public nlohmann::json_sax<SourceJson> {
 public:
  explicit SourceBuilder(size_t depth_max) : depth_max_(depth_max) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(SourceJson::object()); }
  bool start_array(std::size_t /*size*/) override { return open(SourceJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!open_.back().names.insert(name).second) {
      error = fmt::format("the name \"{:.64}\" is there twice in one object", name);
      return false;
    }
    open_.back().name = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*exception*/) override {
    error = fmt::format("it is not valid JSON at byte {}", position);
    return false;
  }

  std::string error = "it is not valid JSON";
  SourceJson result;

 private:
  struct Open {
    SourceJson value;
    std::string name;
    std::unordered_set<std::string> names;
  };

  bool open(SourceJson container) {
    if (open_.size() >= depth_max_) {
      error = fmt::format("it is nested more than {} levels deep", depth_max_);
      return false;
    }
    open_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    SourceJson value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(SourceJson value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      auto& members = open_.back().value.get_ref<SourceJson::object_t&>();
      static_cast<SourceJson::object_t::Container&>(members).emplace_back(
          std::move(open_.back().name), std::move(value));
    }
    return true;
  }

  size_t depth_max_;
  std::vector<Open> open_;
};

}  // namespace

Result<SourceJson> parse_source_json(std::string_view text, const GrammarLimits& limits) {
  SourceBuilder builder(limits.depth);
  try {
    if (!SourceJson::sax_parse(text, &builder)) return invalid_input("{}", builder.error);
  } catch (const nlohmann::detail::exception& exception) {
    return invalid_input("it is not valid JSON: {}", exception.what());
  }
  return std::move(builder.result);
}

}  // namespace lockstep
