"""Verification of all files of a Lance store, which writes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qkv.core.progress import Progress, track
from qkv.core.untrusted_json import Fields, parse_json
from qkv.errors import DamagedError, DataError
from qkv.store.attachments import attached_damages, attached_files
from qkv.store.block import Damage, Verification, verify_repeatedly
from qkv.store.lance_files import METADATA, fragment_damage, fragment_name, manifests, open_version

__all__ = ["verify_lance"]


def verify_lance(path: Path, progress: Progress | None = None) -> Verification:
    """Decode the rows of all versions of a Lance store; see `qkv.store.verify`.

    While another process compacts, files may be removed between the reading of a manifest and their own. So damaged
    files are verified again by newer manifests, until the same damages are found twice.
    """
    intact: set[str] = set()
    return verify_repeatedly(lambda: _verify_once(path, intact, progress))


def _verify_once(path: Path, intact: set[str], progress: Progress | None) -> Verification:
    names = manifests(path)
    damages, uses = list[Damage](), dict[str, list[int]]()
    fragments, metadata = {}, None
    newest = rows = 0
    for number, name in names.items():
        try:
            dataset = open_version(path, number)
        except DataError as error:
            if (path / "_versions" / name).exists():
                problem = str(error).split("is damaged: ")[-1].split(". Restore")[0]
                damages.append(Damage(f"_versions/{name}", problem, 0, (number,), "manifest"))
            continue
        newest, metadata = number, (dataset.schema.metadata or {}).get(METADATA, b"{}")
        for fragment in dataset.get_fragments():
            uses.setdefault(fragment_name(fragment), []).append(number)
            fragments[fragment_name(fragment)] = fragment
    lost = 0
    for name, fragment in track(fragments.items(), "verifying", progress):
        damage = None if name in intact else fragment_damage(path, fragment, decode=True)
        if damage is None:
            intact.add(name)
        else:
            damages.append(replace(damage, versions=tuple(uses[name])))
            lost += damage.rows if newest in uses[name] else 0
    attached = 0
    if metadata is not None:
        rows = sum(int(each.metadata.num_rows) for name, each in fragments.items() if newest in uses[name])
        try:
            saved = Fields(parse_json(metadata, "its metadata"), "its metadata").fields
            attached = len(attached_files(path, saved))
            damages += attached_damages(path, saved, tuple(names), read=True)
        except DamagedError as error:
            damages.append(Damage(f"_versions/{names[newest]}", str(error), 0, (newest,), "manifest"))
    paths = {each.path for fragment in fragments.values() for each in fragment.metadata.files}
    size = sum((path / "data" / each).stat().st_size for each in paths if (path / "data" / each).exists())
    return Verification(tuple(names), len(paths) + len(names) + attached, size, tuple(damages), rows, lost)
