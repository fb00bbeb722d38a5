"""Checks the CSV options of a caller. `spark_tasks.csv_rows` parses files by them."""

import codecs
import re
from collections.abc import Sequence
from typing import Final

from siltstone.errors import InvalidRequest
from siltstone.model.spec import as_names
from siltstone.spark_tasks.csv_rows import PLAIN, CsvForm

NAMED_CHARACTERS: Final = {
    "tab": "\t",
    "\\t": "\t",
    "space": " ",
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
    "none": "",
}
"""Names of characters that are hard to type in a shell."""
_DIRECTIVE: Final = re.compile(r"%(.)")
_DIRECTIVES: Final = frozenset("YymbBdHIpMSfzjaA%")
"""Directives of `strptime` that a format may have. Others depend on the locale, or do not identify a day."""
_DAYS: Final = ((frozenset("Yy"), frozenset("mbB"), frozenset("d")), (frozenset("Yy"), frozenset("j")))


def csv_form(  # one parameter for each option
    *,
    delimiter: str | None = None,
    quote: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    null_text: str | Sequence[str] | None = None,
    date_format: str | None = None,
    timestamp_format: str | None = None,
    decimal_comma: bool | None = None,
) -> CsvForm | None:
    """Return the form of the CSV files; None without options. InvalidRequest names an option that is not valid."""
    options = (delimiter, quote, encoding, header, null_text, date_format, timestamp_format, decimal_comma)
    if all(option is None for option in options):
        return None
    form = CsvForm(
        delimiter=_character(delimiter, PLAIN.delimiter),
        quote=_character(quote, PLAIN.quote),
        encoding=_encoding(encoding) if encoding is not None else PLAIN.encoding,
        header=PLAIN.header if header is None else header,
        null_text=PLAIN.null_text if null_text is None else as_names(null_text),
        date_format=date_format,
        timestamp_format=timestamp_format,
        decimal_comma=bool(decimal_comma),
    )
    if len(form.delimiter) != 1 or form.delimiter in '\r\n"' or form.delimiter.isalnum():
        raise _refused("delimiter", form.delimiter, "It is one character, not a letter, digit, quote or line break")
    if len(form.quote) > 1 or form.quote == form.delimiter or form.quote in ("\r", "\n"):
        raise _refused("quote", form.quote, "It is one character other than the delimiter, or none")
    if date_format is not None and _directives("date_format", date_format) & frozenset("HIpMSfz"):
        raise _refused("date_format", date_format, "A date has no time of day. Use %Y, %m and %d")
    if timestamp_format is not None:
        used = _directives("timestamp_format", timestamp_format)
        if ("I" in used) != ("p" in used) or ("M" in used and not used & frozenset("HI")):
            rule = "Use %H, or %I with %p, for the hour, %M for minutes and %S for seconds"
            raise _refused("timestamp_format", timestamp_format, rule)
    return form


def _refused(option: str, value: str, rule: str) -> InvalidRequest:
    return InvalidRequest(f"The CSV option {option} must not be {value!r}. {rule}. Nothing was loaded.")


def _character(text: str | None, default: str) -> str:
    return default if text is None else NAMED_CHARACTERS.get(text, text)


def _encoding(name: str) -> str:
    """Return Python's name of the encoding. A line break must be one byte in it, because Spark splits files there."""
    ascii_text = bytes(range(128))
    try:
        encoding = codecs.lookup(name).name
        is_plain = ascii_text.decode(encoding) == ascii_text.decode("ascii")
    except (LookupError, UnicodeError, ValueError):
        raise _refused("encoding", name, "Encodings are named as in Python: utf-8, latin-1, cp1252") from None
    if not is_plain:
        raise _refused("encoding", name, "Its line breaks are not single bytes. Convert the file to UTF-8")
    return encoding


def _directives(option: str, text: str) -> frozenset[str]:
    """Return the directives of a format. The format must identify a day."""
    used = frozenset(_DIRECTIVE.findall(text))
    if not used <= _DIRECTIVES or not any(all(used & part for part in parts) for parts in _DAYS):
        raise _refused(option, text, "It needs a year (%Y), a month (%m) and a day (%d), as in %d.%m.%Y")
    return used
