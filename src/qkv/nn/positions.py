"""Position encodings: sinusoidal, learned and rotary.

Attention itself ignores order: permuting keys and values together changes nothing. A position encoding is added to
each token (`Sinusoidal`, `Learned`), or rotates queries and keys so that their inner product depends on their distance
(`Rotary`). Alternatives are scores that depend on distances (`scores.ALiBi`, `scores.RelativePosition`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.core.checks import check_integers
from qkv.core.typing import Float, Int, Shaped
from qkv.errors import KindError, OptionError, ShapeError
from qkv.nn.checks import check_width
from qkv.nn.rotary_scaling import LinearScaling, Llama3Scaling, LongRoPE, NTKScaling, RotaryScaling, YaRN, read_scaling

__all__ = [
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPE",
    "NTKScaling",
    "position_ids",
    "Rotary",
    "Rotary2D",
    "RotaryScaling",
    "Sinusoidal",
    "sinusoidal_table",
    "YaRN",
]


class Rotary(nn.Module):
    """Rotary position embedding, which rotates pairs of elements of queries and keys by position-dependent angles.

        (a, b) -> (a cos φ − b sin φ, a sin φ + b cos φ)          φ_i(p) = p · theta^(−2i / rotated)

    The inner product of a rotated query and key depends only on the distance of their positions. Rotate keys before
    they are cached: their positions never change.

    Args:
        width: width of one head.
        theta: wavelengths range from 2π to theta · 2π.
        rotated: number of leading elements that are rotated; None means all.
        interleaved: how elements are paired. False: element i with i + rotated/2 (halves), as in Llama and
            GPT-NeoX. True: 2i with 2i + 1, as in the paper and GPT-J. Weights trained with one convention do not
            work with the other.
        scaling: change of the rates for longer sequences, such as `YaRN(4.0, 4096)`, `Llama3Scaling()`,
            `NTKScaling(4.0)` or `LinearScaling(4.0)`.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> the same

    Raises:
        OptionError: if the width cannot be paired, `theta` is not positive, or `scaling` is no `RotaryScaling`.
        ShapeError: in a call with vectors of another width, or positions that do not match.

    Source: Su et al. (2021), RoFormer, section 3.2.2, https://arxiv.org/abs/2104.09864; partial rotation:
    Black et al. (2022), GPT-NeoX-20B, section 2.1.1, https://arxiv.org/abs/2204.06745.

    Example:
        >>> rotary = Rotary(2)
        >>> q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> far = [rotary.rotate(q, k, torch.tensor([p]), torch.tensor([p + 1])) for p in (0, 50)]
        >>> [round(float(a @ b.mT), 4) for a, b in far]  # cos 1 at every distance of 1
        [0.5403, 0.5403]
    """

    def __init__(
        self,
        width: int,
        *,
        theta: float = 10_000.0,
        rotated: int | None = None,
        interleaved: bool = False,
        scaling: RotaryScaling | None = None,
    ) -> None:
        super().__init__()
        check_integers(width=width)
        rotated = width if rotated is None else rotated
        check_integers(2, rotated=rotated)
        if rotated % 2 or rotated > width:
            raise OptionError(
                f"rotated must be even and at most the width {width}, because elements are rotated in pairs, got "
                f"{rotated}. Pass rotated={min(rotated, width) // 2 * 2}."
            )
        if theta <= 0:
            raise OptionError(f"theta must be positive, got {theta}. Pass, for example, 10000.")
        if scaling is not None and not isinstance(scaling, RotaryScaling):
            raise OptionError(
                f"scaling must be a RotaryScaling, got {scaling!r}. Pass one from nn.positions, such as "
                "YaRN(4.0, 4096)."
            )
        self.width, self.theta, self.rotated, self.interleaved = width, theta, rotated, interleaved
        self.scaling = scaling

    @classmethod
    def from_config(cls, config: Any, length: int | None = None) -> Rotary:
        """Return the rotation of a Hugging Face model, from the `rope_parameters` of its configuration.

        Elements are paired in halves, as in Llama and most others.

        Args:
            config: the configuration, such as `model.config`.
            length: length of the sequences, on which the scalings "dynamic" and "longrope" depend; None: at most that
                of training.

        Raises:
            OptionError: if the configuration has no `rope_parameters`, or their type is unknown.
        """
        parameters = getattr(config, "rope_parameters", None)
        if not isinstance(parameters, Mapping) or "rope_theta" not in parameters:
            raise OptionError(
                f"config must have rope_parameters with rope_theta, got {parameters!r}. For a model whose layers "
                "rotate differently, build one Rotary per kind of layer."
            )
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        share = parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
        scaling = read_scaling(parameters, getattr(config, "max_position_embeddings", None), length)
        return cls(width, theta=parameters["rope_theta"], rotated=int(width * share), scaling=scaling)

    def rotate(
        self,
        query: Float[Tensor, "*query_batch q width"],
        key: Float[Tensor, "*key_batch k width"],
        positions: int | Int[Tensor, "*_ q"] = 0,
        key_positions: int | Int[Tensor, "*_ k"] | None = None,
    ) -> tuple[Float[Tensor, "*query_batch q width"], Float[Tensor, "*key_batch k width"]]:
        """Return queries and keys, each rotated by its positions.

        Args:
            query: queries.
            key: keys.
            positions: position of the first query, or integers `(q,)` or `(*batch, q)`. Positions `(b, q)` also
                apply to queries `(b, heads, q, width)`, for all heads.
            key_positions: positions of the keys, in the same form; None means the positions of the queries.
        """
        if key_positions is not None:
            return self(query, positions), self(key, key_positions)
        if query.shape[-2] != key.shape[-2]:
            raise ShapeError(
                f"key_positions must not be None if queries and keys differ in number, got {query.shape[-2]} queries "
                f"and {key.shape[-2]} keys. Pass the position of the first key, such as key_positions=0."
            )
        check_width("key", key, self.width)
        angles = self.angles(query, positions)
        return self._rotate(query, angles), self._rotate(key, angles)

    def forward(
        self, x: Float[Tensor, "*batch n width"], positions: int | Int[Tensor, "*_ n"] = 0
    ) -> Float[Tensor, "*batch n width"]:
        """Return queries or keys, rotated by their positions, with `positions` as in `rotate`."""
        return self._rotate(x, self.angles(x, positions))

    def angles(
        self, x: Float[Tensor, "*batch n width"], positions: int | Int[Tensor, "*position_batch n"] = 0
    ) -> Float[Tensor, "*position_batch n pairs"]:
        """Return the rotation angles of the tokens of `x`, `(n, rotated/2)` or `(*batch, n, rotated/2)`, in float64."""
        check_width("x", x, self.width)
        positions = token_positions(x, positions)
        return positions[..., None] * self.rates(x.device)

    def rates(self, device: torch.device | None = None) -> Float[Tensor, " pairs"]:
        """Return the angle per position of each pair of rotated elements, with the scaling applied, in float64."""
        exponents = torch.arange(0, self.rotated, 2, device=device, dtype=torch.float64) / self.rotated
        rates = self.theta**-exponents
        return rates if self.scaling is None else self.scaling.scale(rates, self.theta)

    def _rotate(
        self, x: Float[Tensor, "*batch n width"], angles: Float[Tensor, "*_ n pairs"]
    ) -> Float[Tensor, "*batch n width"]:
        dtype = x.dtype if x.dtype == torch.float64 else torch.float32
        cos, sin = torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)
        if self.scaling is not None and self.scaling.attention_factor != 1:
            cos, sin = cos * self.scaling.attention_factor, sin * self.scaling.attention_factor
        while cos.ndim > 2 and cos.ndim < x.ndim:  # one position for all heads
            cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
        rotated, rest = x[..., : self.rotated], x[..., self.rotated :]
        if self.interleaved:
            a, b = rotated[..., ::2], rotated[..., 1::2]
            rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        else:
            a, b = rotated.chunk(2, dim=-1)
            rotated = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        rotated = rotated.to(x.dtype)
        return rotated if rest.shape[-1] == 0 else torch.cat([rotated, rest], dim=-1)

    def extra_repr(self) -> str:
        """Return the width, the wavelength option `theta` and the pairing of elements as text for `print`."""
        pairs = "2i and 2i + 1" if self.interleaved else "halves"
        part = "" if self.rotated == self.width else f", rotated={self.rotated}"
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        return f"width={self.width}{part}, theta={self.theta:g}, pairs: {pairs}{scaling}"


class Rotary2D(Rotary):
    """Rotary position embedding of the patches of an image: half of the pairs rotate by row, half by column.

        φ_i = row · theta^(−4i / rotated)          φ_(i + rotated/4) = column · theta^(−4i / rotated)

    The inner product of a rotated query and key depends only on their distances in rows and columns. Positions count
    the patches row by row, after the tokens that belong to no patch.

    Args:
        width: width of one head.
        columns: number of patches per row of the image.
        first_patch: number of tokens before the patches, such as 1 for a class token. They are not rotated.
        theta: as in `Rotary`.
        rotated: as in `Rotary`, a multiple of 4.
        interleaved: as in `Rotary`.

    Raises:
        OptionError: if `rotated` is not a multiple of 4, or as in `Rotary`.

    Source: Su (2021), Transformer upgrade path 4, https://kexue.fm/archives/8397; with the frequencies of Qwen2-VL,
    Wang et al. (2024), https://arxiv.org/abs/2409.12191.

    Example:
        >>> rotary = Rotary2D(4, columns=3)
        >>> rotary.angles(torch.zeros(6, 4))[4]  # row 1, column 1
        tensor([1., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        width: int,
        *,
        columns: int,
        first_patch: int = 0,
        theta: float = 10_000.0,
        rotated: int | None = None,
        interleaved: bool = False,
    ) -> None:
        super().__init__(width, theta=theta, rotated=rotated, interleaved=interleaved)
        check_integers(columns=columns)
        check_integers(0, first_patch=first_patch)
        if self.rotated % 4:
            raise OptionError(
                "rotated must be a multiple of 4, because half of the pairs rotate by row and half by column, got "
                f"{self.rotated}. Pass rotated={self.rotated // 4 * 4}."
            )
        self.columns, self.first_patch = columns, first_patch

    def angles(
        self, x: Float[Tensor, "*batch n width"], positions: int | Int[Tensor, "*position_batch n"] = 0
    ) -> Float[Tensor, "*position_batch n pairs"]:
        """Return the angles of the rows, followed by those of the columns, in the shape of `Rotary.angles`."""
        check_width("x", x, self.width)
        patches = token_positions(x, positions) - self.first_patch
        rates = self.rates(x.device)[::2]
        row, column = torch.div(patches, self.columns, rounding_mode="floor"), patches % self.columns
        angles = torch.cat([row[..., None] * rates, column[..., None] * rates], dim=-1)
        return torch.where(patches[..., None] < 0, 0.0, angles)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, columns={self.columns}, first_patch={self.first_patch}"


def token_positions(x: Float[Tensor, "*_ n width"], positions: int | Shaped[Tensor, "*_"]) -> Int[Tensor, "*_ n"]:
    """Return the positions of the tokens of `x` as integers, `(n,)` or `(*batch, n)`."""
    n = x.shape[-2]
    if isinstance(positions, int):
        return torch.arange(positions, positions + n, device=x.device)
    if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.dtype == torch.bool:
        kind = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise KindError(
            f"positions must be an integer or a tensor of integers, got {kind}. Pass, for example, torch.arange(n)."
        )
    if positions.ndim == 0 or positions.shape[-1] != n:
        raise ShapeError(
            f"positions must have shape ({n},) or (*batch, {n}) for {n} tokens, got {tuple(positions.shape)}. For one "
            f"start per batch element, pass position_ids(start, {n})."
        )
    return positions


def sinusoidal_table(
    length: int, width: int, *, start: int = 0, base: float = 10_000.0
) -> Float[Tensor, "length width"]:
    """Return the sinusoidal position table, `(length, width)` in float64.

        table[p, 2i] = sin(p / base^(2i / width))        table[p, 2i + 1] = cos(p / base^(2i / width))

    Row p + d is a rotation of row p that depends on d alone.

    Args:
        length: number of positions.
        width: width of a token; an odd width ends with a sine.
        start: first position.
        base: wavelengths range from 2π to base · 2π.

    Raises:
        OptionError: if the length is negative, or the width or base is not positive.

    Source: Vaswani et al. (2017), Attention is all you need, section 3.5, https://arxiv.org/abs/1706.03762.

    Example:
        >>> sinusoidal_table(3, 4).round(decimals=4)
        tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
                [ 0.8415,  0.5403,  0.0100,  1.0000],
                [ 0.9093, -0.4161,  0.0200,  0.9998]], dtype=torch.float64)
    """
    check_integers(0, length=length)
    return _sines_and_cosines(torch.arange(start, start + length), width, base)


def position_ids(start: Int[Tensor, "*batch"], length: int) -> Int[Tensor, "*batch length"]:
    """Return the positions start, start + 1, … of `length` tokens for each batch element, `(*batch, length)`.

    Example:
        >>> position_ids(torch.tensor([0, 5]), 3)
        tensor([[0, 1, 2],
                [5, 6, 7]])
    """
    return start[..., None] + torch.arange(length, device=start.device)


class Sinusoidal(nn.Module):
    """Module that adds sinusoidal position vectors to tokens, without parameters and for any sequence length.

    Args:
        width: width of a token.
        length: number of positions in the stored table; vectors of later positions are computed in each call.
        base: as in `sinusoidal_table`.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        ShapeError: in a call with tokens of another width.

    Source: as `sinusoidal_table`.

    Example:
        >>> add = Sinusoidal(4)
        >>> add(torch.zeros(1, 2, 4)).round(decimals=4)
        tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
                 [0.8415, 0.5403, 0.0100, 1.0000]]])
        >>> bool((add(torch.zeros(1, 1, 4), positions=1) == add(torch.zeros(1, 2, 4))[:, 1:]).all())
        True
    """

    table: Float[Tensor, "length width"]

    def __init__(self, width: int, length: int = 1024, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.width, self.base = width, base
        # Not in the state dict: the table is constant, and its length only affects speed.
        self.register_buffer("table", sinusoidal_table(length, width, base=base).float(), persistent=False)

    def reset_parameters(self) -> None:
        """Compute the table again, as needed for a module that was built on the meta device."""
        values = _sines_and_cosines(torch.arange(self.table.shape[0], device=self.table.device), self.width, self.base)
        self.table.copy_(values)

    def forward(
        self, x: Float[Tensor, "*batch n width"], positions: int | Int[Tensor, "*#batch n"] = 0
    ) -> Float[Tensor, "*batch n width"]:
        """Return the tokens plus the sinusoidal vectors of their positions.

        Args:
            x: tokens.
            positions: position of the first token, or integers `(n,)` or `(*batch, n)`.
        """
        check_width("x", x, self.width)
        if isinstance(positions, int) and x.dtype in _TABLE_DTYPES:
            stop = positions + x.shape[-2]
            if positions >= 0 and stop <= self.table.shape[0]:
                return x + self.table[positions:stop].to(x.dtype)
        return x + _sines_and_cosines(token_positions(x, positions), self.width, self.base).to(x.dtype)

    def extra_repr(self) -> str:
        """Return the width and the base as text for `print`."""
        return f"width={self.width}, base={self.base:g}"


_TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes for which the float32 table is precise enough."""


class Learned(nn.Module):
    """Module that adds a learned vector for each position to the tokens.

    Args:
        length: number of positions.
        width: width of a token.
        device: device of the table.
        dtype: dtype of the table.

    Shapes:
        x `(*batch, n, width)` -> `(*batch, n, width)`

    Raises:
        ShapeError: in a call with more tokens than positions, or tokens of another width.

    Source: Gehring et al. (2017), Convolutional sequence to sequence learning, section 3.1,
    https://arxiv.org/abs/1705.03122; initialized from a normal distribution with standard deviation 0.02 as in
    Devlin et al. (2019), BERT.

    Example:
        >>> add = Learned(16, 4)
        >>> bool((add(torch.zeros(2, 3, 4))[1] == add.table[:3]).all())
        True
    """

    def __init__(
        self, length: int, width: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        check_integers(length=length, width=width)
        self.table = nn.Parameter(torch.empty(length, width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sample the table from a normal distribution with standard deviation 0.02."""
        nn.init.normal_(self.table, std=0.02)

    def forward(
        self, x: Float[Tensor, "*batch n width"], positions: int | Int[Tensor, "*#batch n"] = 0
    ) -> Float[Tensor, "*batch n width"]:
        """Return the tokens plus the learned vectors of their positions; `positions` is as in `Sinusoidal.forward`."""
        length, width = self.table.shape
        check_width("x", x, width)
        if isinstance(positions, int):
            stop = positions + x.shape[-2]
            if positions < 0 or stop > length:
                raise ShapeError(
                    f"positions must be from 0 to {length - 1}, got {positions} to {stop - 1}. Use a larger length, "
                    "or use Sinusoidal or Rotary, which have no limit."
                )
            return x + self.table[positions:stop]
        try:  # unlike an index into the table, an embedding refuses negative positions
            return x + nn.functional.embedding(token_positions(x, positions), self.table)
        except IndexError:
            raise ShapeError(
                f"positions must be from 0 to {length - 1}, got {int(positions.min())} to {int(positions.max())}. "
                "Use a larger length, or use Sinusoidal or Rotary, which have no limit."
            ) from None

    def extra_repr(self) -> str:
        """Return the length and the width of the table as text for `print`."""
        return f"length={self.table.shape[0]}, width={self.table.shape[1]}"


def _sines_and_cosines(
    positions: Int[Tensor, "*positions"], width: int, base: float
) -> Float[Tensor, "*positions width"]:
    """Return sines and cosines of position / base^(2i / width), alternating, `(*positions, width)` in float64."""
    check_integers(width=width)
    if base <= 0:
        raise OptionError(f"base must be positive, got {base}. Pass, for example, 10000.")
    rates = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    angles = positions[..., None] * base**-rates
    return torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(-2)[..., :width]
