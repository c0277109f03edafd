#include "engine/text/chat_template.h"

#include <utility>

#include "engine/text/jinja/render.h"

namespace lockstep {

struct ChatTemplate::Program {
  jinja::Template parsed;
  TemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::compile(std::string source, const TemplateLimits& limits) {
  auto parsed = jinja::compile(source, limits);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  return ChatTemplate(std::make_unique<const Program>(Program{std::move(*parsed), limits}));
}

Result<TracedText> ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  return jinja::render(program_->parsed, program_->limits, variables, jinja::read_local_clock);
}

}  // namespace lockstep
