"""The property store on a real ZooKeeper: every promise, and what happens when it goes away."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from servers.programs import free_port

import filestream
from filestream.coordination.open import open_property_store
from filestream.coordination.zookeeper_session import ZooKeeperAddress
from filestream.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    UnavailableError,
)
from filestream.testing.property_store_suite import PropertyStoreSuite

pytestmark = pytest.mark.zookeeper

_numbers = itertools.count()


class TestZooKeeper(PropertyStoreSuite):
    @pytest.fixture
    def store(self, zookeeper):
        return open_property_store(
            f"zk://{zookeeper.hosts}/suite?timeout=5s", None, "", f"s{next(_numbers)}"
        )


def expire(session):
    """Make ZooKeeper end a session, as if its owner had been silent for too long."""
    double = KazooClient(hosts=session.address.hosts, client_id=session._client.client_id)
    double.start()
    double.stop()
    double.close()


def wait_for(condition, timeout_s=30.0):
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)  # noqa: TID251 - waits for a server


@pytest.fixture
def address(zookeeper, request):
    return f"zk://{zookeeper.hosts}/{request.node.name[:40]}?timeout=2s"


@pytest.fixture
def stream(address, tmp_path):
    return filestream.create(tmp_path / "s", coordination=address)


def session_of_stream(stream):
    return stream._store._session


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "hosts", "root", "timeout_s", "tls"),
        [
            ("zk://h:2181", "h:2181", "", 10.0, False),
            ("zk://a:1,b:2/x/y/", "a:1,b:2", "/x/y", 10.0, False),
            ("zks://h/x?timeout=30s", "h", "/x", 30.0, True),
        ],
    )
    def test_addresses(self, text, hosts, root, timeout_s, tls):
        found = ZooKeeperAddress.parse(text, {})

        assert found == ZooKeeperAddress(hosts, root, timeout_s, tls)

    @pytest.mark.parametrize(
        "text",
        [
            "zk://",
            "zk:///x",
            "zk://h:x",
            "zk://:2181",
            "zk://h,,k",
            "zk://h/a/../b",
            "zk://h/zookeeper",
            "zk://h?colour=red",
            "zk://h?timeout=1ms",
            "zk://h?timeout=soon",
            "zk://[h",
            "zk://user:secret@h:2181",
        ],
    )
    def test_what_is_no_address_is_refused_and_no_secret_shown(self, text):
        with pytest.raises(InvalidRequestError) as caught:
            ZooKeeperAddress.parse(text, {})

        assert "secret" not in str(caught.value)

    def test_secrets_come_from_the_environment_and_are_not_shown(self):
        found = ZooKeeperAddress.parse(
            "zk://h", {"FILESTREAM_ZK_AUTH": "user:secret", "FILESTREAM_ZK_KEY_PASSWORD": "secret"}
        )

        assert found.auth == "user:secret"
        assert "secret" not in repr(found)

    def test_credentials_without_a_colon_are_refused(self):
        with pytest.raises(InvalidRequestError, match="user:password"):
            ZooKeeperAddress.parse("zk://h", {"FILESTREAM_ZK_AUTH": "secret"})


class TestStore:
    @pytest.fixture
    def store(self, zookeeper, request):
        return open_property_store(
            f"zk://{zookeeper.hosts}/store?timeout=2s", None, "", request.node.name
        )

    def test_a_claim_is_lost_with_its_session_and_free_for_others(self, store):
        claim = store.claim("writers/a")
        assert claim.is_held

        expire(store._session)
        wait_for(lambda: not claim.is_held)

        store.claim("writers/a").close()
        claim.close()  # Not ours any more: nothing happens.

    def test_a_claim_that_is_closed_too_late_is_not_another_s(self, store, monkeypatch):
        """The session died, another holds the name, and we did not know when we began to close."""
        mine = store.claim("writers/a")
        expire(store._session)
        wait_for(lambda: not mine.is_held)
        other = store.claim("writers/a")
        real = type(store._session).is_ours
        answers = iter([True])  # Before we heard of it; and then the truth.
        monkeypatch.setattr(
            type(store._session),
            "is_ours",
            lambda session, epoch: next(answers, None) or real(session, epoch),
        )
        mine.close()

        assert list(store.holders("writers")) == ["writers/a"]
        other.close()
        assert list(store.holders("writers")) == []

    def test_a_claim_whose_answer_was_lost_is_ours(self, store, monkeypatch):
        real = store._session._answer

        def answer(ask, until_s):
            real(ask, until_s)
            monkeypatch.setattr(store._session, "_answer", real)
            raise ConnectionLoss

        monkeypatch.setattr(store._session, "_answer", answer)
        with store.claim("writers/a") as claim:
            assert claim.is_held
            with pytest.raises(ConflictError):
                store.claim("writers/a")
        store.claim("writers/a").close()

    def test_a_watch_survives_its_session(self, store):
        store.compare_and_set("name", b"0", version=0)
        told = []
        with store.watch("name", lambda document: told.append(document.version)):
            wait_for(lambda: told == [1])
            expire(store._session)
            for version in range(1, 10):
                store.compare_and_set("name", b"x", version=version)
            wait_for(lambda: told[-1] == 10)

    def test_a_lease_survives_its_session_and_hears_of_changes(self, store, zookeeper):
        store.compare_and_set("name", b"0", version=0)
        assert store.is_current("name", 1)
        expire(store._session)

        assert store.is_current("name", 1)
        store.compare_and_set("name", b"1", version=1)
        store.settle("name", 2)

        assert not store.is_current("name", 1)

    def test_a_lost_answer_is_resolved_by_reading(self, store, monkeypatch):
        """The change was made, and the connection broke before we heard."""
        real = store._session._answer
        lost = []

        def answer(ask, until_s):
            result = real(ask, until_s)
            if not lost:
                lost.append(result)
                raise ConnectionLoss
            return result

        monkeypatch.setattr(store._session, "_answer", answer)

        assert store.compare_and_set("name", b"0", version=0).version == 1
        assert lost
        assert store.get("name").value == b"0"

    def test_a_lost_answer_to_a_change_that_another_made_is_no_success(self, store, monkeypatch):
        """Two set the same bytes at the same version: one of them must not believe it was him."""
        store.compare_and_set("name", b"0", version=0)
        real = store._session._answer
        other = open_property_store(
            f"zk://{store._session.address.hosts}/store?timeout=3s", None, "", "x"
        )
        other._root = store._root

        def answer(ask, until_s):
            monkeypatch.setattr(store._session, "_answer", real)
            other.compare_and_set("name", b"1", version=1)
            raise ConnectionLoss

        monkeypatch.setattr(store._session, "_answer", answer)

        with pytest.raises(UnavailableError):
            store.compare_and_set("name", b"1", version=1)
        assert store.get("name").version == 2

    def test_what_another_program_wrote_is_damage(self, store):
        store._session.call(
            "spoil", lambda c: c.create_async(f"{store._root}/name", b"x", makepath=True)
        )

        with pytest.raises(CorruptDataError):
            store.get("name")


class TestStream:
    def test_everything_works_without_another_word(self, stream, tmp_path):
        with stream.writer() as writer:
            writer.append(b"one")
        again = filestream.open(tmp_path / "s")

        assert [event.body for event in again.read()] == [b"one"]
        assert again.truncate().generation == 2
        assert list(again.read()) == []
        again.update_properties(ttl="1d")
        assert filestream.open(tmp_path / "s").properties.ttl_ms == 86_400_000
        assert not (tmp_path / "s" / "_stream" / stream.id).exists()

    def test_a_deleted_stream_leaves_nothing_behind(self, stream, zookeeper, address):
        root = stream._store._root
        with stream.writer() as writer:
            writer.append(b"x")

        stream.delete()

        assert session_of_stream(stream).call("look", lambda c: c.exists_async(root)) is None

    def test_ten_truncations_at_once_advance_by_ten(self, stream):
        threads = [threading.Thread(target=stream.truncate) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert stream.generation == 11

    def test_two_writers_have_two_ids(self, stream):
        with stream.writer() as one, stream.writer() as two:
            assert {one.writer_id, two.writer_id} == {"file.0", "file.1"}
            with pytest.raises(ConflictError, match=r"file\.0"):
                stream.writer("file.0")

    def test_a_server_that_is_not_there_is_an_error_in_time(self, tmp_path):
        port = free_port()
        began_s = time.monotonic()

        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            filestream.create(tmp_path / "s", coordination=f"zk://127.0.0.1:{port}/x?timeout=1s")

        assert time.monotonic() - began_s < 20
        assert not filestream.exists(tmp_path / "s")

    def test_a_bad_address_creates_nothing(self, tmp_path):
        with pytest.raises(InvalidRequestError):
            filestream.create(tmp_path / "s", coordination="zk://a:b@h/x")

        assert not (tmp_path / "s").exists()

    def test_a_lost_session_costs_nothing_when_nobody_took_the_id(self, stream):
        with stream.writer() as writer:
            writer.append(b"before")
            expire(session_of_stream(stream))
            wait_for(lambda: not writer._claim.is_held)

            offset = writer.append(b"after")
            assert writer._claim.is_held
            assert offset.sequence == 0

        assert [event.body for event in stream.read()] == [b"before", b"after"]

    def test_an_append_is_not_acknowledged_when_another_took_the_id(self, stream, address):
        """Readers may have left our file for the other's: the outcome is unknown, and said so."""
        with stream.writer() as writer:
            writer.append(b"before")
            expire(session_of_stream(stream))
            wait_for(lambda: not writer._claim.is_held)
            with stream.writer("file.0") as other:
                other.append(b"other")

                with pytest.raises(UnavailableError, match="may be in the stream"):
                    writer.append(b"after")
                assert writer.append(b"later").writer_id == "file.1"
                assert writer.writer_id == "file.1"

        bodies = [event.body for event in stream.read()]
        assert bodies.count(b"later") == bodies.count(b"other") == bodies.count(b"before") == 1

    def test_an_append_is_not_acknowledged_when_a_later_file_of_the_name_exists(self, stream):
        """Made by a process that held the id before, was stopped, and woke: readers go on to it."""
        with stream.writer() as writer:
            offset = writer.append(b"before")
            path = Path(stream.url[7:]) / f"{offset.segment_path[:-6]}000001.dat"
            path.write_bytes(b"")

            with pytest.raises(UnavailableError, match="may be in the stream"):
                writer.append(b"unknown")

    def test_a_forked_child_opens_its_own(self, stream):
        with stream.writer() as writer:
            writer.append(b"parent")
            child = os.fork()
            if not child:
                code = 1
                try:
                    with pytest.raises(FencedError):
                        writer.append(b"never")
                    with filestream.open(stream.url).writer() as own:
                        code = 0 if own.append(b"child").writer_id == "file.1" else 2
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            writer.append(b"parent")

        assert sorted(e.body for e in stream.read()) == [b"child", b"parent", b"parent"]


