"""The package index, through pypi-simple, as pip on this machine is configured to reach it.

No host name stands here: index, proxy, certificate and trusted hosts are pip's own settings (`common/childenv.py`), else the client
library's defaults.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.common import errors
from scripts.common.childenv import pip_settings
from scripts.common.files import progress, sha256_of
from scripts.common.paths import shown
from scripts.upstream.releases import Artifact

__all__ = ["download", "listing", "verify"]


def _trusting() -> Any:
    """An adapter for a host that pip was told to trust without a certificate."""
    import requests
    import urllib3

    class Trusting(requests.adapters.HTTPAdapter):
        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            options["verify"] = False
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
                return super().send(request, *args, **options)

    return Trusting()


@contextmanager
def _client() -> Iterator[Any]:
    try:
        import pypi_simple
        import requests
    except ModuleNotFoundError as error:
        raise errors.MissingInput(
            f"the Python package {error.name} is missing",
            "downloads go through the index client of the tools environment",
            "run through `make`, or give the file itself (UPSTREAM_SDIST=path)",
        ) from error
    settings = pip_settings()
    session = requests.Session()
    session.headers["User-Agent"] = "vllm-for-gfx936"
    if proxy := settings.get("proxy"):
        session.proxies, session.trust_env = {"http": proxy, "https": proxy}, False
    certificates = settings.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if certificates and Path(certificates).exists():
        session.verify = certificates
    session.cert = settings.get("client-cert")
    for host in settings.get("trusted-host", "").split():
        session.mount(f"https://{host}/", _trusting())
        session.mount(f"https://{host}:", _trusting())
    index = settings.get("index-url")
    try:
        with pypi_simple.PyPISimple(**({"endpoint": index} if index else {}), session=session) as client:
            yield client
    except requests.RequestException as error:
        # The exception's text names the host; the class alone says what failed.
        raise errors.NoNetwork(
            f"the package index could not be reached ({type(error).__name__})",
            "the file is not in the cache and has to be downloaded",
            "check the network, set pip's index-url to a mirror, or give the file (UPSTREAM_SDIST=path)",
        ) from error
    except (pypi_simple.NoSuchProjectError, pypi_simple.UnsupportedContentTypeError) as error:
        raise errors.NoNetwork(
            f"the package index does not list the project ({type(error).__name__})",
            "a mirror may hold only part of the index",
            "set pip's index-url to an index that has it, or give the file (UPSTREAM_SDIST=path)",
        ) from error


def listing(project: str) -> list[Artifact]:
    """Every file of a project with its sha256 and size, as the index's own JSON states them."""
    with _client() as client:
        page = client.get_project_page(project)
    rows = []
    for package in page.packages:
        digest, size, version = package.digests.get("sha256"), package.size, package.version
        if digest and size and version and not package.is_yanked:
            rows.append(Artifact(project, version, package.filename, digest, size))
    return rows


def download(artifact: Artifact, part: Path) -> None:
    """Bring `artifact` to `part`, continuing a partial file. The caller verifies before use.

    Raises:
        errors.NoNetwork: the index cannot be reached or does not list the file.
    """
    with _client() as client:
        page = client.get_project_page(artifact.project)
        match = [p for p in page.packages if p.filename == artifact.name]
        if not match:
            raise errors.NoNetwork(
                f"the package index does not list {artifact.name}",
                f"it lists {len(page.packages)} other files of {artifact.project}",
                "set pip's index-url to an index that has it, or give the file (UPSTREAM_SDIST=path)",
            )
        have = part.stat().st_size if part.exists() else 0
        if have >= artifact.size:
            part.unlink()
            have = 0
        headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {"Accept-Encoding": "identity"}
        session = client.s
        with session.get(match[0].url, headers=headers, stream=True, timeout=60) as reply:
            reply.raise_for_status()
            resumed = have > 0 and reply.status_code == 206
            done, last = (have if resumed else 0), [0.0]
            with part.open("ab" if resumed else "wb") as stream:
                for block in reply.iter_content(1 << 18):
                    stream.write(block)
                    done += len(block)
                    progress(artifact.name, done, artifact.size, last)


def verify(artifact: Artifact, path: Path) -> None:
    """Check size, then sha256.

    Raises:
        errors.DamagedDownload: naming the file and both values.
    """
    size = path.stat().st_size
    if size != artifact.size:
        raise errors.DamagedDownload(
            f"{shown(path)} has {size} bytes, the pin says {artifact.size}",
            "a truncated or other file must not become the source of a build",
            f"delete it and fetch again, or give the true {artifact.name}",
        )
    if (digest := sha256_of(path)) != artifact.sha256:
        raise errors.DamagedDownload(
            f"{shown(path)} has sha256 {digest}, the pin says {artifact.sha256}",
            "the bytes are not the pinned ones",
            f"delete it and fetch again, or give the true {artifact.name}",
        )
