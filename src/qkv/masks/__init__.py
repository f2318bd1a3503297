"""Masks, which state the keys that each query may attend to. They can be combined with `&`, `|` and `~`."""

from qkv.masks.base import Mask
from qkv.masks.blocks import Blocks
from qkv.masks.causal import Causal
from qkv.masks.custom import Custom
from qkv.masks.documents import Documents
from qkv.masks.keys import Keys
from qkv.masks.lengths import Lengths
from qkv.masks.pairs import Pairs
from qkv.masks.prefix import Prefix
from qkv.masks.window import Window

__all__ = ["Mask", "Causal", "Lengths", "Keys", "Pairs", "Window", "Documents", "Prefix", "Blocks", "Custom"]
