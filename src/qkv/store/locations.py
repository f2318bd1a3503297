"""Conversion of paths and URLs to the place of a store: a folder on a disk, or a folder in an object store.

Credentials are found as each provider's own tools find them, in the environment, in the files of a profile, or from
the machine; they are never logged, saved or shown in messages.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from configparser import ConfigParser
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from qkv.core.extras import missing_package
from qkv.core.printable import first_line
from qkv.errors import DataError, OptionError, StorageError
from qkv.store.object_client import Folder, FsspecClient, ObjectClient, ObjectPath, ObjectReader

Location: TypeAlias = str | PathLike[str] | ObjectPath
"""A path, a URL, or the path of a folder in an object store."""

StorageOptions: TypeAlias = Mapping[str, object] | None
"""Settings of an object store by name, such as `region`, `endpoint` or `profile`."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
_WEB = ("http", "https")
_RETRIES = 8
_PATIENCE = timedelta(minutes=2)
_TIMEOUT = timedelta(minutes=2)
"""Longest time of one request, in which a file of rows of 32 MiB is written at 0.3 MB/s."""


def is_url(path: object) -> bool:
    """Return whether a path is a URL such as `s3://bucket/people`, rather than a path on a disk.

    Example:
        >>> is_url("s3://bucket/people"), is_url("people.qkv"), is_url("file:///people.qkv")
        (True, False, False)
    """
    return isinstance(path, ObjectPath) or (
        isinstance(path, str) and _URL.match(path) is not None and not path.lower().startswith("file://")
    )


def locate(path: Location, options: StorageOptions = None) -> Folder:
    """Return the place that a path or URL names, without a request.

    Args:
        path: a path on a disk, or a URL: `s3://bucket/people`, `gs://bucket/people`, `az://container/people`,
            `https://host/people`, or one of a file system of fsspec.
        options: settings of the object store, by the names that obstore (or fsspec) gives them; for `s3://` also
            `profile`.

    Raises:
        MissingPackageError: obstore is not installed, or for other URLs fsspec.
        OptionError: The object store has no such setting, or a path on a disk is given with settings.
        StorageError: The URL is not complete, or there are no credentials.
    """
    if isinstance(path, ObjectPath):
        return path
    if not is_url(path):
        if options:
            raise OptionError(
                f"storage_options must be None for a folder, got {', '.join(options)} for {str(path)!r}. Omit them."
            )
        text = os.fspath(path)
        if "\0" in str(text):
            raise DataError(f"path must be that of a folder, got {text!r}. Remove the null character.")
        return Path(unquote(urlsplit(text).path)) if text.lower().startswith("file://") else Path(text)
    url = str(path).rstrip("/")
    scheme = url.partition(":")[0].lower()
    if scheme in (*_OBJECT_STORES, *_WEB):
        if importlib.util.find_spec("obstore") is None:
            raise missing_package(f"{scheme}:// paths need", "obstore", "stores")
        return ObjectPath(_object_client(url, scheme, dict(options or {})))
    if importlib.util.find_spec("fsspec") is None:
        raise missing_package(f"{scheme}:// paths need", "fsspec", "stores")
    return ObjectPath(_fsspec_client(url, dict(options or {})))


def _object_client(url: str, scheme: str, options: dict[str, Any]) -> ObjectClient:
    from obstore.exceptions import BaseError
    from obstore.store import HTTPStore, from_url

    retries = {"max_retries": int(options.pop("max_retries", _RETRIES)), "retry_timeout": _PATIENCE}
    client_options = {"timeout": _TIMEOUT, "allow_http": scheme == "http" or _plain_endpoint(options)}
    shared: dict[str, Any] = {"client_options": client_options, "retry_config": retries}
    shown = _without_secrets(url)
    try:
        if scheme in _WEB:
            if options:
                raise OptionError(f"storage_options must be None for {scheme}://, got {', '.join(options)}. Omit them.")
            return ObjectClient(HTTPStore.from_url(url, **shared), shown, lists=False, writable=False)
        if scheme in ("s3", "s3a"):
            shared |= _profile(options)
        return ObjectClient(from_url(url, **{**shared, "config": options or None}), shown)
    except (BaseError, ValueError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        line = _masked(first_line(error), options)
        raise StorageError(
            f"{shown} must be the URL of an object store that can be opened, got an error: {line}. "
            "Check the URL and storage_options."
        ) from None


def _masked(text: str, options: Mapping[str, object]) -> str:
    """Return a text without the values of settings, which may be secret."""
    for value in options.values():
        text = text.replace(str(value), "…") if str(value) else text
    return text


def _plain_endpoint(options: Mapping[str, Any]) -> bool:
    """Return whether the endpoint of an object store is one without TLS, such as a server on this machine."""
    given = [value for name, value in options.items() if "endpoint" in name.lower()]
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    given = given or [os.environ[name] for name in names if name in os.environ][:1]
    return bool(given) and str(given[0]).lower().startswith("http://")


def _profile(options: dict[str, Any]) -> dict[str, Any]:
    """Return the credentials of a profile of AWS, if one is named by `options` or `AWS_PROFILE`.

    boto3 reads profiles of every kind, such as those of single sign-on. Without boto3, a profile must hold keys.
    """
    name = options.pop("profile", None) or os.environ.get("AWS_PROFILE")
    keys = any("access_key" in option.lower() for option in options) or "AWS_ACCESS_KEY_ID" in os.environ
    if not name or keys:
        return {}
    if importlib.util.find_spec("boto3") is not None:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            return {"credential_provider": Boto3CredentialProvider(boto3.Session(profile_name=name))}
        except (BotoCoreError, ValueError):
            raise _no_profile(name) from None
    files = ConfigParser(interpolation=None)
    home = Path.home() / ".aws"
    files.read(os.environ.get("AWS_CONFIG_FILE", home / "config"))
    files.read(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"))
    found: dict[str, str] = {}
    for section in (f"profile {name}", name):
        found |= dict(files[section]) if files.has_section(section) else {}
    if "aws_access_key_id" not in found:
        raise _no_profile(name)
    for option in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region"):
        if option in found:
            options.setdefault(option, found[option])
    return {}


def _no_profile(name: str) -> StorageError:
    return StorageError(
        f"the profile {name!r} must have credentials, got none that can be used. Check the files in ~/.aws; for single "
        "sign-on and roles: pip install boto3."
    )


def _fsspec_client(url: str, options: dict[str, Any]) -> ObjectReader:
    import fsspec

    try:
        system, root = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError, OSError) as error:
        line = _masked(first_line(error), options)
        raise StorageError(
            f"{_without_secrets(url)} must be a URL that fsspec can open, got an error: {line}. Check the URL and "
            "storage_options, or install the package of its file system."
        ) from None
    return FsspecClient(system, root, _without_secrets(url))


def _without_secrets(url: str) -> str:
    """Return a URL without a user, a password and a query, which may hold a signature."""
    parts = urlsplit(url)
    host = parts.netloc if parts.scheme.startswith("abfs") else parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
