"""Tables on disk: appended to, deleted from, and read in blocks, in versions that never change.

    create(path, schema)        create a store         open(path)        open an existing one
    store.append(table)         append rows; they are on the disk when it returns
    store.delete(predicate)     delete the rows that a function selects
    store.blocks()              read the rows, block by block, memory-mapped
    store.at(version)           open an older version  store.compact()   rewrite into fewer, fuller blocks
    store.verify()              compare every byte with its checksum

Stores do not depend on queries and kernels: they yield blocks, and the engine attends to them.
"""

from qkv.core.extras import require_packages

require_packages("tables and stores need", "ask", "pyarrow", "filelock")

from qkv.store.arrow import ArrowStore
from qkv.store.attachments import read_attached
from qkv.store.base import Block, BlockSelector, Damage, Store, Version
from qkv.store.lance import LanceStore
from qkv.store.opening import create, is_store, open, remove, require_free

__all__ = [
    "ArrowStore",
    "Block",
    "BlockSelector",
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
