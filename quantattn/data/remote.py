"""Data that lie in an object store: fetched once to where every source can read them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def fetch(url: str, folder: Path) -> Path:
    """Copy a file, or all files below a prefix, into `folder`, and name the copy; a file:// URL is where it lies.

    Whatever fsspec has a package for is read: s3:// with s3fs, gs:// with gcsfs, az:// with adlfs. Credentials come
    from where these packages look for them.

    Raises:
        ValueError: no such scheme, a package that is missing, credentials in the URL, nothing under that name, or a key
            that would leave `folder`.
    """
    import fsspec

    scheme, _, rest = url.partition("://")
    name = rest.rstrip("/").rsplit("/", 1)[-1]
    if "@" in rest.split("/")[0]:
        raise ValueError(f"credentials do not belong into a URL ({scheme}://…): give them in the environment")
    try:
        store, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ValueError(f"data.path={url}: {error}") from error
    except ValueError as error:
        raise ValueError(f"data.path={url}: no package reads {scheme}://, {error}") from error
    if scheme == "file":
        return Path(path)
    if not store.exists(path):
        raise ValueError(f"data.path={url}: there is no such file or prefix")
    local = folder / name
    if store.isdir(path):
        root = path.rstrip("/") + "/"
        for key in sorted(store.find(path)):
            if ".." in (within := PurePosixPath(key.removeprefix(root))).parts or within.is_absolute():
                raise ValueError(f"data.path={url}: {key!r} is no name of a file below it")
            (local / within).parent.mkdir(parents=True, exist_ok=True)
            store.get_file(key, str(local / within))
    else:
        store.get_file(path, str(local))
    return local
