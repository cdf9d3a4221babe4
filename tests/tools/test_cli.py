"""The command line as a user has it: in a pipe, with exit codes, and nothing but data on stdout."""

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import filestream

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from filestream.tools.cli import main; main()"]
START = 1_401_408_000_000


@pytest.fixture
def run(tmp_path):
    def run(*words, data=b"", code=0, **options):
        options.setdefault("cwd", tmp_path)
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            input=data,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
            **options,
        )
        assert done.returncode == code, (words, done.returncode, done.stderr.decode())
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    return run


def start(*words, **options):
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def test_lines_go_in_and_come_out(run):
    run("create", "s")
    written = run("write", "s", data=b"one\ntwo\r\nthree")

    assert written.stdout == b""
    assert b"3 events written" in written.stderr
    assert run("cat", "s").stdout == b"one\ntwo\r\nthree\n"
    assert run("tail", "s", "-n", "2").stdout == b"two\r\nthree\n"
    assert run("cat", "s", "-c", "1").stdout == b"one\n"
    assert run("cat", "s", "--", "-1").stdout == b"three\n"
    assert run("cat", "s", "@-10m..end").stdout == b"one\ntwo\r\nthree\n"


def test_json_goes_round(run):
    run("create", "s")
    events = [
        {
            "timestamp": "2014-05-30T00:00:00.005Z",
            "headers": {"k": "v", "n": None},
            "body": "text é",
        },
        {"timestamp": "2014-05-30T00:00:00.006Z", "headers": {}, "body_base64": "AP8="},
    ]
    run("write", "s", "--json", data="\n".join(map(json.dumps, events)).encode())

    shown = [json.loads(line) for line in run("cat", "s", "--json").stdout.splitlines()]

    assert [{k: v for k, v in event.items() if k != "offset"} for event in shown] == events
    assert list(shown[0]) == ["timestamp", "offset", "headers", "body"]
    run("create", "copy")
    run("write", "copy", "--json", data=run("cat", "s", "--json").stdout)
    assert run("cat", "copy").stdout == run("cat", "s").stdout


def test_headers_and_times_for_all(run):
    run("write", "s", "--create", "-H", "who=me", "-t", "1401408000000", "--offsets", data=b"a\nb")

    shown = [json.loads(line) for line in run("cat", "s", "--json").stdout.splitlines()]
    assert [event["headers"] for event in shown] == [{"who": "me"}] * 2
    assert {event["timestamp"] for event in shown} == {"2014-05-30T00:00:00.000Z"}


