"""Key-value cache of a sequence that is generated step by step."""

from qkv.nn.cache.key_value_cache import KeyValueCache

__all__ = ["KeyValueCache"]
