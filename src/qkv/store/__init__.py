"""Tables that live on disk: appended to, deleted from, and read in blocks, in versions that never change.

    create(path, schema)        a new store            open(path)        one that is there
    store.append(table)         rows are on disk, synced, when it returns
    store.delete(matching)      rows that a function picks
    store.blocks()              the rows, block by block, memory-mapped
    store.at(version)           as it was              store.compact()   fewer, fuller blocks
    store.verify()              every byte compared with its checksum

A store knows nothing of queries and kernels: it gives blocks, and the engine attends to them.
"""

from qkv.core.extras import require_packages

require_packages("tables and stores need", "ask", "pyarrow", "filelock")

from qkv.store.arrow import ArrowStore
from qkv.store.attachments import read_attached
from qkv.store.base import Block, Choosing, Damage, Store, Version
from qkv.store.lance import LanceStore
from qkv.store.opening import create, is_store, open, remove, require_free

__all__ = [
    "ArrowStore",
    "Block",
    "Choosing",
    "Damage",
    "LanceStore",
    "Store",
    "Version",
    "create",
    "is_store",
    "open",
    "read_attached",
    "remove",
    "require_free",
]
