#include <algorithm>
#include <initializer_list>

#include "engine/text/jinja/expression_parser.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/token_stream.h"

namespace lockstep::jinja {

namespace {

using StatementPointer = std::unique_ptr<Statement>;
using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const TemplateLimits& limits)
      : stream_(std::move(tokens), limits.depth), expressions_(stream_, template_.symbols) {
    template_.known = {template_.symbols.intern("loop"), template_.symbols.intern("caller"),
                       template_.symbols.intern("kwargs"), template_.symbols.intern("varargs")};
  }

  Template run() {
    template_.body = parse_block({});
    if (!expressions_.unknown().empty()) {
      const auto& first = expressions_.unknown().front();
      stream_.fail_at(first.line, first.message);
    }
    return std::move(template_);
  }

 private:
  // A body's change of the statements that may stand in it, until it ends.
  class Surroundings {
   public:
    Surroundings(Parser& parser, bool conditional)
        : parser_(parser),
          loops_(parser.loops_),
          enclosing_loops_(parser.enclosing_loops_),
          conditional_(parser.expressions_.set_conditional(conditional)) {}
    ~Surroundings() {
      parser_.loops_ = loops_;
      parser_.enclosing_loops_ = enclosing_loops_;
      parser_.expressions_.set_conditional(conditional_);
    }
    Surroundings(const Surroundings&) = delete;
    Surroundings& operator=(const Surroundings&) = delete;

   private:
    Parser& parser_;
    uint32_t loops_;
    uint32_t enclosing_loops_;
    bool conditional_;
  };

  static StatementPointer make(StatementKind kind, uint32_t line) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  // Statements up to one of the names, which becomes the current token; to the template's end when
  // there are none.
  Block parse_block(Names ends) {
    Block block;
    while (!stream_.at(TokenKind::kEnd)) {
      const Token& token = stream_.next();
      if (token.kind == TokenKind::kText) {
        auto text = make(StatementKind::kText, token.line);
        text->text = token.text;
        block.push_back(std::move(text));
      } else if (token.kind == TokenKind::kVariableBegin) {
        auto print = make(StatementKind::kPrint, token.line);
        print->expressions.push_back(expressions_.parse_tuple());
        stream_.expect(TokenKind::kVariableEnd, "}}");
        block.push_back(std::move(print));
      } else {
        if (std::ranges::any_of(ends, [&](auto name) { return stream_.at_name(name); })) {
          return block;
        }
        block.push_back(parse_statement(ends));
        stream_.expect(TokenKind::kBlockEnd, "%}");
      }
    }
    if (ends.size() > 0) {
      stream_.fail_at(stream_.current().line,
                      fmt::format("the template ends without {{% {} %}}", *(ends.end() - 1)));
    }
    return block;
  }

  // The body of a tag whose opening ends here, up to one of the names.
  Block parse_body(Names ends) {
    stream_.skip_operator(":");
    stream_.expect(TokenKind::kBlockEnd, "%}");
    return parse_block(ends);
  }

  Block parse_body_to(std::string_view end) {
    Block body = parse_body({end});
    stream_.next();
    return body;
  }

