"""A normalizer that is exported and has no contract is a failure."""

import inspect

import qkv.normalizers
from qkv.normalizers import NORMALIZERS
from qkv.testing import NormalizerContract

from . import test_contracts

EXPORTED = set(qkv.normalizers.__all__) - {"Normalizer", "NORMALIZERS"}


def test_every_exported_normalizer_has_a_contract():
    contracts = [c for c in vars(test_contracts).values() if inspect.isclass(c) and hasattr(c, "part")]
    assert all(issubclass(contract, NormalizerContract) for contract in contracts)
    assert {contract.part.__name__ for contract in contracts} == EXPORTED


def test_every_exported_normalizer_has_a_name_for_the_command_line():
    assert {normalizer.__name__ for normalizer in NORMALIZERS.values()} == EXPORTED - {"Custom"}
    assert all(name == normalizer.__name__.lower() for name, normalizer in NORMALIZERS.items())
