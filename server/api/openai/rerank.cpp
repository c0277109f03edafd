#include "server/api/openai/rerank.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "server/api/common/answer.h"
#include "server/api/common/prepare_request.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

constexpr size_t kDocumentsMax = 2048;
// Texts that a model ranks have far fewer bytes for a token; but a query of any length may come to
// few tokens, and it is encoded with each document.
constexpr uint64_t kTokenBytesMax = 64;

std::string document_name(size_t index) {
  return fmt::format("documents[{}]", index);
}

// A string, or an object with a text.
std::optional<std::string> parse_document(JsonFields& fields, size_t index, const Json& value) {
  const Json* text = &value;
  if (value.is_object()) {
    const auto found = value.find("text");
    text = found == value.end() ? nullptr : &*found;
  }
  if (text != nullptr && text->is_string()) return text->get<std::string>();
  fields.refuse(document_name(index),
                fmt::format("must be a string or an object with a string \"text\", not {}",
                            kind_name(value)));
  return std::nullopt;
}

std::vector<std::string> parse_documents(JsonFields& fields) {
  std::vector<std::string> documents;
  const Json* list = fields.array("documents");
  if (list == nullptr || list->empty()) {
    fields.refuse("documents", "must be a list of at least one document");
    return documents;
  }
  if (list->size() > kDocumentsMax) {
    fields.refuse("documents", fmt::format("must have at most {} documents, not {}", kDocumentsMax,
                                           list->size()));
    return documents;
  }
  for (size_t index = 0; index < list->size() && !fields.error(); ++index) {
    auto document = parse_document(fields, index, (*list)[index]);
    if (document) documents.push_back(std::move(*document));
  }
  return documents;
}

// The parts of a request that are kept while its answer is made.
struct PreparedRerank {
  std::vector<Request> requests;
  std::string name;  // of the model, as the request has it
  size_t top_n = 0;
  bool normalize = false;
  std::vector<std::string> documents;  // to be returned
  size_t kept_bytes = 0;               // of these
};

ApiResult<std::vector<Request>> make_rerank_requests(const ServedModel& model,
                                                     const RequestLimits& limits,
                                                     const RerankRequest& asked) {
  std::vector<Request> requests;
  const uint64_t bytes_max = limits.prompt_tokens_max * kTokenBytesMax;
  uint64_t bytes = 0;
  uint64_t tokens = 0;
  for (size_t index = 0; index < asked.documents.size(); ++index) {
    bytes += asked.query.size() + asked.documents[index].size();
    if (bytes > bytes_max) {
      return std::unexpected(bad_parameter(
          "documents",
          fmt::format("'documents': {} of {} documents have {} bytes with the query, which counts "
                      "with each of them; this server takes at most {} in one request",
                      index + 1, asked.documents.size(), bytes, bytes_max)));
    }
    RankingPrompt prompt = model.engine().ranking_prompt(asked.query, asked.documents[index]);
    if (prompt.tokens.empty()) {
      return std::unexpected(bad_parameter(
          document_name(index),
          fmt::format("'{}': comes to no tokens with the query", document_name(index))));
    }
    if (prompt.tokens.size() > limits.context_tokens) {
      return std::unexpected(
          context_exceeded_at_least(limits, prompt.tokens.size(), document_name(index)));
    }
    tokens += prompt.tokens.size();
    if (tokens > limits.prompt_tokens_max) {
      return std::unexpected(bad_parameter(
          "documents",
          fmt::format("'documents': {} of {} documents have {} tokens with the query; "
                      "this server takes at most {} in one request",
                      index + 1, asked.documents.size(), tokens, limits.prompt_tokens_max)));
    }
    Request& request = requests.emplace_back(asked.request);
    request.prompt = std::move(prompt.tokens);
    request.second_text = prompt.second_text;
    request.ranking = true;
    request.max_tokens = 0;
  }
  return requests;
}

