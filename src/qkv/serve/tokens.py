"""The token that a server demands: where it is read from, and how a request is compared with it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from pathlib import Path

from qkv.errors import OptionError

VARIABLE = "QKV_TOKEN"
_SHORTEST, _LONGEST = 16, 1024


def read_token(file: str | None = None) -> str | None:
    """Return the token in a file, or in the environment variable QKV_TOKEN; None if there is neither.

    Args:
        file: the name of a file whose text is the token. White space at its ends does not count.

    Raises:
        OptionError: The file cannot be read, or the token is no text of 16 to 1,024 visible ASCII characters.
    """
    if file is None:
        token, place = os.environ.get(VARIABLE), f"the environment variable {VARIABLE}"
        if not token:
            return None
    else:
        place = f"the file {file!r}"
        try:
            token = Path(file).read_bytes()[: 4 * _LONGEST].decode("ascii", "replace").strip()
        except OSError as error:
            raise OptionError(f"token file must be readable, got {file!r}: {error.strerror}. Name a file.") from None
    if not _SHORTEST <= len(token) <= _LONGEST or not all("!" <= character <= "~" for character in token):
        raise OptionError(
            f"the token in {place} must be {_SHORTEST} to {_LONGEST:,} visible ASCII characters without spaces, got "
            "another text. Write, for example, the output of openssl rand -hex 32."
        )
    return token


def matches(authorization: str, token: str) -> bool:
    """Return whether an Authorization header holds a token, in a time that does not depend on the differences.

    Example:
        >>> matches("Bearer 0123456789abcdef", "0123456789abcdef"), matches("Bearer 0", "0123456789abcdef")
        (True, False)
    """
    scheme, _, given = authorization.partition(" ")
    digests = (hashlib.sha256(text.strip().encode("utf-8", "replace")).digest() for text in (given, token))
    return hmac.compare_digest(*digests) and scheme.lower() == "bearer"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is one of this machine that no other machine reaches.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
        (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(host: str, token: str | None) -> None:
    """Check that a server without a token listens only on this machine."""
    if token is None and not is_loopback(host):
        raise OptionError(
            f"host must be a loopback address such as 127.0.0.1 unless there is a token, got {host!r}. Set {VARIABLE}, "
            "or pass a token file."
        )
