#include "engine/text/grammar/nondeterministic.h"

namespace lockstep {

using Kind = NondeterministicEdge::Kind;

Nondeterministic::Nondeterministic(GrammarDraft& draft, ExpressionId body) : draft_(draft) {
  const uint32_t start = add_state();
  const uint32_t end = add_state();
  build(body, start, end);
}

uint32_t Nondeterministic::add_state() {
  draft_.budget().take(sizeof(int32_t));
  heads_.push_back(-1);
  return static_cast<uint32_t>(heads_.size() - 1);
}

void Nondeterministic::connect(uint32_t from, NondeterministicEdge edge) {
  draft_.budget().take(sizeof(NondeterministicEdge));
  edge.next = heads_[from];
  edges_.push_back(edge);
  heads_[from] = static_cast<int32_t>(edges_.size() - 1);
}

void Nondeterministic::build(ExpressionId id, uint32_t from, uint32_t to) {
  if (draft_.failed()) return;
  const Expression expression = draft_.expression(id);
  switch (expression.kind) {
    case Expression::Kind::kBytes:
      connect(from, {.kind = Kind::kBytes,
                     .low = static_cast<uint8_t>(expression.first),
                     .high = static_cast<uint8_t>(expression.second),
                     .target = to});
      return;
    case Expression::Kind::kRule:
      connect(from, {.kind = Kind::kRule, .rule = expression.first, .target = to});
      return;
    case Expression::Kind::kLiteral: {
      const std::string_view text = draft_.text(expression);
      for (size_t index = 0; index < text.size() && !draft_.failed(); ++index) {
        const auto byte = static_cast<uint8_t>(text[index]);
        const uint32_t next = index + 1 == text.size() ? to : add_state();
        connect(from, {.kind = Kind::kBytes, .low = byte, .high = byte, .target = next});
        from = next;
      }
      return;
    }
    case Expression::Kind::kSequence: {
      for (const ExpressionId part : draft_.list(expression)) {
        const uint32_t next = add_state();
        build(part, from, next);
        from = next;
        if (draft_.failed()) return;
      }
      connect(from, {.target = to});
      return;
    }
    case Expression::Kind::kChoice:
      for (const ExpressionId part : draft_.list(expression)) {
        // A state of its own: a repetition within must not lead into the other alternatives.
        const uint32_t begin = add_state();
        connect(from, {.target = begin});
        build(part, begin, to);
        if (draft_.failed()) return;
      }
      return;
    case Expression::Kind::kRepeat:
      build_repeat(expression, from, to);
      return;
  }
}

void Nondeterministic::build_repeat(const Expression& repeat, uint32_t from, uint32_t to) {
  const ExpressionId part = repeat.first;
  for (uint32_t index = 0; index < repeat.second && !draft_.failed(); ++index) {
    const uint32_t next = add_state();
    build(part, from, next);
    from = next;
  }
  if (repeat.third == GrammarDraft::kUnlimited) {
    const uint32_t loop = add_state();
    const uint32_t again = add_state();
    connect(from, {.target = loop});
    build(part, loop, again);
    connect(again, {.target = loop});
    connect(loop, {.target = to});
    return;
  }
  for (uint32_t index = repeat.second; index < repeat.third && !draft_.failed(); ++index) {
    connect(from, {.target = to});
    const uint32_t next = add_state();
    build(part, from, next);
    from = next;
  }
  connect(from, {.target = to});
}

}  // namespace lockstep