class TestAuthentication:
    def test_what_a_user_creates_is_his_alone(self, address, tmp_path, monkeypatch):
        monkeypatch.setenv("FILESTREAM_ZK_AUTH", "ann:secret1")
        stream = filestream.create(tmp_path / "s", coordination=address)
        with stream.writer() as writer:
            writer.append(b"x")
        monkeypatch.setenv("FILESTREAM_ZK_AUTH", "bob:secret2")

        with pytest.raises(UnavailableError, match="FILESTREAM_ZK_AUTH") as caught:
            filestream.open(tmp_path / "s").truncate()

        assert "secret" not in "".join(traceback.format_exception(caught.value))
        assert b"secret" not in (tmp_path / "s" / "_stream" / "stream.json").read_bytes()
        assert stream.generation == 1


class TestTls:
    def test_both_sides_show_certificates(self, tmp_path, make_zookeeper):
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
        server, client = (authority.issue_cert("localhost", "127.0.0.1") for _ in range(2))
        # Java takes a key in PKCS 8 only.
        key = serialization.load_pem_private_key(server.private_key_pem.bytes(), None)
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain = server.cert_chain_pems[0].bytes()
        (tmp_path / "server.pem").write_bytes(encoded + chain)
        client.private_key_pem.write_to_path(tmp_path / "key.pem")
        client.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
        zookeeper = make_zookeeper()
        port = zookeeper.add_tls(tmp_path / "server.pem", tmp_path / "ca.pem")
        zookeeper.start()
        address = f"zks://localhost:{port}/tls?timeout=3s"
        certificate = {
            "FILESTREAM_ZK_KEY": str(tmp_path / "key.pem"),
            "FILESTREAM_ZK_CERTIFICATE": str(tmp_path / "certificate.pem"),
        }

        def run(*words, ca, **environment):
            # In a process of its own: kazoo leaves the sockets of failed handshakes lying about.
            command = "from filestream.tools.cli import main; main()"
            done = subprocess.run(
                [sys.executable, "-c", command, *words],
                input=b"x\n",
                capture_output=True,
                cwd=tmp_path,
                env={**os.environ, **environment, "FILESTREAM_ZK_CA": str(tmp_path / ca)},
                check=False,
            )
            assert b"Traceback" not in done.stderr, done.stderr
            return done.returncode

        # Without a certificate the server does not talk to us; and one whose authority we do not
        # trust gets nothing of us.
        assert run("create", "s", "-c", address, ca="ca.pem") == 1
        assert run("create", "s", "-c", address, ca="other.pem", **certificate) == 1
        assert run("create", "s", "-c", address, ca="ca.pem", **certificate) == 0
        assert run("write", "s", ca="ca.pem", **certificate) == 0
        assert run("truncate", "s", "--yes", ca="ca.pem", **certificate) == 0


