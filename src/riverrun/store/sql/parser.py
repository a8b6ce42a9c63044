"""Parses a query's text into a tree: one statement that begins like a query, of bounded size.

The parser is sqlglot's for DuckDB, with the functions removed: every call stays a call by the name the user wrote, so
that the table of functions alone decides which there are and what they mean.
"""

import logging
import re
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from riverrun.errors import QueryError, QueryRefusedError

MAX_CHARACTERS = 64 * 1024
MAX_TOKENS = 5000
MAX_DEPTH = 48
# What a query begins with; a parenthesis may come first.
_FIRST_TOKENS = {TokenType.SELECT, TokenType.WITH, TokenType.FROM}
_OPEN = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSE = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
_SHOWN = 60
_TOKEN = re.compile(r"<Token .*?text: (.*?), line: .*?>")
_STYLE = re.compile("\x1b\\[[0-9;]*m")
# Tab, line feed and carriage return are the control characters that people type.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DUCKDB = DuckDB.Parser
# The parser's warnings about text that we refuse anyway are not for a user's screen.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())


class _RiverrunParser(_DUCKDB):  # type: ignore[misc, valid-type]
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar = {
        name: _DUCKDB.FUNCTION_PARSERS[name]
        for name in ("CAST", "TRY_CAST", "EXTRACT", "POSITION", "SUBSTRING", "TRIM")
    }
    NO_PAREN_FUNCTIONS: ClassVar = {
        kind: _DUCKDB.NO_PAREN_FUNCTIONS[kind] for kind in (TokenType.CURRENT_DATE, TokenType.CURRENT_TIMESTAMP)
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": _DUCKDB.NO_PAREN_FUNCTION_PARSERS["CASE"]}


class RiverrunDialect(DuckDB):
    """riverrun's SQL, for parsing. NULL sorts as the smallest value, because that is what both stores can do."""

    NULL_ORDERING = "nulls_are_small"
    Parser = _RiverrunParser


def parse(text: str) -> exp.Expr:
    """The tree of one query. QueryError says where it is not understood; QueryRefusedError that it is not a query."""
    if len(text) > MAX_CHARACTERS:
        raise QueryRefusedError(
            f"The question has {len(text)} characters", expected=f"at most {MAX_CHARACTERS}", characters=len(text)
        )
    if control := _CONTROL.search(text):
        raise QueryRefusedError(f"The question has the control character U+{ord(control[0]):04X}", hint="Take it out")
    tokens = _tokens(text)
    _check_tokens(tokens)
    try:
        trees = [tree for tree in RiverrunDialect().parser().parse(tokens, text) if tree is not None]
    except SqlglotError as error:
        raise _syntax_error(error) from error
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        # Where the parser itself crashes, as on `{ : 1 }`.
        raise QueryError("The question is not understood", hint="See docs/query.md for the language") from error
    if len(trees) != 1:
        raise QueryError("The question is empty", expected="one that begins with SELECT, WITH or FROM")
    return trees[0]


def _tokens(text: str) -> list[Token]:
    try:
        return list(RiverrunDialect().tokenize(text))
    except TokenError as error:
        raise QueryError(
            "The question cannot be read: a quotation mark or a comment is not closed",
            found=_STYLE.sub("", str(error)).strip(),
        ) from error


def _check_tokens(tokens: list[Token]) -> None:
    first = next((token for token in tokens if token.token_type is not TokenType.L_PAREN), None)
    if first is None:
        raise QueryError("The question is empty", expected="one that begins with SELECT, WITH or FROM")
    if first.token_type not in _FIRST_TOKENS:
        raise QueryRefusedError(
            f"{first.text.upper()[:_SHOWN]} is not how a question begins",
            expected="SELECT, WITH or FROM",
            hint="Questions only read the store's tables",
            word=first.text[:_SHOWN],
        )
    ends = sum(1 for token in tokens[:-1] if token.token_type is TokenType.SEMICOLON)
    if ends and any(token.token_type is not TokenType.SEMICOLON for token in tokens[_first_end(tokens) :]):
        raise QueryRefusedError("More than one statement in a question", expected="one", hint="Ask them one by one")
    if len(tokens) > MAX_TOKENS:
        raise QueryRefusedError(f"The question has {len(tokens)} words and signs", expected=f"at most {MAX_TOKENS}")
    depth = deepest = 0
    for token in tokens:
        depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise too_deep_error()


def _first_end(tokens: list[Token]) -> int:
    return next(at for at, token in enumerate(tokens) if token.token_type is TokenType.SEMICOLON)


def too_deep_error() -> QueryRefusedError:
    return QueryRefusedError(
        "The question is nested too deeply",
        expected=f"at most {MAX_DEPTH} parentheses inside each other",
        hint="Name its parts with WITH; IN (…) takes many values",
    )


def _syntax_error(error: SqlglotError) -> QueryError:
    """The error with its position and the text around it."""
    details = getattr(error, "errors", None) or [{}]
    line, column = details[0].get("line"), details[0].get("col")
    highlight = details[0].get("highlight") or ""
    before = (details[0].get("start_context") or "")[-_SHOWN:].replace("\n", " ")
    after = (details[0].get("end_context") or "")[:_SHOWN].replace("\n", " ")
    message = str(details[0].get("description") or _STYLE.sub("", str(error)).splitlines()[0]).rstrip(".")
    if message.startswith("Invalid expression"):
        message = "this cannot stand here"
    message = _TOKEN.sub(r"\1", message)
    if line and column:
        # The parser reports the end of a word.
        column -= max(len(highlight) - 1, 0)
    location = f"line {line}, column {column}: " if line else ""
    lines = [f"{before}{highlight}{after}", f"{' ' * len(before)}{'^' * max(len(highlight), 1)}"] if line else []
    return QueryError(
        f"The question is not understood: {location}{message[:1].lower()}{message[1:]}",
        lines=lines,
        line=line or 0,
        column=column or 0,
    )
