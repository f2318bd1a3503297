"""Construction of scores and normalizers from texts such as `jaro-winkler`, `gaussian:0.1` and `topk:10:0.02`.

The text is the class name in lower case with hyphens; numbers after colons are the fields in order. Every class
exported by `qkv.scores` or `qkv.normalizers` is available if its required fields are numbers.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

import qkv.normalizers as normalizer_module
import qkv.scores as score_module
from qkv.database.io.sources import suggest_name
from qkv.errors import OptionError
from qkv.normalizers import Softmax, TopK
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class ParsedScore:
    """A score that was parsed from a text, as its class and the numbers after its name."""

    kind: type[Score]
    numbers: tuple[float, ...]

    @property
    def needs_bandwidth(self) -> bool:
        """Whether the first field of the score is a bandwidth and the text contained no numbers."""
        first = next(iter(dataclasses.fields(self.kind)), None)
        return first is not None and first.name == "bandwidth" and not self.numbers

    def build(self, *numbers: float) -> Score:
        """Construct the score with the numbers of the text or, if the text contained none, with `numbers`."""
        return _build(self.kind, self.numbers or numbers)


def score_names() -> list[str]:
    """Return the names of all scores that `parse_score` accepts, sorted.

    Example:
        >>> "jaro-winkler" in score_names(), "additive" in score_names()
        (True, False)
    """
    return sorted(_scores())


def normalizer_names() -> list[str]:
    """Return the names of all normalizers that `parse_normalizer` accepts, sorted."""
    return sorted(_normalizers())


def parse_score(text: str) -> ParsedScore:
    """Parse a text that consists of the name of a score and numbers after colons, such as `gaussian:0.5`.

    Raises:
        OptionError: The name of the score is unknown, or its numbers are invalid.

    Example:
        >>> parse_score("gaussian:0.5").build()
        Gaussian(bandwidth=0.5)
        >>> parse_score("gaussian").needs_bandwidth
        True
    """
    name, *rest = text.split(":")
    return ParsedScore(_find(name, _scores(), score_module, "score"), _numbers(text, rest))


def parse_normalizer(text: str) -> Normalizer:
    """Return the normalizer for a text that consists of its name and numbers after colons.

    For example, `topk:10:0.02` is the top 10 with a softmax of temperature 0.02.

    Raises:
        OptionError: The name of the normalizer is unknown, or its numbers are invalid.

    Example:
        >>> print(parse_normalizer("topk:10:0.02"))
        TopK(10, normalizer=Softmax(0.02))
    """
    name, *rest = text.split(":")
    kind: type[Normalizer] = _find(name, _normalizers(), normalizer_module, "normalizer")
    if kind is not TopK:
        return _build(kind, _numbers(text, rest))
    if not rest:
        raise OptionError(
            "the name 'topk' must be followed by the number of keys that get weight, got only 'topk'. "
            "Write topk:10, or topk:10:0.02 for a softmax of temperature 0.02."
        )
    count = _numbers(text, rest[:1])[0]
    inner = ":".join(rest[1:])
    if not inner:
        return _build(TopK, (count,))
    by_name = inner[0].isalpha()
    normalizer = parse_normalizer(inner) if by_name else Softmax(temperature=_numbers(text, rest[1:2])[0])
    return _build(TopK, (count,), normalizer=normalizer)


def _scores() -> dict[str, type[Score]]:
    return _classes(score_module, Score)


def _normalizers() -> dict[str, type[Normalizer]]:
    return {"topk": TopK, **_classes(normalizer_module, Normalizer)}


def _classes(module: ModuleType, base: type) -> dict[str, type]:
    """Return the exported subclasses of `base` whose required fields are numbers, by names such as `jaro-winkler`."""
    exported = {name: getattr(module, name) for name in module.__all__}
    return {
        _in_words(name): kind
        for name, kind in exported.items()
        if inspect.isclass(kind)
        and issubclass(kind, base)
        and dataclasses.is_dataclass(kind)
        and not inspect.isabstract(kind)
        and _needs_numbers_only(kind)
    }


def _in_words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _needs_numbers_only(kind: type) -> bool:
    absent = dataclasses.MISSING
    # A field that follows optional ones has the default None, though its type excludes it.
    needed = [
        f
        for f in dataclasses.fields(kind)
        if f.default_factory is absent and (f.default is absent or (f.default is None and "None" not in str(f.type)))
    ]
    return all(map(_is_number, needed))


def _is_number(field: dataclasses.Field[object]) -> bool:
    # A tuple of columns mentions float too.
    kind = str(field.type)
    return bool(re.search(r"\b(float|int)\b", kind)) and "tuple" not in kind


def _find(name: str, kinds: dict[str, type[_Part]], module: ModuleType, part: str) -> type[_Part]:
    plain = {re.sub(r"[-_ ]", "", key): kind for key, kind in kinds.items()}
    given = re.sub(r"[-_ ]", "", name.lower())
    if given in plain:
        return plain[given]
    if given in {other.lower() for other in module.__all__}:
        raise OptionError(
            f"a {part} given by name must have only numbers as required parameters, got {name!r}, which has others. "
            f"Construct the {part} in Python and pass the object."
        )
    raise OptionError(f"{part} must be one of {', '.join(sorted(kinds))}, got {name!r}.{suggest_name(name, kinds)}")


def _numbers(text: str, parts: list[str]) -> tuple[float, ...]:
    try:
        return tuple(int(part) if part.strip("+-").isdigit() else float(part) for part in parts)
    except ValueError:
        raise OptionError(
            f"the text after a colon must be a number, got {text!r}. Write, for example, gaussian:0.5."
        ) from None


def _build(kind: type[_Part], numbers: tuple[float, ...], **parts: Normalizer) -> _Part:
    fields = [field.name for field in dataclasses.fields(kind) if _is_number(field)]  # type: ignore[arg-type]
    if len(numbers) > len(fields):
        most = f"at most {len(fields)} number{'s' * (len(fields) != 1)}, for {', '.join(fields)}"
        raise OptionError(
            f"{_in_words(kind.__name__)!r} must be followed by {most if fields else 'no number'}, got {len(numbers)}. "
            "Omit the rest."
        )
    try:
        return kind(**dict(zip(fields, numbers, strict=False)), **parts)
    except TypeError as error:
        name, values = _in_words(kind.__name__), ", ".join(map(str, numbers)) or "none"
        raise OptionError(
            f"the numbers after the name {name!r} must fit its parameters, got {values}, but constructing it failed: "
            f"{error}. Write, for example, {name}:1."
        ) from None
