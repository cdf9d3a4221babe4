"""The command line on HDFS and object stores, opened by the environment alone."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

remote = pytest.mark.parametrize(
    "home",
    [
        pytest.param("hdfs", marks=pytest.mark.hdfs),
        pytest.param("s3", marks=pytest.mark.s3),
    ],
    indirect=True,
)


MAIN = "from filestream.tools.cli import main; main()"
# No test waits for a minute.
AT_ONCE = f"from filestream.partitions import compaction as c; c._GRACE_MS_MIN = 0; {MAIN}"


def run(*words, data=None, code=0, program=MAIN, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        input=data, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@remote
def test_a_stream_from_creation_to_removal(home):
    url = f"{home}/clicks"
    assert run("create", url, "-d", "1h").stdout.strip() == url
    lines = "".join(f"line {number}\n" for number in range(5000))
    assert "5,000 events written" in run("write", url, data=lines).stderr
    assert run("cat", url).stdout == lines
    assert run("tail", url, "-n", "1").stdout == "line 4999\n"
    info = json.loads(run("info", url, "--json").stdout)
    assert info["events"] == 5000
    level = "object" if home.startswith("s3") else "disk"
    assert info["properties"]["acknowledgement"] == level
    assert ("the store" if level == "object" else "DataNode") in info["acknowledged_survives"]
    assert run("ls", home).stdout == "clicks\n"
    run("verify", url)
    offset = json.loads(run("cat", url, "--json", "-c", "1").stdout)["offset"]
    assert "block" in run("dump", f"{url}/{offset.partition(':')[0]}.dat").stdout
    run("truncate", url, "--yes")
    assert run("cat", url).stdout == ""
    assert "00001" in run("retention", url, "--yes").stdout
    run("create", url, code=5)
    run("rm", url, "--yes")
    run("info", url, code=3)


def test_compaction(home):
    """Small segments of a day that is over."""
    url = f"{home}/clicks"
    run("create", url, "-d", "1h", "-p", "linger=0")
    made = [f"00001/1401408000.03600/w.{n:06d}" for n in range(4)]
    line = json.dumps({"timestamp": "2014-05-30T00:00:01Z", "body": "old"})
    for _ in made:
        run("write", url, "--json", "-w", "w", data=line)
    before = run("cat", url, "--json").stdout

    planned = json.loads(run("compact", url, "--dry-run", "--json").stdout)
    pack = "00001/1401408000.03600/w.000000-000003.seg"
    assert [found["key"] for found in planned["packs"]] == [pack]
    assert f"packed  {pack}  4 segments" in run("compact", url).stdout
    done = run("compact", url)
    assert done.stdout == ""
    assert "4 packed segments wait" in done.stderr
    run("compact", url, "--grace", "0", code=2)
    done = run("compact", url, "--grace", "0", program=AT_ONCE)
    assert done.stdout.startswith("removed  4 segments")
    assert run("cat", url, "--json").stdout == before
    assert run("verify", url).stdout == ""
    # What was packed is shown as what it was.
    shown = run("dump", f"{url}/{made[2]}.dat").stdout
    assert shown.count(" E3 ") == 1
    assert shown.count(" end ") == 1
    shown = run("dump", f"{url}/{pack}").stdout
    assert shown.count(" E3 ") == shown.count(" end ") == 4
    shown = run("dump", f"{url}/{pack[:-4]}.idx").stdout
    assert shown.count(" segment ") == 4
    run("compact", url, "--after", "1s", code=2)
    assert "1MiB..1GiB" in run("compact", url, "--pack-size", "1KB", code=2).stderr
    if home.startswith("/"):
        path = Path(home) / "clicks" / pack
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
        shown = run("dump", str(path), code=4).stdout
        assert shown.count(" damage ") == 1
        assert shown.count(" end ") == 3
    run("compact", f"{url}-not", code=3)


@pytest.mark.hdfs
@pytest.mark.parametrize("home", ["hdfs"], indirect=True)
def test_commands_end_with_their_own_code(home):
    """Threads of the client, busy while the interpreter ended, aborted one process of three."""
    url = f"{home}/clicks"
    run("create", url)
    lines = "".join(f"line {number}\n" for number in range(2000))
    with ThreadPoolExecutor(4) as four:
        list(four.map(lambda _: run("write", url, data=lines), range(12)))
    assert json.loads(run("info", url, "--json").stdout)["events"] == 24_000
    assert run("info", f"{url}-not", code=3).stdout == ""


@pytest.mark.s3
def test_a_journal_is_shipped_when_its_writer_is_terminated(place, tmp_path):
    url = place("s3")[0]
    run("create", url, "-p", "acknowledgement=journal", "-p", "ship_interval=1h")
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "write", url, "-w", "web", "--journal", str(tmp_path), "--offsets"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        for number in range(5):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            assert b"/web." in process.stdout.readline()
        assert run("cat", url).stdout == ""
        facts = json.loads(run("info", url, "--json").stdout)
        assert [found["directory"] for found in facts["journals"]] == [str(tmp_path)]
        refused = run(
            "write", url, "-w", "web", "--journal", str(tmp_path / "other"), data="x", code=5
        )
        assert "another living process" in refused.stderr
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.communicate()
    assert run("cat", url).stdout == "0\n1\n2\n3\n4\n"
    assert json.loads(run("info", url, "--json").stdout)["journals"] == []


@remote
def test_doctor_tries_a_store(home):
    found = run("doctor", home).stdout

    assert "BAD" not in found
    assert "put race" in found
    assert "acknowledges" in found
    assert run("ls", home).stdout == ""


@pytest.mark.s3
def test_what_is_wrong_is_said_and_has_an_exit_code(s3, rclone, place):
    url = place("s3")[0]
    wrong = run("create", url, code=1, AWS_SECRET_ACCESS_KEY="not-the-secret")
    assert "credentials" in wrong.stderr
    assert "not-the-secret" not in wrong.stderr
    assert "no such bucket" in run("create", "s3://nothing-here/x", code=3).stderr
    assert "does not answer" in run("info", url, code=1, AWS_ENDPOINT="http://127.0.0.1:1").stderr
    run("create", "s3://bucket/../x", code=2)
    lies = run("doctor", url, code=1, AWS_ENDPOINT=rclone.endpoint)
    assert "BAD put race" in lies.stdout
    refused = run("create", url, code=2, AWS_ENDPOINT=rclone.endpoint)
    assert "put-if-absent" in refused.stderr


@pytest.mark.hdfs
def test_a_namenode_that_does_not_run_is_said(hdfs):
    found = run("info", "hdfs://127.0.0.1:1/x", code=1, HADOOP_CONF_DIR="")

    assert "check the address" in found.stderr
