"""A score that is exported and has no contract is a failure."""

import importlib
import inspect
import pkgutil

import qkv.scores
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


def test_every_score_has_a_file_named_for_it_or_for_its_family():
    files = {name: inspect.getsourcefile(getattr(qkv.scores, name)) for name in set(qkv.scores.__all__) - KINDS}
    for name, path in files.items():
        file = path.rsplit("/", 1)[-1].removesuffix(".py").replace("_", "")
        family = [other for other in files if files[other] == path]
        assert file == name.lower() or len(family) > 1, f"{name} is alone in {path}, which is named differently"