ApiResult<PreparedRerank> prepare_rerank(const ServedModel& model, const HttpRequest& request) {
  const RequestLimits limits = model.limits();
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  auto asked = parse_rerank(*body, limits);
  if (!asked) return std::unexpected(asked.error());
  if (auto unknown = model.resolve_name(asked->model)) return std::unexpected(*unknown);
  const ModelInfo& info = model.engine().model();
  if (!info.ranking_refusal.empty()) {
    return std::unexpected(
        bad_parameter("model", "This model ranks no documents: " + info.ranking_refusal));
  }
  auto requests = make_rerank_requests(model, limits, *asked);
  if (!requests) return std::unexpected(requests.error());
  PreparedRerank prepared{
      std::move(*requests), *asked->model, asked->top_n, asked->normalize, {}, 0};
  if (!asked->return_documents) return prepared;
  prepared.documents = std::move(asked->documents);
  for (const std::string& document : prepared.documents) prepared.kept_bytes += document.size();
  return prepared;
}

}  // namespace

ApiResult<RerankRequest> parse_rerank(const Json& body, const RequestLimits& limits) {
  JsonFields fields(body);
  RerankRequest asked;
  asked.model = fields.text("model");
  const auto query = fields.text("query");
  if (!query || query->empty()) fields.refuse("query", "must be a string that is not empty");
  asked.query = query.value_or("");
  asked.documents = parse_documents(fields);
  const auto top_n = fields.integer("top_n", 1, INT32_MAX);
  asked.top_n = std::min(asked.documents.size(), static_cast<size_t>(top_n.value_or(INT32_MAX)));
  asked.return_documents = fields.boolean("return_documents").value_or(false);
  asked.normalize = fields.boolean("normalize").value_or(false);
  fields.text("user");
  parse_scheduling(fields, limits, asked.request);
  for (const char* name : {"stream", "rank_fields", "max_chunks_per_doc", "texts"}) {
    fields.refuse_unsupported(name);
  }
  if (fields.error()) return std::unexpected(*fields.error());
  return asked;
}

float relevance(const std::vector<float>& scores, bool normalize) {
  if (scores.size() == 1 && !normalize) return scores.front();
  // Beside a single class stands another with a score of 0.
  double sum = scores.size() == 1 ? std::exp(-static_cast<double>(scores.front())) : 0;
  for (const float score : scores) {
    sum += std::exp(static_cast<double>(score) - static_cast<double>(scores.front()));
  }
  return static_cast<float>(1 / sum);
}

// Written as text, with the shortest numbers that an f32 is read back from. Normalized relevances
// of large scores are equal, so the order is that of the scores.
std::string RerankBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  std::vector<float> relevances;
  for (const Output& output : whole) relevances.push_back(relevance(output.scores, false));
  std::vector<size_t> order(whole.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t index) { return relevances[index]; });
  order.resize(std::min(order.size(), top_n_));
  std::string text =
      fmt::format(R"({{"object":"list","model":{},"results":[)", to_text(Json(name_)));
  const auto end = std::back_inserter(text);
  for (size_t place = 0; place < order.size(); ++place) {
    const size_t index = order[place];
    fmt::format_to(end, R"({}{{"index":{},"relevance_score":{})", place == 0 ? "" : ",", index,
                   relevance(whole[index].scores, normalize_));
    if (!documents_.empty()) {
      fmt::format_to(end, R"(,"document":{{"text":{}}})", to_text(Json(documents_[index])));
    }
    text += '}';
  }
  fmt::format_to(end, R"(],"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                 usage.prompt_tokens, usage.prompt_tokens);
  return text;
}

ApiResult<void> post_rerank(Call& call) {
  auto prepared = prepare_request(call, prepare_rerank);
  if (!prepared) return std::unexpected(prepared.error());
  RerankBody writer(std::move(prepared->name), prepared->top_n, prepared->normalize,
                    std::move(prepared->documents));
  return answer_whole(
      call, {.requests = std::move(prepared->requests), .kept_bytes = prepared->kept_bytes},
      writer);
}

}  // namespace lockstep
