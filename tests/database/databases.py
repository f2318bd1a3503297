"""The same rows as a table in memory, as a store that is loaded, and as one that is read block by block."""

from qkv.database import Database


def every_database(folder, source, key, value, **options):
    """Return a source as a database in memory, and as a store in a new folder that is opened in both ways."""
    Database.create(folder, source, key, value, **options)
    return Database.open(source, key, value, **options), Database.open(folder), Database.open(folder, memory=1)
