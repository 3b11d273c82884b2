"""Removes secrets from text for others: by their form, by their names, and by their values.

Three filters, because each has gaps: a pattern does not know every form, a name may mislead, and a list of known values
may be incomplete. Each secret is replaced by ``REDACTED``, so that a reader sees that something was there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

REDACTED = "[left out]"
VALUE_CHARS_MIN = 6  # shorter ones occur in too many words

# PWD and OLDPWD are folders; any other name with that ending is a password.
_SECRET_NAME = re.compile(
    r"(?i)pass(wd|word|phrase)?|secret|token|credential|(api|access|private|signing|account|shared|encryption)[_-]?key"
    r"|pepper|auth(?!or(?!i[sz]ation))|cookie|(?<=[a-z0-9_-])(?<!old)pwd|(?-i:^pwd$)"
)
# No pattern matches the text before a secret's name: a repetition there would cost the square of a long line. For the
# same reason every repetition is bounded or consumes what it reads, so that no text is read twice.
_NAME = (
    r"(?:pass(?:wd|word|phrase)?|secret|token|credential|cookie"
    r"|(?:api|access|private|auth|signing|account|shared|encryption)[_-]?key"
    r"|(?<=[a-z0-9_-])(?<!old)pwd|(?<![a-z0-9_-])pwd(?!\s{0,8}[=:]\s{0,8}[\"']?/))"
)
_QUOTE = r"\\{0,4}[\"']"  # escaped, for JSON inside JSON
_IS = rf"(?:{_QUOTE})?\s{{0,8}}[=:]\s{{0,8}}"
_VALUE = (
    r"(?:\"[^\"\\\r\n]*(?:\\.[^\"\\\r\n]*)*\"?|'[^'\r\n]*'?"
    r"|\\{1,4}[\"'][^\"'\\\r\n]*|[^\s,;\"'}\]\\]+)"
)
_PAIR = rf"(?:[\w-]{{1,64}}=(?=[\"']))?{_VALUE}"
_USER_OPTION = r"(?<![\w-])(-u|--(?:proxy-)?user)"
_OPTION = re.compile(r"(?<!\S)(--?[\w-]+)\s+(?:\"[^\"\r\n]*\"?|'[^'\r\n]*'?|[^\s-]\S*)")
_USER_OPTIONS = ("-u", "--user", "--proxy-user")
_PATTERNS = (
    (re.compile(r"\b(moor_[A-Za-z0-9]+)_[A-Za-z0-9]+"), rf"\1_{REDACTED}"),
    (  # a header: a scheme and its value, or several cookies
        re.compile(
            rf"(?i)((?:authorization|cookie){_IS})(?:[a-z][\w-]{{0,32}}[ \t]{{1,8}})?{_PAIR}"
            rf"(?:[ \t]{{0,8}}[,;][ \t]{{0,8}}[\w.-]{{1,64}}={_VALUE})*"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REDACTED}"),
    # A password in a URL ends at the last @ before the path; then one with unescaped slashes of its own.
    (re.compile(r"(://[^\s:/\"']{0,256}):[^\s/\"']+@"), rf"\1:{REDACTED}@"),
    (re.compile(r"(://[^\s:/@\"']{0,256}):(?!\d{0,5}(?:[/?#]|$))[^\s\"']{1,256}@"), rf"\1:{REDACTED}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"\b[0-9a-fA-F]{64,}\b"), REDACTED),  # a pepper, or a digest
    (re.compile(r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_.=-]{8,}"), REDACTED),  # a JSON web token
    (  # tokens of others: GitHub, GitLab, Hugging Face, OpenAI and the like, AWS, Google, Slack
        re.compile(
            r"(?<![A-Za-z0-9])(gh[pousr]_|github_pat_|glpat-|hf_|sk-|AKIA|ASIA|AIza|ya29\.|xox[abeoprs]-)"
            r"(?=[A-Za-z_-]{0,256}[0-9]|[A-Za-z0-9]{16})[A-Za-z0-9_.-]{8,}"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(rf"(?i)({_NAME}[\w.-]{{0,64}}{_IS}){_VALUE}"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)(?<![a-z0-9])(sig(?:nature)?=)[^\s&\"',;]+"), rf"\1{REDACTED}"),  # of a link that opens by itself
    (re.compile(rf"(?i)([\"']--?[\w-]{{0,64}}{_NAME}[\w-]{{0,64}}[\"'],\s{{0,8}}){_VALUE}"), rf"\1{REDACTED}"),
    (
        re.compile(rf"{_USER_OPTION}([\s=,\"']{{0,8}}[\"'])([^\s:\"']{{0,256}}):(?!//)[^\"'\r\n]+"),
        rf"\1\2\3:{REDACTED}",
    ),
    (re.compile(rf"{_USER_OPTION}([\s=]{{0,8}})([^\s:\"']{{0,256}}):(?!//)[^\s\"']+"), rf"\1\2\3:{REDACTED}"),
)


def is_secret_name(name: str) -> bool:
    """Whether the value of that name must not be shown."""
    return _SECRET_NAME.search(name) is not None


def password_of(url: str) -> str:
    """The password in a URL, whatever its characters; empty if there is none."""
    _, separator, rest = url.partition("://")
    user, at, _ = rest.rpartition("@")
    return user.partition(":")[2] if separator and at else ""


def _without_value(option: re.Match[str]) -> str:
    return f"{option[1]} {REDACTED}" if is_secret_name(option[1]) else option[0]


class Redaction:
    """Removes known values and everything that looks like a secret from text.

    Args:
        known: values that must not be shown, wherever they occur.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = sorted({value for value in known if len(value) >= VALUE_CHARS_MIN}, key=len, reverse=True)

    def text(self, text: str) -> str:
        """``text`` without secrets."""
        for value in self._known:
            text = text.replace(value, REDACTED)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return _OPTION.sub(_without_value, text)

    def data(self, value: object, *, hidden: Collection[str] = ()) -> object:
        """Parsed JSON without secrets; of a mapping with one of the names ``hidden``, only the keys are left."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self._item(before, item, hidden) for before, item in zip((None, *value), value, strict=False)]
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._member(str(key), item, hidden) for key, item in value.items()}
        return value

    def _item(self, before: object, item: object, hidden: Collection[str]) -> object:
        """An item of a list, which may be a command line: the word after ``--token`` is not shown."""
        if isinstance(before, str) and isinstance(item, str) and before.startswith("-") and is_secret_name(before):
            return self.data(item, hidden=hidden) if "=" in before or item.startswith("-") else REDACTED
        if before in _USER_OPTIONS and isinstance(item, str) and ":" in item:
            return f"{self.text(item.partition(':')[0])}:{REDACTED}"
        return self.data(item, hidden=hidden)

    def _member(self, key: str, item: object, hidden: Collection[str]) -> object:
        if key in hidden:
            return {self.text(str(name)): REDACTED for name in item} if isinstance(item, Mapping) else REDACTED
        if isinstance(item, str) and item and is_secret_name(key):
            return REDACTED
        return self.data(item, hidden=hidden)
