"""HDFS whose servers die, pause, restart and fill up: clear errors, bounded waits, nothing lost."""

import contextlib
import gc
import os
import signal
import threading
import time

import pytest
from servers.processes import kill, pipe, start

import filestream
from filestream.errors import InvalidRequestError, UnavailableError
from filestream.storage.hdfs import HdfsStorage

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(300)]

# Not the minutes of patience that a cluster deserves.
QUICK = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "300",
    "dfs.client.socket-timeout": "5000",
}


def options(cluster, **more):
    return QUICK | {"webhdfs": f"http://127.0.0.1:{cluster.web_port}"} | more


def produce(writer, stop, acknowledged, refused, me):
    number = 0
    while not stop.is_set():
        body = b"%d %d" % (me, number)
        try:
            writer.append(body)
        except UnavailableError:
            refused.append(body)
        else:
            acknowledged.append(body)
        number += 1


def check(stream, acknowledged, refused):
    found = [event.body for event in stream.read()]
    assert not set(acknowledged) - set(found), "an acknowledged event is lost"
    assert len(found) == len(set(found)), "an event is there twice"
    assert set(found) <= set(acknowledged) | set(refused), "an event was invented"
    assert [f for f in stream.verify() if f.level == "damage"] == []


def until(condition, timeout_s=60):
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)  # noqa: TID251 - waits for other processes


def test_a_datanode_that_dies_while_it_is_written_to_loses_nothing(make_hdfs):
    cluster = make_hdfs()
    cluster.start()
    stream = filestream.create(f"{cluster.url}/s", storage_options=options(cluster))
    acknowledged, refused, stop = [], [], threading.Event()
    with stream.writer() as writer:
        threads = [
            threading.Thread(target=produce, args=(writer, stop, acknowledged, refused, me))
            for me in range(3)
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(acknowledged) > 50)
        cluster.datanodes[0].kill()
        before = len(acknowledged)
        until(lambda: len(acknowledged) > before + 50, 120)
        stop.set()
        for thread in threads:
            thread.join()

    check(stream, acknowledged, refused)


def test_a_namenode_that_is_restarted_is_waited_for_or_said(make_hdfs):
    cluster = make_hdfs(datanodes=1)
    cluster.start()
    stream = filestream.create(f"{cluster.url}/s", storage_options=options(cluster))
    acknowledged, refused, stop = [], [], threading.Event()
    with stream.writer() as writer:
        thread = threading.Thread(target=produce, args=(writer, stop, acknowledged, refused, 0))
        thread.start()
        until(lambda: len(acknowledged) > 20)
        cluster.namenode.kill()
        until(lambda: refused)
        cluster.start_namenode()
        cluster.wait()
        before = len(acknowledged)
        until(lambda: len(acknowledged) > before + 20, 120)
        stop.set()
        thread.join()

    check(stream, acknowledged, refused)


def test_a_namenode_that_is_not_there_is_said_in_time():
    storage = HdfsStorage("hdfs://127.0.0.1:1/s", QUICK | {"webhdfs": "off"})
    began_s = time.monotonic()

    with pytest.raises(UnavailableError, match="check the address"):
        storage.list("")

    assert time.monotonic() - began_s < 60


def test_full_datanodes_are_said_and_survived(make_hdfs):
    cluster = make_hdfs(datanodes=1)
    cluster.start()
    stream = filestream.create(f"{cluster.url}/s", storage_options=options(cluster))
    with stream.writer() as writer:
        writer.append(b"before")
        writer.roll()
        cluster.datanodes[0].kill()
        cluster.start_datanode(0, reserved=1 << 60)
        cluster.wait()
        with pytest.raises(UnavailableError, match="no DataNode takes the block"):
            writer.append(b"full")
        cluster.datanodes[0].kill()
        cluster.start_datanode(0)
        cluster.wait()

        def goes_on():
            try:
                writer.append(b"after")
            except UnavailableError:
                return False
            return True

        until(goes_on)  # The NameNode has yet to hear that there is room.

    bodies = []

    def is_readable():
        try:
            bodies[:] = [event.body for event in stream.read()]
        except UnavailableError:
            return False
        return True

    # The first file was being closed when its DataNode died.
    until(is_readable)
    assert bodies[0] == b"before"
    assert bodies[-1] == b"after"
    assert [f for f in stream.verify() if f.level == "damage"] == []


def test_an_erasure_coded_directory_is_refused(make_hdfs):
    cluster = make_hdfs(datanodes=3)
    cluster.start()
    cluster.make_erasure_coded("/coded", "XOR-2-1-1024k")

    with pytest.raises(InvalidRequestError, match="erasure-coded"):
        filestream.create(f"{cluster.url}/coded/s", storage_options=options(cluster))


def test_without_webhdfs_files_are_closed_often(place):
    """Readers see what is closed; so a segment is open for some seconds only."""
    stream = filestream.create(place("hdfs")[0], storage_options={"webhdfs": "off"})
    assert not stream._storage.reads_open_files

    with stream.writer() as writer, stream.tail("start", timeout="30s") as tail:
        writer.append(b"one")
        assert next(tail).body == b"one"
        writer.append(b"two")
        assert next(tail).body == b"two"


def test_bad_urls_and_options_are_refused():
    for url in ("hdfs:///path", "hdfs://"):
        with pytest.raises(InvalidRequestError):
            filestream.open(url)
    with pytest.raises(InvalidRequestError, match="no such option"):
        HdfsStorage("hdfs://127.0.0.1:1/s", {"webhdfss": "x"})


def test_a_directory_that_is_not_ours_is_refused(hdfs, place, monkeypatch):
    from filestream.storage.open import open_storage

    url = place("hdfs")[0]
    root = open_storage(url)
    root.put_if_absent("private/file", b"x")
    root._client.set_permission(url.removeprefix(hdfs.url) + "/private", 0o700)
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")

    with pytest.raises(UnavailableError, match="permission denied"):
        filestream.create(f"{url}/private/s")


def collect_garbage_in_a_child(url, sender):
    """What used HDFS is garbage when the process forks, and collected in the child."""
    gc.disable()
    storage = HdfsStorage(url)
    storage.put_if_absent("a/b", b"x")
    appender = storage.create("a/open")
    appender.write_and_sync(b"y")
    storage.cycle = [storage]
    appender.cycle = [appender]
    del storage, appender
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    sender.send_bytes(b"%d" % child)
    sender.send_bytes(b"%d" % os.waitpid(child, 0)[1])
    os._exit(0)


def test_a_forked_child_collects_what_its_parent_left(hdfs):
    receiver, sender = pipe()
    parent = start(collect_garbage_in_a_child, f"{hdfs.url}/forked", sender)
    sender.close()
    child = int(receiver.recv_bytes())
    try:
        assert receiver.poll(20), "the child hangs"
        assert receiver.recv_bytes() == b"0"
    finally:
        kill(parent)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
