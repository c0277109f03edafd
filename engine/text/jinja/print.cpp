#include <array>
#include <charconv>
#include <cmath>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/objects.h"

namespace lockstep::jinja {

namespace {

void append_string_repr(std::string_view content, TextBuilder& text) {
  const bool has_single = content.find('\'') != std::string_view::npos;
  const bool has_double = content.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  text.append(1, quote);
  while (!content.empty()) {
    const Character character = first_character(content);
    const std::string_view bytes = content.substr(0, character.bytes);
    const uint32_t code_point = character.code_point;
    if (code_point == '\\' || code_point == static_cast<unsigned char>(quote)) {
      text.append(1, '\\');
      text.append(bytes);
    } else if (code_point == '\n') {
      text.append("\\n");
    } else if (code_point == '\r') {
      text.append("\\r");
    } else if (code_point == '\t') {
      text.append("\\t");
    } else if (is_printable(code_point)) {
      text.append(bytes);
    } else if (code_point <= 0xFF) {
      text.append(fmt::format("\\x{:02x}", code_point));
    } else if (code_point <= 0xFFFF) {
      text.append(fmt::format("\\u{:04x}", code_point));
    } else {
      text.append(fmt::format("\\U{:08x}", code_point));
    }
    content.remove_prefix(character.bytes);
  }
  text.append(1, quote);
}

class Printer {
 public:
  Printer(Heap& heap, TextBuilder& text) : heap_(heap), text_(text) {}

  void append(const Value& value) {
    heap_.step();
    if (++nesting_ > kNestingPerDepth * heap_.limits().depth) {
      fail("what is printed nests deeper than the depth budget allows");
    }
    if (value.is_none()) {
      text_.append("None");
    } else if (value.is_boolean()) {
      text_.append(value.boolean() ? "True" : "False");
    } else if (value.is_integer()) {
      text_.append(fmt::to_string(value.integral()));
    } else if (value.is_float()) {
      text_.append(float_text(value.floating()));
    } else if (value.is_string()) {
      heap_.step_bytes(value.text().size());
      if (value.is_markup()) text_.append("Markup(");
      const size_t begin = text_.size();
      append_string_repr(value.text(), text_);
      if (value.traced().is_foreign()) text_.mark_foreign(begin);
      if (value.is_markup()) text_.append(")");
    } else if (const ListData* list = value.sequence()) {
      append_sequence(*list);
    } else if (const DictData* dict = value.dict()) {
      append_dict(*dict);
    } else if (value.is_undefined()) {
      text_.append("Undefined");
    } else {
      append_object(*value.object());
    }
    --nesting_;
  }

 private:
  // A container is never deeper than the budget; namespaces within namespaces may be.
  static constexpr uint32_t kNestingPerDepth = 4;

  void append_sequence(const ListData& list) {
    text_.append(list.tuple ? "(" : "[");
    for (size_t index = 0; index < list.items.size(); ++index) {
      if (index > 0) text_.append(", ");
      append(list.items[index]);
    }
    if (list.tuple && list.items.size() == 1) text_.append(",");
    text_.append(list.tuple ? ")" : "]");
  }

  void append_dict(const DictData& dict) {
    text_.append("{");
    bool first = true;
    for (const auto& [key, value] : dict.entries) {
      if (!first) text_.append(", ");
      first = false;
      append(key);
      text_.append(": ");
      append(value);
    }
    text_.append("}");
  }

  void append_object(Object& object) {
    if (const auto* range = dynamic_cast<const Range*>(&object)) {
      text_.append(fmt::format("range({}, {}", range->start(), range->stop()));
      if (range->step() != 1) text_.append(fmt::format(", {}", range->step()));
      text_.append(")");
    } else if (auto* view = dynamic_cast<DictView*>(&object)) {
      text_.append(view->type_name());
      text_.append("([");
      for (uint64_t index = 0; index < *view->length(); ++index) {
        if (index > 0) text_.append(", ");
        append(view->item(index));
      }
      text_.append("])");
    } else if (const auto* space = dynamic_cast<const Namespace*>(&object)) {
      append_namespace(*space);
    } else {
      text_.append("<");
      text_.append(object.shown_as());
      text_.append(">");
    }
  }

  void append_namespace(const Namespace& space) {
    text_.append("<Namespace {");
    for (size_t index = 0; index < space.names().size(); ++index) {
      if (index > 0) text_.append(", ");
      append_string_repr(space.names()[index], text_);
      text_.append(": ");
      append(space.values()[index]);
    }
    text_.append("}>");
  }

  Heap& heap_;
  TextBuilder& text_;
  uint32_t nesting_ = 0;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer;
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                     std::chars_format::scientific);
  const std::string_view shortest(buffer.data(), static_cast<size_t>(written.ptr - buffer.data()));
  const size_t mark = shortest.find('e');
  int exponent = 0;
  const std::string_view digits = shortest.substr(mark + 1);
  const size_t sign = digits.starts_with('+') ? 1 : 0;
  std::from_chars(digits.data() + sign, digits.data() + digits.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", shortest.substr(0, mark), exponent < 0 ? '-' : '+',
                       exponent < 0 ? -exponent : exponent);
  }
  const auto plain =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string text(buffer.data(), plain.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

void append_str(Heap& heap, const Value& value, TextBuilder& text) {
  if (value.is_string()) {
    heap.step_bytes(value.text().size());
    text.append(value.traced());
  } else if (!value.is_undefined()) {
    append_repr(heap, value, text);
  }
}

void append_repr(Heap& heap, const Value& value, TextBuilder& text) {
  Printer(heap, text).append(value);
}

TracedText to_str(Heap& heap, const Value& value) {
  TextBuilder text(heap);
  append_str(heap, value, text);
  return text.finish();
}

TracedText to_repr(Heap& heap, const Value& value) {
  TextBuilder text(heap);
  append_repr(heap, value, text);
  return text.finish();
}

TracedText escape_markup(Heap& heap, const TracedText& text) {
  heap.step_bytes(text.text.size());
  TextBuilder escaped(heap);
  for (const char character : text.text) {
    switch (character) {
      case '&':
        escaped.append("&amp;");
        break;
      case '<':
        escaped.append("&lt;");
        break;
      case '>':
        escaped.append("&gt;");
        break;
      case '\'':
        escaped.append("&#39;");
        break;
      case '"':
        escaped.append("&#34;");
        break;
      default:
        escaped.append(1, character);
    }
  }
  if (text.is_foreign()) escaped.mark_foreign(0);
  return escaped.finish();
}

}  // namespace lockstep::jinja
