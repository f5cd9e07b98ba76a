"""Report text, cleaned once before everything else, and a key by which equal texts are found."""

import html
import re
import unicodedata

_DASHES = dict.fromkeys(map(ord, "\u00ad\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-")
_BLANKS = re.compile(r"[^\S\n]+")
_UNDERLINE = re.compile(r"^_{10,}$", re.MULTILINE)
# A new item, or a header such as "IMPRESSION:", begins a line of its own; other breaks are wraps.
_KEPT_BREAK = re.compile(r"\n(?=\s*(?:\n|\d{1,2}[.)]\s|[-*•]\s|[A-Z][A-Z ()/,-]{2,}:))")
_NOT_WORD = re.compile(r"[\W_]+")


def normalise_report(text: str) -> str:
    """Return the text with entities decoded, Unicode folded and wrapped lines joined.

    HTML entities, NFKC, dashes and blanks folded, BOM and control characters dropped. A line break
    inside a sentence becomes a blank; before an empty line, a list item or a header it stays.
    Marks of removed words (`XXXX`, `___`) stay as they are. Idempotent.
    """
    # Text that was escaped twice is met in exports, and folding can bring out one more entity.
    while (decoded := unicodedata.normalize("NFKC", html.unescape(text))) != text:
        text = decoded
    text = text.translate(_DASHES)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))
    text = _BLANKS.sub(" ", text)
    text = "\n".join(line.strip() for line in text.split("\n"))
    text = _UNDERLINE.sub("", text)
    parts = _KEPT_BREAK.split(text)
    lines = (" ".join(part.split()) for part in parts)
    return "\n".join(line for line in lines if line)


def duplicate_key(text: str) -> str:
    """Return the lower-cased words with punctuation folded: equal for reports that say the same."""
    return _NOT_WORD.sub(" ", text.lower()).strip()