class TestServerGoesAway:
    @pytest.fixture
    def stream(self, own_zookeeper, tmp_path):
        return filestream.create(
            tmp_path / "s", coordination=f"zk://{own_zookeeper.hosts}/x?timeout=2s"
        )

    def test_writers_go_on_for_a_lease_and_then_say_so(self, stream, own_zookeeper):
        """And nothing that was acknowledged is lost; readers go on all the time."""
        acknowledged = []
        with stream.writer() as writer, stream.tail("start", timeout="30s") as tail:
            writer.append(b"first")
            acknowledged.append(b"first")
            assert next(tail).body == b"first"
            own_zookeeper.kill()
            down_s = time.monotonic()

            with pytest.raises(UnavailableError, match="ZooKeeper"):
                for number in itertools.count():
                    body = b"%d" % number
                    writer.append(body)
                    acknowledged.append(body)
                    time.sleep(0.01)  # noqa: TID251 - a server is down
            lasted_s = time.monotonic() - down_s

            assert [next(tail).body for _ in acknowledged[1:]] == acknowledged[1:]
            # It went on, and not for longer than the lease and the patience with the server.
            assert len(acknowledged) > 10
            assert lasted_s < 30
            size = sum(p.stat().st_size for p in Path(stream.url[7:]).rglob("*.dat"))
            with pytest.raises(UnavailableError):
                writer.append(b"refused")
            assert size == sum(p.stat().st_size for p in Path(stream.url[7:]).rglob("*.dat"))

            own_zookeeper.start()
            writer.append(b"back")
            acknowledged.append(b"back")

        bodies = [event.body for event in stream.read()]
        assert [body for body in bodies if body in set(acknowledged)] == acknowledged
        assert len(bodies) == len(set(bodies))

    def test_a_restart_is_not_noticed(self, stream, own_zookeeper):
        starter = threading.Thread(target=own_zookeeper.start)
        with stream.writer() as writer:
            for number in range(200):
                if number == 50:
                    own_zookeeper.kill()
                if number == 60:
                    starter.start()
                writer.append(b"%d" % number)
                time.sleep(0.005)  # noqa: TID251 - a server restarts
        starter.join()

        assert [int(event.body) for event in stream.read()] == list(range(200))

    def test_a_truncation_waits_for_a_writer_that_cannot_hear_of_it(self, stream, own_zookeeper):
        """Its lease is honoured: what it acknowledges after that lies in the new generation."""
        script = textwrap.dedent(
            """
            import sys, filestream
            with filestream.open(sys.argv[1]).writer() as writer:
                for line in sys.stdin:
                    print(writer.append(line.strip().encode()).generation, flush=True)
            """
        )
        writer = subprocess.Popen(
            [sys.executable, "-c", script, stream.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

        def append(body):
            writer.stdin.write(f"{body}\n")
            return int(writer.stdout.readline())

        try:
            assert append("before") == 1
            writer.send_signal(signal.SIGSTOP)
            began_s = time.monotonic()
            stream.truncate()
            took_s = time.monotonic() - began_s
            writer.send_signal(signal.SIGCONT)

            assert append("after") == 2
            assert [event.body for event in stream.read()] == [b"after"]
            assert 0.5 < took_s < 5
            # And one that hears of it is not waited for.
            began_s = time.monotonic()
            stream.truncate()
            assert time.monotonic() - began_s < 1.0
            assert append("again") == 3
        finally:
            writer.kill()
            writer.communicate()
