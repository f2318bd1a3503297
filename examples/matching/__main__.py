"""Write the tables of all data sets in a folder."""

import sys
from pathlib import Path

from examples.matching import prepare_duplicates, prepare_pairs


def main() -> None:
    """Run with two arguments: the folder of the data sets and the folder of the tables."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m examples.matching FOLDER OUT")
    source, out = map(Path, sys.argv[1:])
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        prepare_pairs(folder, out / folder.name)
        print(out / folder.name)
    for file in sorted(source.glob("febrl*.csv.gz")):
        name = file.name.split(".")[0]
        prepare_duplicates(file, out / name)
        print(out / name)


if __name__ == "__main__":
    main()
