"""The settings of the page of answers, which are texts in the browser and options of `Database.ask` in Python."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypedDict

from qkv.errors import OptionError

__all__ = ["KERNELS", "AnswerSettings", "AskArguments", "command_options"]

KERNELS = ("gaussian", "laplace", "boxcar", "epanechnikov", "triangular")
"""Names of the scores that have a bandwidth."""

_MAX_TOP = 200
_MAX_TEXT = 2000


class AskArguments(TypedDict, total=False):
    """Keyword arguments of `Database.ask` that have a name on the command line."""

    score: str
    normalizer: str
    fit: str
    where: str
    threshold: float
    top: int


@dataclass(frozen=True)
class AnswerSettings:
    """The settings of the page; an empty text stands for the default.

    Attributes:
        score: name of the score, without its bandwidth.
        bandwidth: bandwidth of the score, in the unit of the key.
        normalizer: name of the normalizer.
        neighbours: number of rows that get weight; empty: as the normalizer does.
        fit: "mean", "vote" or "local-linear".
        where: SQL predicate.
        threshold: least similarity, or largest distance, of a match.
        top: number of rows of evidence.
    """

    score: str = ""
    bandwidth: str = ""
    normalizer: str = ""
    neighbours: str = ""
    fit: str = ""
    where: str = ""
    threshold: str = ""
    top: str = "10"

    @classmethod
    def parse(cls, request: object) -> AnswerSettings:
        """Return the settings in a request of the browser.

        Raises:
            OptionError: the request has other fields, or a field is not a text of at most 2,000 characters.
        """
        names = {field.name for field in fields(cls)}
        given: dict[object, object] = request if isinstance(request, dict) else {"": request}
        texts: dict[str, str] = {}
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str) or name not in names or len(value) > _MAX_TEXT:
                raise OptionError(
                    f"settings must have texts of at most {_MAX_TEXT:,} characters for {', '.join(sorted(names))}, got "
                    f"{name!r}: {str(value)[:80]!r}. Reload the page."
                )
            texts[name] = value.strip()
        return cls(**texts)

    @classmethod
    def from_options(
        cls,
        *,
        score: str | None = None,
        normalizer: str | None = None,
        fit: str | None = None,
        where: str | None = None,
        threshold: float | None = None,
        top: int | None = None,
    ) -> AnswerSettings:
        """Return the settings that stand for options of `Database.ask`.

        Example:
            >>> AnswerSettings.from_options(score="gaussian:0.5", normalizer="topk:3").options()
            {'score': 'gaussian:0.5', 'normalizer': 'topk:3', 'top': 10}
        """
        name, _, bandwidth = (score or "").partition(":")
        if name.lower() not in KERNELS:
            name, bandwidth = score or "", ""
        first, _, rest = (normalizer or "").partition(":")
        count, _, inner = rest.partition(":")
        top_k = first.lower() == "topk" and count.isdigit() and (not inner or inner[0].isalpha())
        return cls(
            name,
            bandwidth,
            inner if top_k else normalizer or "",
            count if top_k else "",
            fit or "",
            where or "",
            "" if threshold is None else f"{threshold!r}",
            str(top or 10),
        )

    def options(self, inner: str = "") -> AskArguments:
        """Return the keyword arguments of `Database.ask`; those of default settings are omitted.

        Args:
            inner: the normalizer of the neighbours, if `normalizer` is empty.

        Raises:
            OptionError: a number cannot be read.
        """
        out: AskArguments = {}
        score = f"{self.score or 'gaussian'}:{_number('bandwidth', self.bandwidth)}" if self.bandwidth else self.score
        normalizer = self.normalizer
        if self.neighbours:
            chosen = "" if normalizer.lower().startswith("topk") else normalizer or inner
            normalizer = f"topk:{_integer('neighbours', self.neighbours)}" + (f":{chosen}" if chosen else "")
        if score:
            out["score"] = score
        if normalizer:
            out["normalizer"] = normalizer
        if self.fit:
            out["fit"] = self.fit
        if self.where:
            out["where"] = self.where
        if self.threshold:
            out["threshold"] = float(_number("threshold", self.threshold))
        out["top"] = min(_integer("rows", self.top), _MAX_TOP)
        return out


def command_options(options: AskArguments) -> list[str]:
    """Return the options of `qkv ask` for keyword arguments of `Database.ask`.

    Example:
        >>> command_options({"score": "boxcar:1", "threshold": 0.5, "top": 10})
        ['--score', 'boxcar:1', '--threshold', '0.5']
    """
    given = [(name, value) for name, value in options.items() if (name, value) != ("top", 10)]
    words = [part for name, value in given for part in (f"--{name}", str(value))]
    return [*words, *["--gradient"] * (options.get("fit") == "local-linear")]


def _number(name: str, text: str) -> str:
    """Return the text of a positive number, without spaces."""
    try:
        valid = 0 <= float(text) < float("inf")
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"{name} must be a number that is at least 0, got {text!r}. Write, for example, 0.5.")
    return text.replace(" ", "")


def _integer(name: str, text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 10**9:
        raise OptionError(f"{name} must be a positive whole number, got {text!r}. Write, for example, 10.")
    return int(text)
