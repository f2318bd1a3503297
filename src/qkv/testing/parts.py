"""Contract tests of all parts: immutable values that hold arrays, which can be listed and replaced."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from qkv.errors import KindError, ShapeError
from qkv.testing.examples import Draw, floats
from qkv.testing.libraries import LIBRARIES, Setting, settings_of

__all__ = ["PartContract"]


class PartContract:
    """Base class of contract tests of scores, normalizers and masks. Subclasses must define `part` and `make`.

    `make` returns an example with random arrays from a `Draw`. All examples must differ only in the elements of their
    arrays, which are float64 NumPy arrays. The suite converts them to the library and dtype of each test.
    """

    part: ClassVar[type]
    """The class under test."""
    printed: ClassVar[str] = ""
    """Text that `str(part)` must contain; the name of the class if empty."""
    libraries: ClassVar[tuple[str, ...]] = LIBRARIES
    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32")

    def make(self, draw: Draw) -> Any:
        """Return an example of the part with random arrays."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the method make, which returns an example of the part."
        )

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize `setting` with all libraries and dtypes, and `few_setting` with only one dtype for JAX."""
        every = settings_of(self.libraries, self.dtypes)
        if "setting" in metafunc.fixturenames:
            metafunc.parametrize("setting", every, ids=str)
        if "few_setting" in metafunc.fixturenames:
            few = [setting for setting in every if setting.library != "jax" or setting.dtype == self.dtypes[-1]]
            metafunc.parametrize("few_setting", few, ids=str)

    def test_example_is_of_the_part_the_contract_names(self) -> None:
        assert type(self.make(Draw(0))) is self.part

    def test_parts_that_differ_in_their_numbers_alone_have_one_signature(self) -> None:
        one, other = self.make(Draw(0)).signature(), self.make(Draw(1)).signature()
        assert one == other
        assert hash(one) == hash(other)

    def test_signature_tells_dtypes_apart(self) -> None:
        part = self.make(Draw(0))
        if floats(part):
            assert Setting("numpy", "float32").part(part).signature() != part.signature()

    def test_arrays_come_back_in_the_order_they_were_taken(self) -> None:
        part = self.make(Draw(0))
        new = tuple(array.copy() for array in part.arrays())
        got = part.replace_arrays(new).arrays()
        assert len(got) == len(new)
        assert all(mine is given for mine, given in zip(got, new, strict=True))

    def test_one_array_too_many_is_refused(self) -> None:
        part = self.make(Draw(0))
        with pytest.raises(ShapeError, match=f"must be {len(part.arrays())}, got {len(part.arrays()) + 1}"):
            part.replace_arrays([*part.arrays(), np.zeros(())])

    def test_part_cannot_be_changed(self) -> None:
        part = self.make(Draw(0))
        for field in dataclasses.fields(part):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field.name, None)

    def test_prints_its_name_and_not_its_elements(self) -> None:
        text = str(self.make(Draw(0, q=40, k=50)))
        assert (self.printed or self.part.__name__) in text
        assert len(text) < 300

    @pytest.mark.parametrize(
        ("batch", "message"),
        [((2, 3), r"none or all of the batch axes.*x\[:, None\]"), ((3,), "equal, or 1")],
        ids=["some but not all axes", "another length"],
    )
    def test_arrays_with_batch_axes_that_do_not_fit_are_refused(self, batch: tuple[int, ...], message: str) -> None:
        part = self.make(Draw(0, batch=(2,)))
        if any(names is not None for _, names in part._walk()):
            with pytest.raises(ShapeError, match=message):
                part.bind(np.zeros(()), batch)

    def test_batch_axes_of_length_one_serve_any_batch(self) -> None:
        assert type(self.make(Draw(0, batch=(1, 1))).bind(np.zeros(()), (2, 3))) is self.part

    def test_floating_arrays_of_another_library_are_refused_and_the_rest_is_converted(self) -> None:
        torch = pytest.importorskip("torch")
        part = self.make(Draw(0))
        if floats(part):
            with pytest.raises(KindError, match=r"must be torch arrays .*, got a numpy array. Convert"):
                part.bind(torch.zeros(()), ())
        elif "torch" in self.libraries:
            assert all(isinstance(array, torch.Tensor) for array in part.bind(torch.zeros(()), ()).arrays())
