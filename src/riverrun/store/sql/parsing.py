"""From a question's text to its tree: one statement that begins like a question, of bounded size.

The parser is sqlglot's for DuckDB, with the functions taken out: every call stays a call by the name the user wrote,
so that the table of functions alone decides which there are and what they mean.
"""

import re
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from riverrun.errors import QueryError, QueryRefusedError

MOST_CHARACTERS = 64 * 1024
MOST_TOKENS = 5000
MOST_DEPTH = 48
# What a question begins with; a parenthesis may come first.
_FIRST = {TokenType.SELECT, TokenType.WITH, TokenType.FROM}
_OPEN = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSE = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
_SHOWN = 60
_TOKEN = re.compile(r"<Token .*?text: (.*?), line: .*?>")
_STYLE = re.compile("\x1b\\[[0-9;]*m")
# Tab, line feed and carriage return are the control characters that people type.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DUCKDB = DuckDB.Parser


class _Parser(_DUCKDB):  # type: ignore[misc, valid-type]
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar = {
        name: _DUCKDB.FUNCTION_PARSERS[name]
        for name in ("CAST", "TRY_CAST", "EXTRACT", "POSITION", "SUBSTRING", "TRIM")
    }
    NO_PAREN_FUNCTIONS: ClassVar = {
        kind: _DUCKDB.NO_PAREN_FUNCTIONS[kind] for kind in (TokenType.CURRENT_DATE, TokenType.CURRENT_TIMESTAMP)
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": _DUCKDB.NO_PAREN_FUNCTION_PARSERS["CASE"]}


class Language(DuckDB):
    """riverrun's SQL, to read. NULL sorts as the smallest value, because that is what both stores can do."""

    NULL_ORDERING = "nulls_are_small"
    Parser = _Parser


def parse(text: str) -> exp.Expr:
    """The tree of one question. QueryError says where it is not understood; QueryRefusedError, what is no question."""
    if len(text) > MOST_CHARACTERS:
        raise QueryRefusedError(
            f"The question has {len(text)} characters", expected=f"at most {MOST_CHARACTERS}", characters=len(text)
        )
    if found := _CONTROL.search(text):
        raise QueryRefusedError(f"The question has the control character U+{ord(found[0]):04X}", hint="Take it out")
    tokens = _tokens(text)
    _check(tokens)
    try:
        trees = [each for each in Language().parser().parse(tokens, text) if each is not None]
    except SqlglotError as error:
        raise _not_understood(error) from error
    if len(trees) != 1:
        raise QueryRefusedError(f"{len(trees)} statements in one question", expected="one", hint="Ask them one by one")
    return trees[0]


def _tokens(text: str) -> list[Token]:
    try:
        return list(Language().tokenize(text))
    except TokenError as error:
        raise QueryError(
            "The question cannot be read: a quotation mark or a comment is not closed",
            found=_STYLE.sub("", str(error)).strip(),
        ) from error


def _check(tokens: list[Token]) -> None:
    first = next((token for token in tokens if token.token_type is not TokenType.L_PAREN), None)
    if first is None:
        raise QueryError("The question is empty", expected="one that begins with SELECT, WITH or FROM")
    if first.token_type not in _FIRST:
        raise QueryRefusedError(
            f"{first.text.upper()[:_SHOWN]} is not how a question begins",
            expected="SELECT, WITH or FROM",
            hint="Questions only read the store's tables",
            word=first.text[:_SHOWN],
        )
    if len(tokens) > MOST_TOKENS:
        raise QueryRefusedError(f"The question has {len(tokens)} words and signs", expected=f"at most {MOST_TOKENS}")
    depth = deepest = 0
    for token in tokens:
        depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise too_deep()


def too_deep() -> QueryRefusedError:
    return QueryRefusedError(
        "The question is nested too deeply",
        expected=f"at most {MOST_DEPTH} parentheses inside each other",
        hint="Name its parts with WITH; IN (…) takes many values",
    )


def _not_understood(error: SqlglotError) -> QueryError:
    """Where in the text, with the text around the place."""
    details = getattr(error, "errors", None) or [{}]
    line, column = details[0].get("line"), details[0].get("col")
    near = details[0].get("highlight") or ""
    before = (details[0].get("start_context") or "")[-_SHOWN:].replace("\n", " ")
    after = (details[0].get("end_context") or "")[:_SHOWN].replace("\n", " ")
    said = str(details[0].get("description") or _STYLE.sub("", str(error)).splitlines()[0]).rstrip(".")
    if said.startswith("Invalid expression"):
        said = "this cannot stand here"
    said = _TOKEN.sub(r"\1", said)
    if line and column:
        # The parser tells the end of a word.
        column -= max(len(near) - 1, 0)
    place = f"line {line}, column {column}: " if line else ""
    lines = [f"{before}{near}{after}", f"{' ' * len(before)}{'^' * max(len(near), 1)}"] if line else []
    return QueryError(
        f"The question is not understood: {place}{said[:1].lower()}{said[1:]}",
        lines=lines,
        line=line or 0,
        column=column or 0,
    )
