"""The end of open files, by WebHDFS: ranges of what was synced, which ``hdfs-native`` cannot read."""

import http.client
import json
import logging
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

__all__ = ["WebHdfs", "site_values", "web_addresses"]

logger = logging.getLogger(__name__)

_PORT: Final = 9870
_TIMEOUT_S: Final = 30.0
_ASK_TIMEOUT_S: Final = 5.0
_REDIRECTS_MAX: Final = 3


class WebHdfs:
    """Args:
    addresses: of the NameNodes, such as ``http://namenode:9870``; the active one answers.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        user = os.environ.get("HADOOP_USER_NAME") or os.environ.get("USER")
        self._user = {"user.name": user} if user else {}

    def is_there(self) -> bool:
        """Whether a NameNode answers, and lets us in."""
        for address in self._addresses:
            try:
                status, _, _ = self._ask(self._url(address, "/", op="GETFILESTATUS"))
            except (OSError, http.client.HTTPException):
                continue
            if status == 200:
                return True
        return False

    def read(self, path: str, position: int, size: int) -> bytes:
        """At most ``size`` bytes from ``position``; fewer where the synced part ends.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: nobody can say.
        """
        failure: OSError = OSError("no WebHDFS address")
        for address in list(self._addresses):
            url = self._url(address, path, op="OPEN", offset=str(position), length=str(size))
            try:
                return self._get(url)
            except FileNotFoundError:
                raise
            except (OSError, http.client.HTTPException) as error:
                failure = OSError(f"WebHDFS: {error}")
                # Another NameNode may be the active one; ask that first the next time.
                self._addresses = [a for a in self._addresses if a != address] + [address]
        raise failure

    def _url(self, address: str, path: str, **query: str) -> str:
        return f"{address}/webhdfs/v1{quote(path)}?{urlencode({**query, **self._user})}"

    def _get(self, url: str) -> bytes:
        for _ in range(_REDIRECTS_MAX):
            status, body, location = self._ask(url, _TIMEOUT_S)
            if status == 200:
                return body
            if location:
                url = location
                continue
            kind, message = _remote_exception(body)
            if kind == "FileNotFoundException":
                raise FileNotFoundError(message)
            if "Offset" in message and "out of the range" in message:
                return b""  # Behind what was synced.
            raise OSError(f"{status} {kind} {message[:200]}")
        raise OSError("too many redirects")

    def _ask(self, url: str, timeout_s: float = _ASK_TIMEOUT_S) -> tuple[int, bytes, str]:
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.netloc, timeout=timeout_s)
        try:
            connection.request("GET", f"{parts.path}?{parts.query}")
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("Location", "")
        finally:
            connection.close()


def _remote_exception(body: bytes) -> tuple[str, str]:
    try:
        told = json.loads(body)["RemoteException"]
        return str(told.get("exception")), str(told.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def site_values(folder: str | None) -> dict[str, str]:
    """Properties of ``core-site.xml`` and ``hdfs-site.xml``, of a folder or the environment's."""
    if folder is None:
        folder = os.environ.get("HADOOP_CONF_DIR")
        home = os.environ.get("HADOOP_HOME")
        if folder is None and home:
            folder = f"{home}/etc/hadoop"
    values: dict[str, str] = {}
    for name in ("core-site.xml", "hdfs-site.xml") if folder else ():
        assert folder is not None
        try:
            tree = ElementTree.parse(Path(folder) / name)
        except (OSError, ElementTree.ParseError) as error:
            logger.debug("no %s: %s", name, error)
            continue
        for found in tree.iter("property"):
            key, value = found.findtext("name"), found.findtext("value")
            if key and value is not None:
                values[key.strip()] = value.strip()
    return values


def web_addresses(authority: str, site: Mapping[str, str]) -> list[str]:
    """Where WebHDFS of a NameNode or nameservice should be, best first."""
    is_secure = site.get("dfs.http.policy") == "HTTPS_ONLY"
    scheme = "https" if is_secure else "http"
    name = f"dfs.namenode.{scheme}-address"
    nodes = [n.strip() for n in site.get(f"dfs.ha.namenodes.{authority}", "").split(",")]
    found = [site.get(f"{name}.{authority}.{node}") for node in nodes if node]
    if not any(found):
        found = [site.get(f"{name}.{authority}"), site.get(name)]
    host = authority.partition(":")[0]
    addresses = [f"{scheme}://{address}" for address in found if address]
    return addresses[: max(len(nodes), 1)] or [f"{scheme}://{host}:{_PORT}"]
