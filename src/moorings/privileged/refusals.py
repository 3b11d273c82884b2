"""The answers of the root daemon that say no."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - as the answer that it becomes
    """A request is refused.

    Attributes:
        code: stable, for programs.
        detail: what is wrong, as a sentence.
        hint: what to do; may be empty.
    """

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail, self.hint = code, detail, hint

    def answer(self) -> dict[str, str]:
        """The refusal as an answer."""
        return {"error": self.code, "detail": self.detail, "hint": self.hint}
