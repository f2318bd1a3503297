"""A score that is exported and has no contract is a failure."""

import importlib
import inspect
import pkgutil

import qkv.scores
from qkv.scores.distance import DistanceKernel
from qkv.testing import ScoreContract

KINDS = {"Score", "InnerProductScore", "PointwiseScore", "GeneralScore"}


def below(contract):
    for child in contract.__subclasses__():
        yield child
        yield from below(child)


def test_every_exported_score_has_a_contract():
    for module in pkgutil.iter_modules(__import__(__package__, fromlist=["_"]).__path__):
        if module.name.startswith("test_"):
            importlib.import_module(f"{__package__}.{module.name}")
    covered = {contract.part.__name__ for contract in below(ScoreContract) if hasattr(contract, "part")}
    assert set(qkv.scores.__all__) - KINDS <= covered


def test_every_score_has_a_file_named_for_it_but_kernels_of_the_distance_share_one():
    shared = {name for name in qkv.scores.__all__ if issubclass(getattr(qkv.scores, name), DistanceKernel)}
    assert shared == {"Boxcar", "Epanechnikov", "Laplace", "Triangular"}
    for name in set(qkv.scores.__all__) - KINDS - shared:
        file = inspect.getsourcefile(getattr(qkv.scores, name))
        assert file.rsplit("/", 1)[-1].removesuffix(".py").replace("_", "") == name.lower()
