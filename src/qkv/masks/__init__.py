"""Masks, which state the keys that each query may attend to. They can be combined with `&`, `|` and `~`."""

from qkv.core.extras import alias_modules
from qkv.masks.arrays import AllowedKeys, AllowedPairs, Blocks
from qkv.masks.base import Mask
from qkv.masks.custom import Custom
from qkv.masks.documents import Documents
from qkv.masks.lengths import Lengths, Prefix
from qkv.masks.window import Causal, Window

__all__ = [
    "Mask",
    "Causal",
    "Lengths",
    "AllowedKeys",
    "AllowedPairs",
    "Window",
    "Documents",
    "Prefix",
    "Blocks",
    "Custom",
]

alias_modules(
    __name__,
    {"window": "causal", "arrays": "keys pairs blocks", "lengths": "prefix"},
    renamed={"AllowedKeys": "Keys", "AllowedPairs": "Pairs"},
)
