// GET /slots and POST /slots/{id}?action=save|restore|erase, in llama-server's JSON.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/json.h"
#include "server/api/common/answer.h"
#include "server/api/common/json_fields.h"
#include "server/api/common/prepare_request.h"
#include "server/api/native/endpoints.h"

namespace lockstep {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// The value of a field of the query; none where it is not there.
std::optional<std::string_view> query_field(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), field.size() + 1));
    const size_t equals = std::min(field.find('='), field.size());
    if (field.substr(0, equals) != name) continue;
    return equals == field.size() ? std::string_view() : field.substr(equals + 1);
  }
  return std::nullopt;
}

ApiError not_kept(std::string message) {
  return ApiError{.status = 501,
                  .message = std::move(message),
                  .type = "not_supported_error",
                  .code = "not_supported"};
}

// Whether the engine keeps files is known when it is loaded.
std::optional<ApiError> refusal(const ServedModel& model) {
  if (!model.conversations().has_directory()) {
    return not_kept("This server keeps no conversations: start it with --cache-dir");
  }
  if (auto unready = model.check_ready()) return unready;
  if (model.keeps_conversations()) return std::nullopt;
  return not_kept(
      "This server keeps no conversations: it keeps no files in its --cache-dir, as with ranks on "
      "GPUs, or where another process holds the directory; its log says why");
}

ApiResult<uint32_t> slot_of(const ServedModel& model, const HttpRequest& request) {
  const std::string& text = request.path_parameters.at("id");
  uint32_t slot = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
  const uint32_t count = model.conversations().slot_count();
  if (error == std::errc() && end == text.data() + text.size() && slot < count) return slot;
  return std::unexpected(bad_parameter(
      "id", fmt::format("'id': must be a slot from 0 to {}, not \"{:.40}\"", count - 1, text)));
}

// The body's "filename"; none where there is no body, or none in it.
ApiResult<std::optional<std::string>> file_name(const ServedModel& model,
                                                const HttpRequest& request) {
  if (request.body.empty()) return std::optional<std::string>();
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  JsonFields fields(*body);
  auto name = fields.text("filename");
  if (fields.error()) return std::unexpected(*fields.error());
  return name;
}

// An action as its request asks for it.
struct SlotAction {
  uint32_t slot = 0;
  std::string owner;
  std::optional<std::string> name = {};
};

ApiError to_error(const ServedModel& model, const Error& error) {
  if (error.kind != ErrorKind::kInvalidInput) return model.to_api_error(error);
  return bad_parameter("filename", error.message);
}

ApiResult<SlotAction> prepare_action(const ServedModel& model, const HttpRequest& request) {
  if (auto refused = refusal(model)) return std::unexpected(*refused);
  const auto slot = slot_of(model, request);
  if (!slot) return std::unexpected(slot.error());
  auto name = file_name(model, request);
  if (!name) return std::unexpected(name.error());
  return SlotAction{*slot, request.principal, std::move(*name)};
}

ApiResult<std::string> save(Call& call, const SlotAction& action) {
  const auto begin = std::chrono::steady_clock::now();
  const Conversations& conversations = call.model.conversations();
  const auto place = conversations.take_save_place();
  if (!place) return std::unexpected(to_error(call.model, place.error()));
  const Conversation last = conversations.find(action.owner, action.slot);
  if (last.tokens.empty()) {
    return std::unexpected(
        bad_request(fmt::format("Slot {} has answered nothing that could be saved", action.slot)));
  }
  // About what /tokenize charges for as many bytes.
  call.key.set_used_tokens(last.tokens.size());
  const auto written = conversations.save(*place, action.owner, *action.name, last);
  if (!written) return std::unexpected(to_error(call.model, written.error()));
  return to_text({{"id_slot", action.slot},
                  {"filename", *action.name},
                  {"n_saved", last.tokens.size()},
                  {"n_written", *written},
                  {"timings", {{"save_ms", milliseconds_since(begin)}}}});
}

class RestoredBody final : public BodyWriter {
 public:
  RestoredBody(SlotAction action, uint64_t bytes) : action_(std::move(action)), bytes_(bytes) {}

  std::string body(const std::vector<Output>&, const AnswerUsage& usage) override {
    return to_text({{"id_slot", action_.slot},
                    {"filename", *action_.name},
                    {"n_restored", usage.prompt_tokens},
                    {"n_read", bytes_},
                    {"n_computed", usage.prompt_tokens - usage.cached_tokens},
                    {"timings", {{"restore_ms", milliseconds_since(begin_)}}}});
  }

 private:
  SlotAction action_;
  uint64_t bytes_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Prompts the model with the conversation: what the cache and its tiers have of it is found, and
// the rest computed, in turn with other requests.
ApiResult<void> restore(Call& call, SlotAction action) {
  auto loaded = call.model.conversations().load(action.owner, *action.name);
  if (!loaded) return give(call, std::unexpected(to_error(call.model, loaded.error())));
  Request request;
  request.prompt = std::move(loaded->conversation.tokens);
  request.cache_salt = std::move(loaded->conversation.cache_salt);
  request.max_tokens = 0;
  request.deadline_seconds = call.model.limits().request_seconds;
  AnswerPlan plan;
  plan.slot = action.slot;
  plan.requests.push_back(std::move(request));
  RestoredBody writer(std::move(action), loaded->bytes);
  return answer_whole(call, std::move(plan), writer);
}

ApiResult<std::string> erase(Call& call, const SlotAction& action) {
  Conversations& conversations = call.model.conversations();
  if (action.name) {
    const auto removed = conversations.remove(action.owner, *action.name);
    if (!removed) return std::unexpected(to_error(call.model, removed.error()));
  }
  const size_t erased = conversations.erase(action.owner, action.slot);
  return to_text({{"id_slot", action.slot}, {"n_erased", erased}});
}

}  // namespace

ApiResult<void> post_slot(Call& call) {
  const auto asked = query_field(call.request.query, "action");
  auto action = prepare_request(call, prepare_action);
  if (!action) return std::unexpected(action.error());
  if (asked == "erase") return give(call, erase(call, *action));
  if (asked != "save" && asked != "restore") {
    return std::unexpected(
        bad_parameter("action", "'action': must be save, restore or erase, in the query"));
  }
  if (!action->name) {
    return std::unexpected(bad_parameter("filename", "'filename': is required"));
  }
  if (asked == "save") return give(call, save(call, *action));
  return restore(call, std::move(*action));
}

ApiResult<void> get_slots(Call& call) {
  if (auto refused = refusal(call.model)) return std::unexpected(*refused);
  const Conversations& conversations = call.model.conversations();
  Json slots = Json::array();
  bool has_free = false;
  for (uint32_t slot = 0; slot < conversations.slot_count(); ++slot) {
    const Conversations::Use use = conversations.use(call.request.principal, slot);
    has_free = has_free || use.running == 0;
    slots.push_back({{"id", slot},
                     {"n_ctx", call.model.limits().context_tokens},
                     {"is_processing", use.running > 0},
                     {"n_tokens", use.tokens}});
  }
  if (!has_free && query_field(call.request.query, "fail_on_no_slot") == "1") {
    return std::unexpected(not_now("no_slot", "All slots are processing requests", 1));
  }
  call.response.send(200, "application/json", to_text(slots));
  return {};
}

}  // namespace lockstep
