"""The command line on HDFS and object stores, opened by the environment alone."""

import json
import os
import subprocess
import sys

import pytest

remote = pytest.mark.parametrize(
    "home",
    [
        pytest.param("hdfs", marks=pytest.mark.hdfs),
        pytest.param("s3", marks=pytest.mark.s3),
    ],
    indirect=True,
)


def run(*words, data=None, code=0, **environment):
    done = subprocess.run(
        [sys.executable, "-c", "from filestream.tools.cli import main; main()", *words],
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