def test_offsets_are_printed_when_they_are_safe(run):
    run("create", "s")
    printed = run("write", "s", "--offsets", data=b"a\nb").stdout.split()

    assert run("cat", "s", printed[1].decode()).stdout == b"b\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "body"),
        (b'{"body": 5}', "body"),
        (b'{"body": "x", "header": {"k": "v"}}', "header"),
        (b'{"body_base64": "!"}', "base64"),
        (b'{"body": "x", "headers": {"k": 5}}', "headers"),
        (b'{"body": "x", "headers": []}', ""),
        (b'{"body": "x", "timestamp": "soon"}', "no time"),
        (b'{"body": "x", "timestamp": 0}', "1970"),
        (b'{"body": "x", "timestamp": true}', "timestamp"),
        (b'{"body": "x", "timestamp": -5}', "1970"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_bad_json_lines_are_named_and_the_lines_before_are_kept(run, line, message):
    run("create", "s")
    if line == b'{"body": "x", "headers": []}':
        run("write", "s", "--json", data=line)  # as good as none
        return
    failed = run("write", "s", "--json", data=b'{"body": "good"}\n' + line + b"\n{}\n", code=2)

    assert b"line 2" in failed.stderr
    assert message.encode() in failed.stderr
    assert b"Lines 1 to 1 are written" in failed.stderr
    assert b"1 event written" in failed.stderr
    assert run("cat", "s").stdout == b"good\n"


def test_every_command_has_json(run):
    run("create", "s", "--json")
    run("write", "s", data=b"a\nb\n")
    for words in (
        ("ls",),
        ("info", "s"),
        ("cat", "s"),
        ("tail", "s"),
        ("properties", "s"),
        ("properties", "s", "ttl=30d"),
        ("verify", "s", "--notes"),
        ("doctor", "s"),
        ("version",),
        ("truncate", "s", "--dry-run"),
        ("truncate", "s", "--yes"),
        ("retention", "s", "--dry-run"),
        ("retention", "s", "--yes"),
        ("rm", "s", "--dry-run"),
        ("rm", "s", "--yes"),
    ):
        lines = run(*words, "--json").stdout.splitlines()
        # One line for each finding, and this stream is sound.
        assert bool(lines) == (words[0] != "verify"), words
        for line in lines:
            assert isinstance(json.loads(line), dict), words


def test_exit_codes(run, tmp_path):
    run("create", "s")
    run("create", "s", code=5)
    run("info", "no", code=3)
    run("ls", "no", code=3)
    run("doctor", "ghost")
    assert not (tmp_path / "ghost").exists()
    run("write", "s", "-t", "1795000000", data=b"a", code=2)
    run("properties", "s", "ttl=30", code=2)
    run("create", "x", "-d", "1h", "-p", "partition_duration=2h", code=2)
    run("tail", "s", "--timeout", "1s", code=2)
    run("cat", "s", "nonsense", code=2)
    run("cat", code=2)
    run("nonsense", code=2)
    run("create", "../a b", code=2)
    run("create", "x", "-p", "colour=red", code=2)
    run("create", "x", "-p", "clock=1", code=2)
    run("properties", "s", "self=1", code=2)
    run("properties", "s", "partition_duration=1h", code=2)
    run("create", "http://host/x", code=2)
    run("create", "file:///x%00y", code=2)
    run("create", "file:///tmp/x?y=1", code=2)
    run("write", "s", data=b"a")
    path = next((tmp_path / "s").glob("00001/*/*.dat"))
    data = bytearray(path.read_bytes())
    data[360] ^= 1
    path.write_bytes(bytes(data))
    assert run("verify", "s", code=4).stdout.startswith(b"damage: damaged block")
    run("cat", "s", code=4)
    assert run("cat", "s", "--on-corrupt", "skip").stdout == b""
    run("dump", path, code=4)


def test_errors_say_what_and_what_to_do(run):
    assert b"there is no stream: create it, or mend the path" in run("cat", "no", code=3).stderr
    run("create", "s")
    assert b"already: open it" in run("create", "s", code=5).stderr
    assert run("cat", "no", code=3).stdout == b""


def test_nothing_is_destroyed_without_a_yes(run):
    run("create", "s")
    run("write", "s", data=b"a\n")
    for command in ("truncate", "rm"):
        refused = run(command, "s", code=2)
        assert b"--yes" in refused.stderr
        run(command, "s", "--dry-run")
        assert run("cat", "s").stdout == b"a\n"
    run("truncate", "s", "--yes")
    assert b"--yes" in run("retention", "s", code=2).stderr


def test_a_terminal_is_asked(tmp_path):
    filestream.create(tmp_path / "s")
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            os.execv(sys.executable, [*COMMAND, "truncate", str(tmp_path / "s")])
        shown = b""
        while b"Go on?" not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, answer)
        while True:
            try:
                if not os.read(terminal, 1000):
                    break
            except OSError:
                break
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
        os.close(terminal)
    assert filestream.open(tmp_path / "s").generation == 2


def test_a_tail_follows_and_stops_by_count_timeout_and_interrupt(run, tmp_path):
    run("create", "s")
    run("write", "s", data=b"1\n2\n3\n")
    following = start("tail", "s", "-f", "-n", "2", cwd=tmp_path)
    assert [following.stdout.readline() for _ in range(2)] == [b"2\n", b"3\n"]
    run("write", "s", data=b"4\n")
    assert following.stdout.readline() == b"4\n"
    run("truncate", "s", "--yes")
    run("write", "s", data=b"5\n")
    assert following.stdout.readline() == b"5\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(10) == 130
    assert b"Traceback" not in following.stderr.read()
    following.stdout.close()
    following.stderr.close()

    assert run("tail", "s", "-f", "--from", "start", "-c", "1").stdout == b"5\n"
    assert run("tail", "s", "-f", "--timeout", "100ms").stdout == b"5\n"


def test_an_interrupted_write_keeps_what_it_said(run, tmp_path):
    run("create", "s")
    writing = start("write", "s", "--offsets", cwd=tmp_path, stdin=subprocess.PIPE)
    writing.stdin.write(b"1\n2\n")
    writing.stdin.flush()
    writing.stdout.readline()
    writing.send_signal(signal.SIGINT)
    assert writing.wait(10) == 130
    assert b"2 events written" in writing.stderr.read()
    for pipe in (writing.stdin, writing.stdout, writing.stderr):
        pipe.close()

    assert run("cat", "s").stdout == b"1\n2\n"
    assert run("info", "s", "--json").stdout.count(b'"open_segments": 0') == 1


