"""Where the functions of a C++ or CUDA file begin and end, told from its braces.

Not a compiler: it reads sources that clang-format has laid out. It expands no macro, so each branch
of an #if closes what it opens. A lambda that is the value of a variable outside functions counts as
a function; one within a function is a part of it.
"""

import re
from typing import NamedTuple


class Function(NamedTuple):
    name: str
    first: int  # the line on which the declaration begins, counted from 1
    last: int  # that of the closing brace
    table_lines: int = 0  # of them, those within a list in braces that is assigned or returned

    @property
    def lines(self):
        """How long it is to read: a table is read as data."""
        return self.last - self.first + 1 - self.table_lines


# Comments, literals, and directives with the lines that continue them.
NO_CODE = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | (?:u8|[uUL])?R"(?P<delimiter>[^()\s\\]{0,16})\(.*?\)(?P=delimiter)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'
      | ^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE)


def code_alone(text):
    """As many characters and lines, but a space for each character that is no code."""
    return NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


ACCESS = re.compile(r"(?:public|protected|private)\s*:(?!:)")
TEMPLATE = re.compile(r"template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>\s*")
SCOPE = re.compile(r"(?:inline\s+)?namespace\b|extern\s*$|(?:class|struct|union|enum)\b")
# An = that is no part of another operator, nor of operator='s name.
ASSIGNMENT = re.compile(r"(?<![=!<>+\-*/%&|^r])\s*=(?!=)")
LAMBDA = re.compile(r"\[[^\]]*\]\s*(?:\(\)\s*)?(?:(?:mutable|constexpr|noexcept)\s*)*(?:->.*)?$",
                    re.DOTALL)
INITIALIZED_MEMBER = re.compile(r"\)[^)]*?(?<!:):(?!:).*[\w>]\s*$", re.DOTALL)
NAME = re.compile(r"(?<![\w<:~])((?:[\w:~]|<[^()]*>)*\boperator\b\s*(?:\(\)|[^\s(]+)|[\w:~]+)"
                  r"\s*(?:<[^()]*>)?\s*\(")
# What may stand before a function's name and has parentheses as well.
NO_NAME = re.compile(r"(?:alignas|decltype|explicit|noexcept|requires|__attribute__"
                     r"|__launch_bounds__|GPU_KERNEL\w*)$")


def without_groups(text):
    """The text with nothing in its outermost parentheses and braces."""
    depth, kept = 0, []
    for letter in text:
        depth -= letter in ")}"
        if depth == 0:
            kept.append(letter)
        depth += letter in "({"
    return "".join(kept)


def opens(head):
    """What a brace after this text begins, outside functions: "scope", "function" or "value"."""
    declared = TEMPLATE.sub("", ACCESS.sub("", head)).strip()
    declared = re.sub(r"^(?:\[\[.*?\]\]\s*)+", "", declared)
    bare = without_groups(declared)
    if SCOPE.match(declared) and "(" not in re.sub(r"alignas\s*\(\)", "", bare):
        return "scope"
    if ASSIGNMENT.search(bare):
        return "function" if LAMBDA.search(bare) else "value"
    if "(" not in bare or INITIALIZED_MEMBER.search(bare):
        return "value"
    return "function"


def name_of(head):
    declared = TEMPLATE.sub("", ACCESS.sub("", head))
    variable = re.search(r"(\w+)\s*=\s*\[", declared)
    test = re.match(r"\s*TEST(?:_[FP])?\((\w+),\s*(\w+)\)", declared)
    if variable or test:
        return ".".join((variable or test).groups())
    for found in NAME.finditer(declared):
        if not NO_NAME.match(found.group(1)):
            return found.group(1)
    return "?"


TABLE = re.compile(r"(?:[^=!<>]=|\breturn)\s*$")


class Brace(NamedTuple):
    kind: str  # scope, function, value (outside functions), table or inner (within one)
    head: int  # where the text before it begins that says what it is
    at: int


def begin_of(code, head):
    """Where a declaration begins: after spaces and public: or the like."""
    access = re.compile(r"\s*" + ACCESS.pattern).match(code, head)
    return re.compile(r"\s*").match(code, access.end() if access else head).end()


def functions(text):
    """The functions of a file, in its order: those of classes too, but none within another."""
    code = code_alone(text)

    def line_of(at):
        return code.count("\n", 0, at) + 1

    found, braces = [], []
    parentheses = table_lines = head = 0
    for match in re.finditer(r"[(){};]", code):
        at, letter = match.start(), match.group()
        is_outside = all(brace.kind == "scope" for brace in braces)
        if letter == "{":
            if not is_outside:
                kind = "table" if TABLE.search(code, max(0, at - 100), at) else "inner"
            else:
                kind = "value" if parentheses else opens(code[head:at])
            braces.append(Brace(kind, head, at))
            if kind in {"scope", "function"}:
                head = at + 1
                table_lines = 0
        elif letter == "}":
            if not braces:
                raise ValueError(f"line {line_of(at)} closes what is not open")
            brace = braces.pop()
            if brace.kind == "table" and all(outer.kind != "table" for outer in braces):
                table_lines += max(0, line_of(at) - line_of(brace.at) - 1)
            if brace.kind == "function":
                begin = begin_of(code, brace.head)
                found.append(Function(name_of(code[begin:brace.at]), line_of(begin), line_of(at),
                                      table_lines))
            if brace.kind in {"function", "scope"}:
                head = at + 1
        elif is_outside:
            parentheses += (letter == "(") - (letter == ")")
            if letter == ";" and parentheses == 0:
                head = at + 1
    if braces:
        raise ValueError(f"{len(braces)} braces are not closed")
    return found
