"""Splits a query into tokens by Spark's rules.

The parser of `sqlglot` is used, its tokenizer is not. Strings, names, numbers and comments are recognised here as in
Spark's lexer. So no text means one thing to the check and another to the engine. Everything outside the lists below is
rejected with its position.

1. Comments are removed (also Spark's nested ones), and hints with them.
2. Strings are unescaped by Spark's rules; adjacent strings are joined, as in Spark.
3. A word is a keyword only if it is one of `KEYWORDS`; every other word is a name.
"""

import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from siltstone.errors import InvalidRequest

_PLAIN_KEYWORDS: Final = """
    ALL AND ANTI ASC BETWEEN CASE CROSS CUBE CURRENT_DATE CURRENT_TIMESTAMP DESC DISTINCT DIV ELSE END ESCAPE EXCEPT
    EXISTS FALSE FILTER FIRST FROM FULL HAVING ILIKE IN INNER INTERSECT INTERVAL IS JOIN LATERAL LEFT LIKE LIMIT
    NATURAL NOT NULL OFFSET ON OR OUTER OVER PIVOT QUALIFY RANGE RECURSIVE RIGHT RLIKE ROLLUP ROW ROWS SELECT SEMI
    THEN TRUE UNION UNPIVOT USING VALUES VIEW WHEN WHERE WINDOW WITH
"""
KEYWORDS: Final[dict[str, TokenType]] = {
    **{word: TokenType[word] for word in _PLAIN_KEYWORDS.split()},
    "AS": TokenType.ALIAS,
    "GROUP BY": TokenType.GROUP_BY,
    "GROUPING SETS": TokenType.GROUPING_SETS,
    "MINUS": TokenType.EXCEPT,
    "ORDER BY": TokenType.ORDER_BY,
    "PARTITION BY": TokenType.PARTITION_BY,
    "REGEXP": TokenType.RLIKE,
}
"""Keywords. Those of two words are adjacent in the text."""

_PLAIN_TYPES: Final = """
    ARRAY BIGINT BINARY BOOLEAN DATE DECIMAL DOUBLE FLOAT INT MAP SMALLINT STRUCT TINYINT
"""
TYPE_WORDS: Final[dict[str, TokenType]] = {
    **{word: TokenType[word] for word in _PLAIN_TYPES.split()},
    "BYTE": TokenType.TINYINT,
    "DEC": TokenType.DECIMAL,
    "INTEGER": TokenType.INT,
    "LONG": TokenType.BIGINT,
    "NUMERIC": TokenType.DECIMAL,
    "REAL": TokenType.FLOAT,
    "SHORT": TokenType.SMALLINT,
    "STRING": TokenType.TEXT,
    "TIMESTAMP": TokenType.TIMESTAMPTZ,
    "TIMESTAMP_LTZ": TokenType.TIMESTAMPLTZ,
    "TIMESTAMP_NTZ": TokenType.TIMESTAMPNTZ,
}
"""Types, by all their names. Such a word is a type only in the place of a type; elsewhere it is a name."""

_REFUSED_WORDS: Final = """
    ALTER ANALYZE CACHE CLUSTER CREATE DELETE DISTRIBUTE DROP GRANT INSERT INTO MATCH_RECOGNIZE MERGE OVERWRITE REVOKE
    TABLE TABLESAMPLE TRUNCATE UPDATE
"""
REFUSED_WORDS: Final = frozenset(_REFUSED_WORDS.split())
"""Words of statements and clauses that are not allowed in a query. As a name, such a word needs backticks."""

INSTEAD: Final = {
    "ALTER": "Columns are added with silt alter or Dataset.alter.",
    "CREATE": "Make a dataset with silt create or Lake.create.",
    "DELETE": "Hide rows with silt tombstone or Dataset.tombstone (by key, or where=); a purge takes them from disk.",
    "DROP": "Drop a dataset with silt drop or Lake.drop.",
    "INSERT": "Write rows with silt upsert or Dataset.upsert, into a log with silt append or Dataset.append.",
    "INTO": "Write a result to a file with silt sql --out, rows with silt upsert or silt append.",
    "TABLE": "Write SELECT * FROM it.",
    "TABLESAMPLE": "It has other rows each time. Choose by a hash: WHERE pmod(xxhash64(id), 100) < 10.",
    "TRUNCATE": "Hide rows with silt tombstone, or drop the dataset with silt drop.",
    **dict.fromkeys(("CLUSTER", "DISTRIBUTE"), "Rows come in the order of ORDER BY."),
    **dict.fromkeys(
        ("MERGE", "OVERWRITE"),
        "Write rows with silt upsert or Dataset.upsert, which replaces those with the same key.",
    ),
    "UPDATE": "Change columns of rows by key with silt update or Dataset.update.",
}
"""Advice for some of the refused words."""

