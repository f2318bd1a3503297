"""Print the named characters of Unicode as a table, from Python's own data.

CJK ideographs and Hangul syllables are excluded, because their names consist of numbers and syllables, not words.
"""

import sys
import unicodedata


def main() -> None:
    """Write name, code point, category and character, separated by tabs."""
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print("name\tcode_point\tcategory\tcharacter")
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        name = unicodedata.name(character, "")
        if name and not name.startswith(("CJK ", "HANGUL SYLLABLE")) and character.isprintable():
            shown = '""""' if character == '"' else character
            print(f"{name}\t{code}\t{unicodedata.category(character)}\t{shown}")


if __name__ == "__main__":
    main()
