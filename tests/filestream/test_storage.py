import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import filestream
from filestream.errors import ConflictError, FilestreamError, InvalidRequestError, UnavailableError
from filestream.storage.generic import GenericStorage
from filestream.storage.hdfs import HdfsStorage
from filestream.storage.local import LocalStorage
from filestream.storage.memory import MemoryStorage
from filestream.storage.objects import ObjectStorage
from filestream.storage.open import normalise_url, open_storage
from filestream.testing.faults import FaultyStorage
from filestream.testing.storage_suite import StorageSuite


class TestLocalStorage(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path):
        with LocalStorage(tmp_path / "root") as storage:
            yield storage


class TestMemoryStorage(StorageSuite):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()


class TestMemoryStorageBelow(StorageSuite):
    @pytest.fixture
    def storage(self):
        return MemoryStorage().below("deep/down")


class TestObjectsInMemory(StorageSuite):
    @pytest.fixture
    def storage(self):
        return ObjectStorage("memory://bucket/stream")


@pytest.mark.s3
class TestObjectsOnS3(StorageSuite):
    @pytest.fixture(params=["s3", "moto"])
    def storage(self, request, place):
        return ObjectStorage(*place(request.param))


@pytest.mark.hdfs
class TestHdfsStorage(StorageSuite):
    @pytest.fixture
    def storage(self, place):
        return HdfsStorage(*place("hdfs"))


@pytest.mark.hdfs
class TestHdfsStorageWithoutWebHdfs(StorageSuite):
    @pytest.fixture
    def storage(self, place):
        url, _ = place("hdfs")
        return HdfsStorage(url, {"webhdfs": "off"})


class TestGenericInMemory(StorageSuite):
    @pytest.fixture
    def storage(self):
        storage = GenericStorage("memory", "/stream")
        yield storage
        storage.delete_tree("")


class TestFaultyStorage(StorageSuite):
    @pytest.fixture
    def storage(self):
        return FaultyStorage()