_OPERATORS: Final = "( ) [ ] , . + - * / % ~ & | ^ || = == <=> <> != < <= > >= ! : :: ->"
_TOKEN_TYPES: Final = Tokenizer.SINGLE_TOKENS | Tokenizer.KEYWORDS
OPERATORS: Final = {sign: _TOKEN_TYPES[sign] for sign in _OPERATORS.split()}

_FIRST_OF_TWO: Final = frozenset(name.split()[0] for name in KEYWORDS if " " in name)
_LEXEME: Final = re.compile(
    r"""
    (?P<space>[ \t\n\r\f\v]+)
  | (?P<line>--(?:\\\n|[^\r\n])*)
  | (?P<comment>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<hex>[xX](?:'[^']*'|"[^"]*"))
  | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[bB][dD]|[LSYDFlsydf])?(?![A-Za-z0-9_]))
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<end>;)
  | (?P<operator><=>|\|\||==|<>|!=|<=|>=|->(?!>)|::|\|(?!>)|[()\[\],.+\-*/%~&^=<>!:])
    """,
    re.VERBOSE | re.DOTALL,
)
_NESTED: Final = (TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT)
_LITERAL_TYPES: Final = (TokenType.DATE, TokenType.TIMESTAMPTZ, TokenType.TIMESTAMPLTZ, TokenType.TIMESTAMPNTZ)
_COMMENT_PART: Final = re.compile(r"/\*|\*/")
_ESCAPED: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)|(['\"])\2", re.DOTALL)
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


@dataclass(frozen=True, slots=True)
class TextPosition:
    """Position in a text; lines and columns count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


def position_at(text: str, index: int) -> TextPosition:
    r"""Return the position of a character.

    >>> str(position_at("SELECT 1\nFROM x", 9))
    'line 2, column 1'
    """
    before = text[:index]
    return TextPosition(before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of one statement; a semicolon may end it."""
    tokens: list[Token] = []
    index, ended, positions = 0, False, _PositionCounter(text)
    while index < len(text):
        if text[index] == " ":
            index += 1
            continue
        match = _LEXEME.match(text, index)
        if match is None:
            raise _unreadable(text, index)
        kind, lexeme, start = match.lastgroup, match[0], index
        index = _end_of_comment(text, start) if kind == "comment" else match.end()
        if kind in ("space", "line", "comment"):
            continue
        if kind == "end":
            ended = True
            continue
        if ended:
            raise InvalidRequest(
                f"A query must be exactly one SELECT: a second statement begins at {position_at(text, start)}."
            )
        token_type, value = _token(text, start, str(kind), lexeme)
        if tokens and _join_to(tokens[-1], token_type, value):
            continue
        line, column = positions.position(start)
        tokens.append(Token(token_type, value, line, column, start, index - 1))
    _mark_parameters(tokens)
    _mark_types(tokens)
    return tokens


class _PositionCounter:
    """Computes line and column of positions in ascending order."""

    def __init__(self, text: str) -> None:
        self._text, self._line, self._at, self._begin = text, 1, 0, 0
        self._one_line = "\n" not in text

    def position(self, index: int) -> tuple[int, int]:
        if self._one_line:
            return 1, index + 1
        self._line += self._text.count("\n", self._at, index)
        self._begin = max(self._begin, self._text.rfind("\n", self._at, index) + 1)
        self._at = index
        return self._line, index - self._begin + 1


def _token(text: str, start: int, kind: str, lexeme: str) -> tuple[TokenType, str]:
    match kind:
        case "string":
            return TokenType.STRING, _unescaped(lexeme)
        case "raw":
            return TokenType.STRING, lexeme[2:-1]
        case "hex":
            if not re.fullmatch(r"[0-9A-Fa-f]*", lexeme[2:-1]):
                raise InvalidRequest(
                    f"The binary value at {position_at(text, start)} has other characters than 0-9 and A-F."
                )
            return TokenType.HEX_STRING, lexeme[2:-1]
        case "quoted":
            return TokenType.IDENTIFIER, _name(text, start, lexeme[1:-1].replace("``", "`"))
        case "number":
            return TokenType.NUMBER, lexeme
        case "word":
            return _word(text, start, lexeme)
        case _:
            return OPERATORS[lexeme], lexeme


def _word(text: str, start: int, word: str) -> tuple[TokenType, str]:
    upper = word.upper()
    if upper in REFUSED_WORDS:
        instead = f"{INSTEAD[upper]} " if upper in INSTEAD else ""
        raise InvalidRequest(
            f"A query must be exactly one SELECT; {upper} at {position_at(text, start)} is not allowed in it. {instead}"
            "If it is the name of a column, put it in backticks."
        )
    return KEYWORDS.get(upper, TokenType.VAR), word


def _join_to(last: Token, token_type: TokenType, value: str) -> bool:
    """Join a token to the one before it, if both are one: adjacent strings, keywords of two words."""
    if token_type is TokenType.STRING and last.token_type is TokenType.STRING:
        last.text += value
        return True
    if last.token_type is TokenType.VAR and last.text.upper() in _FIRST_OF_TWO and token_type is TokenType.VAR:
        both = f"{last.text} {value}".upper()
        if both in KEYWORDS:
            last.token_type, last.text = KEYWORDS[both], both
            return True
    return False


def _mark_parameters(tokens: list[Token]) -> None:
    """Make the word after a colon a name, also if it is a keyword. After a name, the colon belongs to a struct type."""
    names = (TokenType.VAR, TokenType.IDENTIFIER)
    for number, token in enumerate(tokens[:-1]):
        if token.token_type is TokenType.COLON and (number == 0 or tokens[number - 1].token_type not in names):
            following = tokens[number + 1]
            if following.token_type is not TokenType.IDENTIFIER and following.text[:1].isalpha():
                following.token_type = TokenType.VAR


def _mark_types(tokens: list[Token]) -> None:
    """Make words types in the places of types: after AS or ``::``, inside ``<>``, before the string of a literal."""
    inside = 0
    for number, token in enumerate(tokens):
        before = tokens[number - 1].token_type if number else None
        after = tokens[number + 1].token_type if number + 1 < len(tokens) else None
        if token.token_type is TokenType.LT and before in _NESTED:
            inside += 1
        elif token.token_type is TokenType.GT and inside:
            inside -= 1
        elif token.token_type is TokenType.VAR and (kind := TYPE_WORDS.get(token.text.upper())):
            literal = after is TokenType.STRING and kind in _LITERAL_TYPES
            nested = after is TokenType.LT and kind in _NESTED
            if literal or nested or inside or before in (TokenType.ALIAS, TokenType.DCOLON):
                token.token_type = kind


def _end_of_comment(text: str, start: int) -> int:
    """Return the end of the comment that begins here. Comments nest, as in Spark."""
    depth, index = 0, start
    while part := _COMMENT_PART.search(text, index):
        depth += 1 if part[0] == "/*" else -1
        index = part.end()
        if depth == 0:
            return index
    raise InvalidRequest(f"The comment that begins at {position_at(text, start)} is not closed. Close it with */.")


def _unescaped(lexeme: str) -> str:
    r"""Return the value of a string by Spark's rules: ``\n``, ``\u0041``, ``\101``, doubled quotes; ``\%`` stays.

    >>> _unescaped(r"'a\tb\\c\'d\u0041''e\%'")
    "a\tb\\c'dA'e\\%"
    """
    inner, quote = lexeme[1:-1], lexeme[0]
    if "\\" not in inner and quote not in inner:
        return inner

    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if code is None:
            return quote if match[2] == quote else match[0]
        if code[0] in "uU" and len(code) > 1:
            number = int(code[1:], 16)
            return chr(number) if number <= sys.maxunicode else ""
        if len(code) > 1:
            return chr(int(code, 8))
        return _ESCAPES.get(code, code)

    value = _ESCAPED.sub(plain, inner)
    if not any("\ud800" <= letter <= "\udfff" for letter in value):
        return value
    # join surrogate pairs, as Java does; an unpaired surrogate becomes a question mark
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\ufffd", "?")


def _name(text: str, start: int, name: str) -> str:
    if name.isascii() and name.isidentifier():  # most names are, and need none of the checks below
        return name
    if not name or "${" in name or any(unicodedata.category(letter) in ("Cc", "Cf", "Cs") for letter in name):
        raise InvalidRequest(
            f"The name in backticks at {position_at(text, start)} cannot be used: it is empty or has characters in it that "
            "cannot be seen or that engines replace."
        )
    return name


def _unreadable(text: str, index: int) -> InvalidRequest:
    where, letter = position_at(text, index), text[index]
    if letter in "'\"`":
        what = "name" if letter == "`" else "string"
        return InvalidRequest(f"The {what} that begins at {where} is not closed. Close it with {letter}.")
    if letter.isascii() and letter.isdigit():
        return InvalidRequest(
            f"The number at {where} runs into a name. Put names that begin with a digit in backticks."
        )
    shown = letter if letter.isprintable() else ""
    named = f"{shown} (U+{ord(letter):04X} {unicodedata.name(letter, '')})".strip().replace(" )", ")")
    return InvalidRequest(
        f"The character {named} at {where} is not allowed. Outside of quotes a query has letters of ASCII, digits and the "
        "operators that docs/sql.md lists; put other names in backticks."
    )
