"""Stores, which are versioned tables on disk whose rows are appended, deleted, and read in blocks.

    create(path, schema)        create a store         open(path)        open an existing one
    store.append(table)         append rows, and return when they are saved on disk
    store.delete(predicate)     delete the rows that a function selects
    store.blocks()              read the rows, block by block, memory-mapped
    store.at(version)           open an older version  store.compact()   merge small blocks
    copy(store, path)           copy a version         export(store, file)  write a Parquet or Arrow file
    verify(path)                verify all versions    repair(path)         keep all intact rows

A path may also be a URL, such as `s3://bucket/people`, from which only the pages that are needed are read.

Stores do not depend on queries or kernels. They yield blocks of rows, over which the engine computes attention.
"""

from qkv.core.extras import require_packages

require_packages("tables and stores need", "ask", "pyarrow", "filelock")

from qkv.store.arrow import ArrowStore
from qkv.store.attachments import read_attached
from qkv.store.base import BlockSelector, Store
from qkv.store.block import Block, Version
from qkv.store.copying import check_exportable, copy, export
from qkv.store.damage import Damage, Verification
from qkv.store.lance import LanceStore
from qkv.store.locations import Location, StorageOptions, is_url, locate
from qkv.store.object_client import ObjectClient, ObjectPath, Traffic
from qkv.store.opening import create, is_store, open, remove, repair, require_free, verify
from qkv.store.remote import RemoteStore
from qkv.store.repairing import Repair

__all__ = [
    "ArrowStore",
    "Block",
    "BlockSelector",
    "Damage",
    "LanceStore",
    "Location",
    "ObjectClient",
    "ObjectPath",
    "RemoteStore",
    "Repair",
    "StorageOptions",
    "Store",
    "Traffic",
    "Verification",
    "Version",
    "check_exportable",
    "copy",
    "create",
    "export",
    "is_store",
    "is_url",
    "locate",
    "open",
    "read_attached",
    "remove",
    "repair",
    "require_free",
    "verify",
]
