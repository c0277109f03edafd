#include "server/api/common/structured_output.h"

#include <utility>
#include <vector>

namespace lockstep {
namespace {

using Kind = GrammarSource::Kind;

// Collects what is asked for, field by field.
class OutputRequests {
 public:
  explicit OutputRequests(JsonFields& fields) : fields_(fields) {}

  void add(Kind kind, std::string text, std::string parameter) {
    found_.push_back({{kind, std::move(text)}, std::move(parameter)});
  }

  // A field's value as the source of a kind; null, and what asks for nothing, is passed over.
  void add_value(Kind kind, JsonFields& fields, std::string_view name) {
    const Json* value = fields.any(name);
    if (value == nullptr) return;
    const std::string parameter = fields.path() + std::string(name);
    switch (kind) {
      case Kind::kRegex:
      case Kind::kGbnf:
        if (const auto text = fields.text(name); text && !text->empty()) {
          add(kind, *text, parameter);
        }
        return;
      case Kind::kChoice:
        if (const Json* list = fields.array(name); list != nullptr && !list->empty()) {
          add(kind, to_text(*list), parameter);
        }
        return;
      case Kind::kJsonObject:
        if (fields.boolean(name).value_or(false)) add(kind, "", parameter);
        return;
      default:
        break;
    }
    // A schema may come as the text of one.
    if (value->is_string()) {
      add(kind, value->get<std::string>(), parameter);
    } else if (value->is_object() || value->is_boolean()) {
      add(kind, to_text(*value), parameter);
    } else {
      fields.refuse(name, fmt::format("must be a JSON schema, not {}", kind_name(*value)));
    }
  }

  std::optional<StructuredOutput> only() {
    if (found_.empty()) return std::nullopt;
    if (found_.size() > 1) {
      std::vector<std::string_view> names;
      for (const StructuredOutput& request : found_) names.push_back(request.parameter);
      fields_.refuse(found_.back().parameter,
                     fmt::format("at most one field may say what the answer must be; here are {}",
                                 fmt::join(names, ", ")));
    }
    return std::move(found_.front());
  }

 private:
  JsonFields& fields_;
  std::vector<StructuredOutput> found_;
};

void parse_json_schema_format(JsonFields& format, OutputRequests& requests) {
  const Json* given = format.object("json_schema");
  if (given == nullptr) {
    format.refuse("json_schema", "is required with the type json_schema");
    return;
  }
  JsonFields inner(*given, format.path() + "json_schema.");
  // Always held to the schema, strict or not.
  static_cast<void>(inner.boolean("strict"));
  static_cast<void>(inner.text("name"));
  static_cast<void>(inner.text("description"));
  const Json* schema = inner.object("schema");
  if (schema == nullptr) inner.refuse("schema", "is required");
  if (schema != nullptr) requests.add_value(Kind::kJsonSchema, inner, "schema");
  format.adopt(inner);
}

void parse_response_format(JsonFields& fields, OutputRequests& requests) {
  const Json* given = fields.object("response_format");
  if (given == nullptr) return;
  JsonFields format(*given, fields.path() + "response_format.");
  const std::string type = format.text("type").value_or("");
  if (type == "json_object") {
    if (format.any("schema") != nullptr) {
      requests.add_value(Kind::kJsonSchema, format, "schema");
    } else {
      requests.add(Kind::kJsonObject, "", "response_format");
    }
  } else if (type == "json_schema") {
    parse_json_schema_format(format, requests);
  } else if (type != "text") {
    format.refuse("type",
                  fmt::format("must be text, json_object or json_schema, not \"{:.40}\"", type));
  }
  fields.adopt(format);
}

void parse_structured_outputs(JsonFields& fields, OutputRequests& requests) {
  const Json* given = fields.object("structured_outputs");
  if (given == nullptr) return;
  JsonFields inner(*given, fields.path() + "structured_outputs.");
  requests.add_value(Kind::kJsonSchema, inner, "json");
  requests.add_value(Kind::kJsonObject, inner, "json_object");
  requests.add_value(Kind::kRegex, inner, "regex");
  requests.add_value(Kind::kChoice, inner, "choice");
  requests.add_value(Kind::kGbnf, inner, "grammar");
  inner.refuse_unsupported("structural_tag");
  fields.adopt(inner);
}

}  // namespace

std::optional<StructuredOutput> parse_structured_output(JsonFields& fields) {
  OutputRequests requests(fields);
  parse_response_format(fields, requests);
  parse_structured_outputs(fields, requests);
  requests.add_value(Kind::kJsonSchema, fields, "json_schema");
  requests.add_value(Kind::kRegex, fields, "regex");
  requests.add_value(Kind::kChoice, fields, "choice");
  requests.add_value(Kind::kGbnf, fields, "grammar");
  requests.add_value(Kind::kJsonSchema, fields, "guided_json");
  requests.add_value(Kind::kRegex, fields, "guided_regex");
  requests.add_value(Kind::kChoice, fields, "guided_choice");
  requests.add_value(Kind::kGbnf, fields, "guided_grammar");
  return requests.only();
}

ApiResult<std::shared_ptr<const Grammar>> compile_structured_output(
    const ServedModel& model, const std::optional<StructuredOutput>& wanted) {
  if (!wanted) return nullptr;
  auto compiled = model.engine().compile_grammar(wanted->source);
  if (compiled) return std::move(*compiled);
  ApiError error = model.to_api_error(compiled.error());
  error.message = fmt::format("'{}': {}", wanted->parameter, error.message);
  error.parameter = wanted->parameter;
  return std::unexpected(std::move(error));
}

}  // namespace lockstep
