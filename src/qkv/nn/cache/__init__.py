"""Key-value cache for step-by-step generation."""

from qkv.nn.cache.key_value_cache import KeyValueCache

__all__ = ["KeyValueCache"]
