"""Key-value caches for step-by-step generation."""

from qkv.nn.cache.block_pool import BlockPool
from qkv.nn.cache.key_value_cache import KeyValueCache
from qkv.nn.cache.paged_cache import PagedCache

__all__ = ["BlockPool", "KeyValueCache", "PagedCache"]
