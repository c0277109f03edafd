#include "engine/text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/merge_sort.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/utf8.h"

namespace lockstep::jinja {

namespace {

class JsonReader {
 public:
  JsonReader(Heap& heap, JsonOrigin origin) : heap_(heap), origin_(origin) {}

  Value read(const nlohmann::ordered_json& json) {
    using Type = nlohmann::ordered_json::value_t;
    heap_.step();
    switch (json.type()) {
      case Type::null:
        return {};
      case Type::boolean:
        return Value(json.get<bool>());
      case Type::number_integer:
        return Value(json.get<int64_t>());
      case Type::number_unsigned:
        return read_unsigned(json.get<uint64_t>());
      case Type::number_float:
        return Value(json.get<double>());
      case Type::string:
        return read_string(json.get_ref<const std::string&>());
      case Type::array:
      case Type::object:
        return read_container(json);
      default:
        fail("a variable holds what is no JSON text, number, list or object");
    }
  }

 private:
  static Value read_unsigned(uint64_t number) {
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail("the integer {} is too big for a template: it must fit 64 bits with a sign", number);
    }
    return Value(static_cast<int64_t>(number));
  }

  Value read_string(const std::string& text) {
    heap_.step_bytes(text.size());
    heap_.reserve(text.size());
    return make_string(heap_, TracedText(is_valid_utf8(text) ? text : replace_invalid_utf8(text),
                                         origin_ != JsonOrigin::kOwn));
  }

  // Templates make control tokens of roles ("<|" + role + "|>"). A role is one plain word: it
  // cannot bring a token's text of its own.
  bool is_role(const std::string& key, const nlohmann::ordered_json& value) const {
    constexpr uint32_t kMessageDepth = 2;
    if (origin_ != JsonOrigin::kMessages || depth_ != kMessageDepth || key != "role") return false;
    return value.is_string() &&
           std::ranges::all_of(value.get_ref<const std::string&>(),
                               [](char letter) { return letter >= 'a' && letter <= 'z'; });
  }

  Value read_container(const nlohmann::ordered_json& json) {
    if (++depth_ > heap_.limits().depth) {
      Failure failure{fmt::format("the variables nest deeper than the depth budget of {} allows",
                                  heap_.limits().depth)};
      failure.budget = true;
      throw failure;
    }
    Value result;
    if (json.is_array()) {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(read(item));
      result = make_list(heap_, std::move(items));
    } else {
      // The keys of a JSON object differ already.
      std::vector<DictData::Entry> entries;
      for (const auto& [key, value] : json.items()) {
        Value name = read_string(key);
        const bool own = is_role(key, value);
        entries.emplace_back(std::move(name), own ? make_own_string(heap_, value) : read(value));
      }
      result = Value(std::make_shared<const DictData>(heap_, std::move(entries)));
    }
    --depth_;
    return result;
  }

  Heap& heap_;
  JsonOrigin origin_;
  uint32_t depth_ = 0;
};

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style, TextBuilder& text)
      : heap_(heap), style_(style), text_(text) {}

  void write(const Value& value) {
    heap_.step();
    if (value.is_none()) {
      text_.append("null");
    } else if (value.is_boolean()) {
      text_.append(value.boolean() ? "true" : "false");
    } else if (value.is_integer()) {
      text_.append(fmt::to_string(value.integral()));
    } else if (value.is_float()) {
      text_.append(number_text(value.floating()));
    } else if (value.is_string()) {
      write_text(value);
    } else if (const ListData* list = value.sequence()) {
      write_list(*list);
    } else if (const DictData* dict = value.dict()) {
      write_dict(*dict);
    } else {
      const UndefinedData* undefined = value.undefined_data();
      fail("Object of type {} is not JSON serializable{}{}", type_name(value),
           undefined != nullptr ? ": " : "", undefined != nullptr ? undefined->explanation : "");
    }
  }

 private:
  static std::string number_text(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void write_text(const Value& value) {
    const size_t begin = text_.size();
    write_string(value.text());
    if (value.traced().is_foreign()) text_.mark_foreign(begin);
  }

  void write_string(std::string_view content) {
    heap_.step_bytes(content.size());
    text_.append("\"");
    while (!content.empty()) {
      const Character character = first_character(content);
      write_character(character.code_point, content.substr(0, character.bytes));
      content.remove_prefix(character.bytes);
    }
    text_.append("\"");
  }

  void write_character(uint32_t code_point, std::string_view bytes) {
    switch (code_point) {
      case '"':
        return text_.append("\\\"");
      case '\\':
        return text_.append("\\\\");
      case '\n':
        return text_.append("\\n");
      case '\r':
        return text_.append("\\r");
      case '\t':
        return text_.append("\\t");
      case '\f':
        return text_.append("\\f");
      case '\b':
        return text_.append("\\b");
      default:
        break;
    }
    if (code_point < 0x20) {
      text_.append(fmt::format("\\u{:04x}", code_point));
    } else if (!style_.ensure_ascii || code_point < 0x7F || (code_point == 0x7F)) {
      text_.append(bytes);
    } else if (code_point <= 0xFFFF) {
      text_.append(fmt::format("\\u{:04x}", code_point));
    } else {
      const uint32_t offset = code_point - 0x10000;
      text_.append(
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10U), 0xDC00 + (offset & 0x3FFU)));
    }
  }

  void break_line() {
    if (!style_.pretty) return;
    text_.append("\n");
    for (uint32_t level = 0; level < level_; ++level) text_.append(style_.indent);
  }

  void write_list(const ListData& list) {
    if (list.items.empty()) return text_.append("[]");
    text_.append("[");
    ++level_;
    for (size_t index = 0; index < list.items.size(); ++index) {
      if (index > 0) text_.append(style_.item_separator);
      break_line();
      write(list.items[index]);
    }
    --level_;
    break_line();
    text_.append("]");
  }

  void write_dict(const DictData& dict) {
    if (dict.entries.empty()) return text_.append("{}");
    std::vector<const DictData::Entry*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      merge_sort(entries, [&](const auto* left, const auto* right) {
        return less(heap_, left->first, right->first);
      });
    }
    text_.append("{");
    ++level_;
    for (size_t index = 0; index < entries.size(); ++index) {
      if (index > 0) text_.append(style_.item_separator);
      break_line();
      write_key(entries[index]->first);
      text_.append(style_.key_separator);
      write(entries[index]->second);
    }
    --level_;
    break_line();
    text_.append("}");
  }

  void write_key(const Value& key) {
    if (key.is_string()) return write_text(key);
    if (key.is_none()) return write_string("null");
    if (key.is_boolean()) return write_string(key.boolean() ? "true" : "false");
    if (key.is_integer()) return write_string(fmt::to_string(key.integral()));
    if (key.is_float()) return write_string(number_text(key.floating()));
    fail("keys must be str, int, float, bool or None, not {}", type_name(key));
  }

  Heap& heap_;
  const JsonStyle& style_;
  TextBuilder& text_;
  uint32_t level_ = 0;
};

}  // namespace

Value from_json(Heap& heap, const nlohmann::ordered_json& json, JsonOrigin origin) {
  return JsonReader(heap, origin).read(json);
}

TracedText to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  TextBuilder text(heap);
  JsonWriter(heap, style, text).write(value);
  return text.finish();
}

}  // namespace lockstep::jinja
