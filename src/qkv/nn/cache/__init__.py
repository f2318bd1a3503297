"""Caches for step-by-step generation: of keys and values, and of the state of linear attention."""

from qkv.nn.cache.key_value_cache import KeyValueCache
from qkv.nn.cache.paged_cache import BlockPool, PagedCache
from qkv.nn.cache.state_cache import StateCache

__all__ = ["BlockPool", "KeyValueCache", "PagedCache", "StateCache"]
