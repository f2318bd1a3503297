"""Scores and normalizers by name, as on the command line: `jaro-winkler`, `gaussian:0.1`, `topk:10:0.02`.

A name is the class in words; numbers after colons are its fields in order. Whatever `qkv.scores` and
`qkv.normalizers` export is known here by existing.
"""

import dataclasses
import inspect
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import qkv.normalizers as normalizer_module
import qkv.scores as score_module
from qkv.database.io.sources import suggest_name
from qkv.errors import OptionError
from qkv.normalizers import Softmax, TopK
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

_Part = TypeVar("_Part")

__all__ = ["ParsedScore", "parse_normalizer", "parse_score", "normalizer_names", "score_names"]


@dataclass(frozen=True)
class ParsedScore:
    """A score as it was named: its class, and the numbers that were given with it."""

    kind: type[Score]
    numbers: tuple[float, ...]

    @property
    def needs_bandwidth(self) -> bool:
        """Whether it has a bandwidth and none was given."""
        first = next(iter(dataclasses.fields(self.kind)), None)  # type: ignore[arg-type]
        return first is not None and first.name == "bandwidth" and not self.numbers

    def build(self, *numbers: float) -> Score:
        """The score, with these numbers where none were given."""
        return _built(self.kind, self.numbers or numbers)


def score_names() -> list[str]:
    """The names that `parse_score` knows.

    Example:
        >>> "jaro-winkler" in score_names(), "additive" in score_names()
        (True, False)
    """
    return sorted(_scores())


def normalizer_names() -> list[str]:
    """The names that `parse_normalizer` knows."""
    return sorted(_normalizers())


def parse_score(text: str) -> ParsedScore:
    """The score called `text`.

    Raises:
        OptionError: there is no such score, or it takes no such numbers.

    Example:
        >>> parse_score("gaussian:0.5").build()
        Gaussian(bandwidth=0.5)
        >>> parse_score("gaussian").needs_bandwidth
        True
    """
    name, *rest = text.split(":")
    kind = _find(name, _scores(), score_module, "score")
    return ParsedScore(kind, _numbers(text, rest))


def parse_normalizer(text: str) -> Normalizer:
    """The normalizer called `text`; `topk:10:0.02` is the ten best under a softmax of temperature 0.02.

    Raises:
        OptionError: there is no such normalizer, or it takes no such numbers.

    Example:
        >>> print(parse_normalizer("topk:10:0.02"))
        TopK(10, normalizer=Softmax(0.02))
    """
    name, *rest = text.split(":")
    kind: type[Normalizer] = _find(name, _normalizers(), normalizer_module, "normalizer")
    if kind is TopK:
        if not rest:
            raise OptionError("the normalizer 'topk' does not say how many. Write topk:10, or topk:10:0.02.")
        count = _numbers(text, rest[:1])[0]
        within = ":".join(rest[1:])
        if not within:
            return _built(TopK, (count,))
        by_name = within[0].isalpha()
        nested = parse_normalizer(within) if by_name else Softmax(temperature=_numbers(text, rest[1:2])[0])
        return _built(TopK, (count,), normalizer=nested)
    return _built(kind, _numbers(text, rest))


def _scores() -> dict[str, type]:
    return _kinds(score_module, Score)


def _normalizers() -> dict[str, type]:
    return {"topk": TopK, **_kinds(normalizer_module, Normalizer)}


def _kinds(module: Any, base: type) -> dict[str, type]:
    """The exported classes that numbers alone can build, by their names in words."""
    exported = {name: getattr(module, name) for name in module.__all__}
    return {
        _words(name): kind
        for name, kind in exported.items()
        if inspect.isclass(kind)
        and issubclass(kind, base)
        and dataclasses.is_dataclass(kind)
        and not inspect.isabstract(kind)
        and _needs_numbers_only(kind)
    }


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _needs_numbers_only(kind: Any) -> bool:
    absent = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return all(_is_number(f) for f in fields if f.default is absent and f.default_factory is absent)


def _is_number(field: Any) -> bool:
    # A tuple of columns names float too, and is no number.
    kind = str(field.type)
    return bool(re.search(r"\b(float|int)\b", kind)) and "tuple" not in kind


def _find(name: str, kinds: dict[str, type], module: Any, what: str) -> Any:
    plain = {re.sub(r"[-_ ]", "", known): kind for known, kind in kinds.items()}
    wanted = re.sub(r"[-_ ]", "", name.lower())
    if wanted in plain:
        return plain[wanted]
    if wanted in {other.lower() for other in module.__all__}:
        raise OptionError(
            f"the {what} {name!r} holds learned arrays or other parts, which a name cannot give. Build it in Python."
        )
    raise OptionError(f"there is no {what} {name!r}; there are {', '.join(sorted(kinds))}.{suggest_name(name, kinds)}")


def _numbers(text: str, parts: list[str]) -> tuple[float, ...]:
    try:
        return tuple(int(part) if part.strip("+-").isdigit() else float(part) for part in parts)
    except ValueError:
        raise OptionError(f"{text!r} holds something that is no number after a colon. Write name:0.5.") from None


def _built(kind: type[_Part], numbers: tuple[float, ...], **parts: Any) -> _Part:
    fields = [field.name for field in dataclasses.fields(kind) if _is_number(field)]  # type: ignore[arg-type]
    if len(numbers) > len(fields):
        count = f"{len(numbers)} number{'s' * (len(numbers) != 1)}"
        takes = f"It takes {', '.join(fields)}" if fields else "It takes none"
        raise OptionError(f"{_words(kind.__name__)!r} was given {count}. {takes}.")
    try:
        return kind(**dict(zip(fields, numbers, strict=False)), **parts)
    except TypeError as error:
        raise OptionError(f"{_words(kind.__name__)!r} cannot be built: {error}.") from None