def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the system calls that make things durable, as they happen."""
    calls: list[str] = []
    for name in ("fsync", "fdatasync", "pwritev", "pwrite", "link"):
        real = getattr(os, name)

        def spy(*args, _real=real, _name=name, **kwargs):
            calls.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, spy)
    return calls


def test_a_new_file_makes_every_new_directory_durable(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    calls = traced(tmp_path, monkeypatch)

    storage.create("a/b/c/file").close()

    assert calls == ["fsync"] * 4  # one for each of a, b, c in its parent, one for the file in c


def test_write_and_sync_reaches_the_disk_in_one_call(tmp_path, monkeypatch):
    appender = LocalStorage(tmp_path).create("file")
    calls = traced(tmp_path, monkeypatch)
    flags = []
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda *args: flags.append(args[3]) or real(*args))

    appender.write_and_sync(b"data")

    assert calls in (["pwritev"], ["pwrite", "fdatasync"])
    assert calls != ["pwritev"] or flags == [os.RWF_DSYNC]


def test_write_and_sync_works_where_calls_cannot_be_fused(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    appender = storage.create("file")

    def refuse(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "pwritev", refuse)
    calls = traced(tmp_path, monkeypatch)
    appender.write_and_sync(b"one")
    appender.write_and_sync(b"two")

    assert storage.read("file", 0, 10) == b"onetwo"
    assert calls.count("fdatasync") == 2


def test_a_short_write_is_a_failure(tmp_path, monkeypatch):
    appender = LocalStorage(tmp_path).create("file")
    monkeypatch.setattr(os, "pwritev", lambda fd, data, position, flags: 2)

    with pytest.raises(UnavailableError, match="cut short"):
        appender.write_and_sync(b"four")


def test_put_if_absent_syncs_the_file_before_its_name(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    calls = traced(tmp_path, monkeypatch)

    storage.put_if_absent("file", b"data")

    assert calls == ["pwrite", "fdatasync", "link", "fsync"]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_link_is_no_file(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.put_if_absent("there", b"data")
    (tmp_path / "link").symlink_to("there")

    assert storage.exists("there")
    assert not storage.exists("link")
    with pytest.raises(FilestreamError):
        storage.read("link", 0, 1)


def test_a_full_disk_says_what_to_do(tmp_path, missing):
    if not Path("/dev/full").exists():
        missing("this system has no /dev/full")
    (tmp_path / "file").symlink_to("/dev/full")
    storage = LocalStorage(tmp_path)

    with pytest.raises(ConflictError):
        storage.create("file")  # a link is never followed

    descriptor = os.open("/dev/full", os.O_WRONLY)
    from filestream.storage import local

    appender = local._LocalAppender(descriptor, "file:///dev/full")
    with pytest.raises(UnavailableError, match="free space"):
        appender.write(b"data")
    appender.close()


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EMFILE, "ulimit"),
        (errno.EIO, "check it"),
    ],
)
def test_a_disk_that_refuses_says_why_and_what_to_do(tmp_path, monkeypatch, number, hint):
    storage = LocalStorage(tmp_path)

    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    for action in (
        lambda: storage.create("a"),
        lambda: storage.read("a", 0, 1),
        lambda: storage.lock("a"),
    ):
        with pytest.raises(UnavailableError, match=hint) as caught:
            action()
        assert storage.url_of("a") in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)


def test_links_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "secret")
    storage = LocalStorage(root)

    with pytest.raises(InvalidRequestError):
        storage.read("link", 0, 10)


def test_a_lock_is_free_when_its_holder_is_killed(tmp_path):
    code = textwrap.dedent(f"""
        from filestream.storage.local import LocalStorage
        lock = LocalStorage({str(tmp_path)!r}).lock("name")
        print("held", flush=True)
        input()
    """)
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    storage = LocalStorage(tmp_path)

    with pytest.raises(ConflictError):
        storage.lock("name")
    holder.kill()
    holder.communicate()

    storage.lock("name").close()


def test_a_waker_tells_of_writes_and_of_new_names(tmp_path, missing):
    storage = LocalStorage(tmp_path)
    appender = storage.create("d/file")
    waker = storage.waker()
    if waker is None:
        missing("this system has no inotify")
    assert waker.watch("d")
    assert not waker.watch("missing")

    assert waker.wait(0) == {}
    appender.write(b"x")
    assert waker.wait(5) == {"d": False}
    storage.create("d/other").close()
    assert waker.wait(5) == {"d": True}
    waker.close()
    waker.close()
    appender.close()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("/data/clicks", "file:///data/clicks"),
        ("/data/clicks/", "file:///data/clicks"),
        ("/data/../clicks", "file:///clicks"),
        ("file:///data/my%20clicks", "file:///data/my%20clicks"),
        ("file://localhost/data", "file:///data"),
        ("memory://a/b/", "memory://a/b"),
        (Path("/data/clicks"), "file:///data/clicks"),
    ],
)
def test_urls_have_one_form(given, url):
    assert normalise_url(given) == url


@pytest.mark.parametrize("url", ["", "  ", "file://host/x", "a\0b", 5])
def test_places_that_are_not_supported_are_refused(url):
    with pytest.raises(InvalidRequestError):
        open_storage(url)


def test_any_place_that_fsspec_knows_holds_a_stream_if_it_passes_the_probe(tmp_path):
    stream = filestream.create("fsspec+memory://place/clicks", linger="0")
    with stream.writer() as writer:
        writer.append(b"one")
        writer.append(b"two")

    assert [event.body for event in stream.read()] == [b"one", b"two"]
    assert stream.coordination == "embedded"
    stream.delete()

    # Its "create" looks first and writes then, so that of many that race several win.
    with pytest.raises(InvalidRequestError, match="put race"):
        for number in range(20):
            filestream.create(f"fsspec+file://{tmp_path}/s{number}")


@pytest.mark.parametrize(
    "url",
    ["nonsense://x/y", "s3://", "s3:///x", "s3://bucket/../x", "hdfs:///x", "s3://b/x?y=z"],
)
def test_urls_of_no_place_are_refused(url):
    with pytest.raises(InvalidRequestError):
        open_storage(url)


def test_a_place_on_this_machine_takes_no_options(tmp_path):
    with pytest.raises(InvalidRequestError, match="no storage options"):
        open_storage(tmp_path, {"endpoint": "x"})


@pytest.mark.parametrize(
    "url",
    [
        "az://container/path?sig=TOPSECRET",
        "s3://KEY:TOPSECRET@bucket/path?x=1",
        "s3://KEY:TOP[SECRET@bucket/path",
        "s3://KEY:TOPSECRET@bucket/path%00",
        "s3://KEY:TOPSECRET@bucket/../path",
        "abfss://user:TOPSECRET@account.host/path",
        "hdfs://user:TOPSECRET@host/path",
        "nonsense://user:TOPSECRET@host/path#x",
    ],
)
def test_what_may_be_a_secret_in_a_url_is_not_repeated(url):
    with pytest.raises(InvalidRequestError) as found:
        open_storage(url)

    shown = str(found.value) + str(found.value.__cause__ or "")
    assert "SECRET" not in shown
