"""Parts made for a module's batch axes meet a call whose last batch axis is the heads.

    batch axes of a part's array        read as             in the call
    ()                                  all alike           ()
    (heads,)      score, normalizer     one per head        (1, …, 1, heads)
    (*batch,)     mask, positions       one per element     (*batch, 1)
    (*batch, heads)                     one for each        (*batch, heads)

Where a group of heads shares a key, heads are two axes: (key_heads, group).
torch.compile looks into this file, so it is plain.
"""

from __future__ import annotations

from typing import Any, TypeVar

from qkv.core.arrays import is_array
from qkv.core.parts import Part

__all__ = ["fitted", "spread"]

P = TypeVar("P")


def fitted(part: P, batch_axes: int, groups: tuple[int, int] | None, per_head: bool) -> P:
    """The part for a call with one more batch axis, the heads; itself where it holds no array to change.

    Args:
        part: a part, or None.
        batch_axes: how many batch axes the module's inputs have.
        groups: (key_heads, group) where heads are two axes of the call.
        per_head: one batch axis alone is the heads (scores, normalizers), not the module's batch.
    """
    return _changed(part, None, (batch_axes, groups, per_head))  # type: ignore[no-any-return]


def _changed(value: Any, names: Any, rule: tuple[int, tuple[int, int] | None, bool]) -> Any:
    if isinstance(value, Part):
        kind: Any = type(value)
        fields = {}
        same = True
        for name in kind.__match_args__:  # the fields; not what is said of the class
            before = getattr(value, name)
            after = _changed(before, kind.__dataclass_fields__[name].metadata.get("axes"), rule)
            same = same and after is before
            fields[name] = after
        return value if same else kind(**fields)
    if isinstance(value, tuple):
        items = tuple([_changed(item, names, rule) for item in value])
        same = all([a is b for a, b in zip(items, value, strict=True)])  # noqa: C419 -- the compiler's
        return value if same else items
    if names is None or not is_array(value):
        return value
    return spread(value, value.ndim - len(names), *rule)


def spread(x: Any, own: int, batch_axes: int, groups: tuple[int, int] | None, per_head: bool) -> Any:
    """The array, of whose axes `own` are batch axes; what fits nowhere is left for the engine to refuse."""
    if own <= 0:
        return x
    shape = tuple(x.shape)
    lead, core = shape[:own], shape[own:]
    if own == 1 and (per_head or batch_axes == 0):
        lead = (1,) * batch_axes + lead
    elif own == batch_axes:
        lead = (*lead, 1)
    elif own != batch_axes + 1:
        return x
    if groups is not None:
        lead = (*lead[:-1], 1, 1) if lead[-1] == 1 else (*lead[:-1], *groups)
    lead = (*lead, *core)
    return x if lead == shape else x.reshape(lead)