  StatementPointer parse_statement(Names ends) {
    const TokenStream::Level level(stream_);
    if (!stream_.at(TokenKind::kName)) stream_.fail_expected("a tag's name");
    const std::string& tag = stream_.current().text;
    if (tag == "for") return parse_for();
    if (tag == "if") return parse_if();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "call") return parse_call_block();
    if (tag == "filter") return parse_filter_block();
    if (tag == "with") return parse_with();
    if (tag == "generation") return parse_generation();
    if (tag == "block") return parse_named_block();
    if (tag == "autoescape") return parse_autoescape();
    if (tag == "print") return parse_print();
    if (tag == "break" || tag == "continue") return parse_break();
    if (tag == "include" || tag == "import" || tag == "extends" || tag == "from") {
      return parse_refused();
    }
    std::string message = fmt::format("unknown tag '{}'", tag);
    if (ends.size() > 0) message += fmt::format(" where '{}' was looked for", *(ends.end() - 1));
    stream_.fail_at(stream_.current().line, std::move(message));
  }

  // Inside a loop its variable `loop` is not to be assigned.
  Target parse_target(bool with_namespace, std::string_view end_name = {}) {
    const uint32_t line = stream_.current().line;
    Target target = expressions_.parse_target(with_namespace, end_name);
    if (enclosing_loops_ > 0 && assigns_loop(target)) {
      stream_.fail_at(line, "the special variable 'loop' cannot be assigned within a loop");
    }
    return target;
  }

  bool assigns_loop(const Target& target) const {
    if (target.kind == Target::Kind::kTuple) {
      return std::ranges::any_of(target.items,
                                 [this](const Target& item) { return assigns_loop(item); });
    }
    return target.kind == Target::Kind::kName && target.symbol == template_.known.loop;
  }

  StatementPointer parse_for() {
    auto loop = make(StatementKind::kFor, stream_.next().line);
    const Surroundings surroundings(*this, false);
    ++enclosing_loops_;
    loop->targets.push_back(parse_target(false, "in"));
    stream_.expect_name("in");
    loop->expressions.push_back(expressions_.parse_tuple(false, "recursive"));
    loop->expressions.push_back(stream_.skip_name("if") ? expressions_.parse() : nullptr);
    loop->recursive = stream_.skip_name("recursive");
    {
      const Surroundings inside(*this, false);
      ++loops_;
      loop->body = parse_body({"else", "endfor"});
    }
    if (stream_.next().text == "else") loop->otherwise = parse_body_to("endfor");
    return loop;
  }

  StatementPointer parse_if() {
    auto choice = make(StatementKind::kIf, stream_.current().line);
    const Surroundings surroundings(*this, true);
    do {
      stream_.next();
      Branch branch;
      branch.condition = expressions_.parse_tuple(false);
      branch.body = parse_body({"elif", "else", "endif"});
      choice->branches.push_back(std::move(branch));
    } while (stream_.at_name("elif"));
    if (stream_.next().text == "else") choice->otherwise = parse_body_to("endif");
    return choice;
  }

  StatementPointer parse_set() {
    const uint32_t line = stream_.next().line;
    Target target = parse_target(true);
    const bool block = !stream_.skip_operator("=");
    auto assignment = make(block ? StatementKind::kSetBlock : StatementKind::kSet, line);
    assignment->targets.push_back(std::move(target));
    if (!block) {
      assignment->expressions.push_back(expressions_.parse_tuple());
      return assignment;
    }
    const Surroundings surroundings(*this, false);
    assignment->expressions.push_back(expressions_.parse_filters(nullptr, false));
    assignment->body = parse_body_to("endset");
    return assignment;
  }

  void parse_signature(MacroDefinition& macro) {
    stream_.expect_operator("(");
    bool has_defaults = false;
    while (!stream_.at_operator(")")) {
      if (!macro.parameters.empty()) stream_.expect_operator(",");
      const Token& name = stream_.expect(TokenKind::kName, "name");
      if (std::ranges::find(macro.parameters, name.text, &MacroParameter::name) !=
          macro.parameters.end()) {
        stream_.fail_at(name.line, fmt::format("parameter '{}' is repeated", name.text));
      }
      MacroParameter parameter{template_.symbols.intern(name.text), name.text, nullptr};
      if (stream_.skip_operator("=")) {
        parameter.otherwise = expressions_.parse();
        has_defaults = true;
      } else if (has_defaults) {
        stream_.fail_at(name.line, "a parameter without a default follows one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    stream_.next();
  }

  // The body of a macro, and what it asks of its callers.
  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    loops_ = 0;
    const size_t names_before = expressions_.names_read().size();
    macro.body = parse_body_to(end);
    const auto reads = [&](Symbol symbol) {
      const auto& names = expressions_.names_read();
      return std::find(names.begin() + static_cast<std::ptrdiff_t>(names_before), names.end(),
                       symbol) != names.end() &&
             std::ranges::find(macro.parameters, symbol, &MacroParameter::symbol) ==
                 macro.parameters.end();
    };
    macro.uses_caller = reads(template_.known.caller);
    macro.uses_kwargs = reads(template_.known.kwargs);
    macro.uses_varargs = reads(template_.known.varargs);
  }

  StatementPointer parse_macro() {
    auto statement = make(StatementKind::kMacro, stream_.next().line);
    const Surroundings surroundings(*this, false);
    statement->macro = std::make_unique<MacroDefinition>();
    const Token& name = stream_.expect(TokenKind::kName, "name");
    if (enclosing_loops_ > 0 && name.text == "loop") {
      stream_.fail_at(name.line, "the special variable 'loop' cannot be assigned within a loop");
    }
    statement->macro->name = name.text;
    statement->symbol = template_.symbols.intern(name.text);
    parse_signature(*statement->macro);
    parse_macro_body(*statement->macro, "endmacro");
    return statement;
  }

  StatementPointer parse_call_block() {
    auto statement = make(StatementKind::kCall, stream_.next().line);
    statement->macro = std::make_unique<MacroDefinition>();
    if (stream_.at_operator("(")) parse_signature(*statement->macro);
    statement->expressions.push_back(expressions_.parse());
    if (statement->expressions[0]->kind != ExpressionKind::kCall) {
      stream_.fail_at(statement->line, "a call block needs the call of a macro");
    }
    const Surroundings surroundings(*this, false);
    parse_macro_body(*statement->macro, "endcall");
    return statement;
  }

  StatementPointer parse_filter_block() {
    auto statement = make(StatementKind::kFilterBlock, stream_.next().line);
    const Surroundings surroundings(*this, false);
    statement->expressions.push_back(expressions_.parse_filters(nullptr, true));
    statement->body = parse_body_to("endfilter");
    return statement;
  }

  StatementPointer parse_with() {
    auto statement = make(StatementKind::kWith, stream_.next().line);
    while (!stream_.at(TokenKind::kBlockEnd)) {
      if (!statement->targets.empty()) stream_.expect_operator(",");
      statement->targets.push_back(expressions_.parse_target(false));
      stream_.expect_operator("=");
      statement->expressions.push_back(expressions_.parse());
    }
    const Surroundings surroundings(*this, false);
    statement->body = parse_body_to("endwith");
    return statement;
  }

  // Marks what the assistant said, for training; the text is as without it.
  StatementPointer parse_generation() {
    auto statement = make(StatementKind::kScope, stream_.next().line);
    const Surroundings surroundings(*this, false);
    loops_ = 0;
    statement->body = parse_body_to("endgeneration");
    return statement;
  }

  StatementPointer parse_named_block() {
    auto statement = make(StatementKind::kScope, stream_.next().line);
    const Surroundings surroundings(*this, false);
    const Token& name = stream_.expect(TokenKind::kName, "name");
    if (std::ranges::find(block_names_, name.text) != block_names_.end()) {
      stream_.fail_at(name.line, fmt::format("block '{}' is defined twice", name.text));
    }
    block_names_.push_back(name.text);
    statement->isolated = !stream_.skip_name("scoped");
    loops_ = 0;
    statement->body = parse_body_to("endblock");
    stream_.skip_name(name.text);
    return statement;
  }

  StatementPointer parse_autoescape() {
    auto statement = make(StatementKind::kScope, stream_.next().line);
    const ExpressionPointer on = expressions_.parse();
    if (on->kind != ExpressionKind::kConstant || !on->constant.is_boolean() ||
        on->constant.boolean()) {
      stream_.fail_at(statement->line,
                      "automatic escaping is not supported: use the escape filter");
    }
    const Surroundings surroundings(*this, false);
    statement->body = parse_body_to("endautoescape");
    return statement;
  }

  StatementPointer parse_print() {
    auto statement = make(StatementKind::kPrint, stream_.next().line);
    while (!stream_.at(TokenKind::kBlockEnd)) {
      if (!statement->expressions.empty()) stream_.expect_operator(",");
      statement->expressions.push_back(expressions_.parse());
    }
    return statement;
  }

  StatementPointer parse_break() {
    const Token& token = stream_.next();
    if (loops_ == 0) stream_.fail_at(token.line, fmt::format("'{}' outside of a loop", token.text));
    return make(token.text == "break" ? StatementKind::kBreak : StatementKind::kContinue,
                token.line);
  }

  StatementPointer parse_refused() {
    const Token& token = stream_.next();
    auto statement = make(StatementKind::kRefused, token.line);
    statement->text = token.text;
    while (!stream_.at(TokenKind::kBlockEnd) && !stream_.at(TokenKind::kEnd)) stream_.next();
    return statement;
  }

  Template template_;
  TokenStream stream_;
  ExpressionParser expressions_;
  uint32_t loops_ = 0;            // that a break could leave
  uint32_t enclosing_loops_ = 0;  // whatever is in between
  std::vector<std::string> block_names_;
};

}  // namespace

Template parse(std::string_view source, const TemplateLimits& limits) {
  return Parser(tokenize(source), limits).run();
}

}  // namespace lockstep::jinja
