"""Names that a file of the page imports are exported by the other file; needs no browser."""

import re
from pathlib import Path

import qkv.look

WEB = Path(qkv.look.__file__).parent / "web"
SOURCES = {path.name: path.read_text() for path in WEB.glob("*.js")}
IMPORT = re.compile(r'^(?:import|export) (?:\w+,? ?)?(?:\{([^}]*)\} )?from "\./([^"]+)"', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|const|let|class) (\w+)", re.MULTILINE)
LIST = re.compile(r"^export \{([^}]*)\}", re.MULTILINE)


def names(listed: str, index: int) -> set[str]:
    """The names of `a, b as c` before (0) or after (−1) the word `as`."""
    return {entry.split(" as ")[index].strip() for entry in listed.split(",") if entry.strip()}


def exports(source: str) -> set[str]:
    return {*EXPORT.findall(source), *(name for listed in LIST.findall(source) for name in names(listed, -1))}


def test_every_import_of_the_page_names_an_export():
    found = [
        (file, name, other)
        for file, source in SOURCES.items()
        for listed, other in IMPORT.findall(source)
        for name in names(listed, 0)
    ]
    assert len(found) > 100
    assert [each for each in found if each[2] not in SOURCES or each[1] not in exports(SOURCES[each[2]])] == []