def test_a_reader_that_goes_away_makes_no_noise(run, tmp_path):
    run("create", "s")
    run("write", "s", data=b"x" * 100 + b"\n" + b"y\n" * 100_000)
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"'{COMMAND[0]}' -c '{COMMAND[2]}' cat s | head -c 5; echo ${{PIPESTATUS[0]}}",
        ],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout == b"xxxxx141\n"
    assert done.stderr == b""


def test_closed_streams_and_full_devices_are_no_tracebacks(run, tmp_path):
    run("create", "s")
    run("write", "s", data=b"a\n")
    script = "; ".join(
        f"'{COMMAND[0]}' -c '{COMMAND[2]}' {words} >/dev/null; echo $?"
        for words in ("ls >&-", "cat s >&-", "write s <&-", "version 2>&-")
    )
    done = subprocess.run(
        ["bash", "-c", script + f"; '{COMMAND[0]}' -c '{COMMAND[2]}' cat s >/dev/full; echo $?"],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.stdout.split()[-1] == b"1"


def test_a_line_without_end_is_refused_in_time(run):
    run("create", "s", "-p", "event_size=1MiB")
    began = time.monotonic()
    failed = run("write", "s", data=bytes(8 << 20), code=2)

    assert b"event_size" in failed.stderr
    assert time.monotonic() - began < 30


def test_bytes_of_any_kind_go_through(run):
    data = bytes(b for b in range(256) if b not in (10, 13)) * 50
    run("create", "s")
    run("write", "s", data=data)

    assert run("cat", "s").stdout == data + b"\n"
    assert "body_base64" in json.loads(run("cat", "s", "--json").stdout)


def test_dump_shows_a_file_block_by_block(run, tmp_path):
    run("create", "s")
    run("write", "s", data=b"a\nb\n")
    data = next((tmp_path / "s").glob("00001/*/*.dat"))
    rows = [
        json.loads(line) for line in run("dump", data, "--events", "--json").stdout.splitlines()
    ]

    assert [row["what"] for row in rows] == ["E3", "block", "event", "event", "end"]
    assert rows[2]["body"] == "a"
    index = run("dump", data.with_suffix(".idx"), "--json").stdout.splitlines()
    assert json.loads(index[1])["position"] == rows[1]["position"]
    cut = tmp_path / "cut.dat"
    cut.write_bytes(data.read_bytes()[:-40])
    assert json.loads(run("dump", cut, "--json").stdout.splitlines()[-1])["what"] == "tail"
    run("dump", tmp_path / "no.dat", code=3)
    for name in ("e2-who.dat", "e2-who.idx", "e3-who.dat", "e1-empty.dat"):
        assert run("dump", ROOT / "tests" / "data" / name).stdout


def test_damage_is_reported_as_json(run, tmp_path):
    stream = filestream.create(tmp_path / "s")
    chance = random.Random(1)
    with stream.writer() as writer:
        for _ in range(50):
            writer.append(chance.randbytes(100), timestamp_ms=START)
    path = next((tmp_path / "s").glob("00001/*/*.dat"))
    data = bytearray(path.read_bytes())
    data[2000] ^= 4
    path.write_bytes(bytes(data))

    [finding] = [
        json.loads(line) for line in run("verify", "s", "--json", code=4).stdout.splitlines()
    ]
    assert (finding["level"], finding["kind"]) == ("damage", "damaged block")
    assert finding["url"] == path.as_uri()
    assert finding["position"] <= 2000 < finding["position"] + finding["size_bytes"]


def test_help_and_doctor(run):
    assert b"truncate" in run("--help").stdout
    for command in ("create", "write", "cat", "tail", "verify", "bench", "demo"):
        assert run(command, "--help").stdout.startswith(b"Usage")
    assert b"kernel" in run("doctor").stdout


def test_groups(run, tmp_path):
    run("create", "s")
    run("write", "s", data=b"".join(b"%d\n" % n for n in range(100)))
    stream = filestream.open(tmp_path / "s")
    with stream.consumer("bills", instances=2, instance=1) as consumer:
        consumer.fetch(40)
        consumer.commit()
        consumer.fetch(5)

        assert b"lag 60 events" in run("group", "ls", "s").stdout
        shown = json.loads(run("group", "show", "s", "bills", "--json").stdout)
        assert (shown["lag_events"], shown["living"], shown["claims"]) == (60, [1], 1)
        assert shown["lag_seconds"] > 0
        assert b"instance 1: alive" in run("group", "show", "s", "bills").stdout
        for words in (("reset", "s", "bills", "start"), ("rm", "s", "bills")):
            assert b"members of the group live" in run("group", *words, "--yes", code=5).stderr
        dry = run("group", "reset", "s", "bills", "-5", "--dry-run").stdout
        assert b"would go from a lag of 60 events to one of 5" in dry
    run("group", "reset", "s", "bills", "start", code=2)
    dump = run("group", "dump", "s", "bills").stdout
    run("group", "reset", "s", "bills", "--", "-5", "--yes", code=2)
    assert b"to one of 5" in run("group", "reset", "s", "bills", "-5", "--yes").stdout
    (tmp_path / "dump").write_bytes(dump)
    done = run("group", "reset", "s", "bills", "--to-file", "dump", "--yes", "--json")
    assert json.loads(done.stdout) == {
        "group": "bills", "lag_events_before": 5, "lag_events": 60, "dry_run": False,
    }  # fmt: skip
    run("group", "reset", "s", "bills", "--to-file", "-", "--yes", data=dump)
    for bad in (b"no", b"\xff\xfe"):
        run("group", "reset", "s", "bills", "--to-file", "-", "--yes", data=bad, code=2)
    run("group", "reset", "s", "bills", "start", "--to-group", "x", "--yes", code=2)
    offset = json.loads(run("cat", "s", "--json", "-c", "1").stdout)["offset"]
    run("group", "skip", "s", "bills", offset, "--yes")
    run("group", "skip", "s", "bills", "here", "--yes", code=2)
    assert b"skipped" in run("group", "show", "s", "bills").stdout
    changed = run("group", "reconfigure", "s", "bills", "-n", "3", "-s", "hash", "-k", "user")
    assert changed.stdout == b"bills: hash, instances 3\n"
    for bad in ("many", "\u00b2", "0", "1000000"):
        run("group", "reconfigure", "s", "bills", "-n", bad, code=2)
    made = run("group", "create", "s", "late", "--from", "-3", "-n", "2", "--json")
    assert json.loads(made.stdout)["lag_events"] == 3
    run("group", "create", "s", "late", code=5)
    assert b"would remove late" in run("group", "rm", "s", "late", "--dry-run").stdout
    run("group", "rm", "s", "late", "--yes", "--json")
    for words in (
        ("show", "s", "nobody"),
        ("dump", "s", "nobody"),
        ("rm", "s", "nobody", "--yes"),
        ("skip", "s", "nobody", offset, "--yes"),
        ("reset", "s", "nobody", "start", "--yes"),
    ):
        assert b"nobody" in run("group", *words, code=3).stderr
    run("group", "rm", "s", "bills", "--yes")
    assert run("group", "ls", "s").stdout == b""


def test_watch_tells_of_growth(run, tmp_path):
    run("create", "s")
    run("write", "s", data=b"x" * 5000)

    told = run("watch", "s", "--bytes", "4kB", "--since", "start", "-n", "1", "--json")
    assert json.loads(told.stdout)["grown_bytes"] >= 5000
    assert run("watch", "s", "--bytes", "4kB", "--timeout", "10ms").stdout == b""
    run("watch", "s", "--bytes", "none", code=2)
    run("watch", "nowhere", "--bytes", "1", code=3)


def test_retention_runs_until_it_is_interrupted(run, tmp_path):
    run("create", "s", "-p", "ttl=1ms", "-d", "1s")
    run("write", "s", data=b"x\n")
    process = start("retention", "run", "s", "--every", "100ms", cwd=tmp_path)
    try:
        assert b"expired" in process.stdout.readline()
        second = start("retention", "run", "s", cwd=tmp_path)
        assert b"standing by" in second.stderr.readline()
        for each in (second, process):
            each.send_signal(signal.SIGINT)
            _, errors = each.communicate(timeout=30)
            assert each.returncode == 130
            assert b"Traceback" not in errors
    finally:
        for each in (process, second):
            each.kill()
            each.communicate()


def test_a_bad_address_of_zookeeper_is_a_usage_error(run):
    addresses = ("zk://", "zk://u:secret@h:1", "etcd:///x", "zk://h?x=y", "", "zk://h:99999")
    for address in addresses:
        done = run("create", "s", "-c", address, code=2)
        assert b"secret" not in done.stderr
