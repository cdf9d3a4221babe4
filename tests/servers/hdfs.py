"""A real HDFS for tests: a NameNode and DataNodes of Hadoop, each a process of its own, on loopback.

The servers are in one jar that Maven fetches, once; the rest of Hadoop comes with PySpark.
"""

import importlib.util
import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

from servers.programs import Program, cache, free_port, is_listening, java

VERSION = "3.5.0"
_JAR = f"hadoop-client-minicluster-{VERSION}.jar"


def what_is_missing() -> str | None:
    """Why no HDFS can be started here, or None; fetches what can be fetched."""
    if java() is None:
        return "no Java for HDFS: set JAVA_HOME, or run the tests with make test"
    if importlib.util.find_spec("pyspark") is None:
        return "no Hadoop: its jars come with pip install 'filestream-engine[spark]'"
    if (cache() / _JAR).exists():
        return None
    maven = shutil.which("mvn")
    if maven is None:
        return "no HDFS server: Maven, which fetches it, is not installed"
    artifact = f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}"
    done = subprocess.run(
        [
            maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}",
            f"-DoutputDirectory={cache()}",
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode or not (cache() / _JAR).exists():
        return f"no HDFS server: Maven could not fetch it: {done.stdout[-300:]}"
    return None


class HdfsCluster:
    """A NameNode and DataNodes; the same ports after a restart."""

    def __init__(self, folder: Path, *, datanodes: int = 2) -> None:
        self.folder = folder
        self.port = free_port()
        self.web_port = free_port()
        self.url = f"hdfs://127.0.0.1:{self.port}"
        self.namenode: Program | None = None
        self.datanodes: list[Program] = []
        self._count = datanodes
        self._ports = [[free_port() for _ in range(3)] for _ in range(datanodes)]
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        jars = Path(spec.origin).parent / "jars"
        names = ("hadoop-client", "slf4j-api", "jcl-over", "snappy", "log4j", "jackson")
        found = sorted(jar for jar in jars.glob("*.jar") if jar.name.startswith(names))
        folder.mkdir(parents=True, exist_ok=True)
        self._classpath = ":".join(map(str, [folder / "conf", cache() / _JAR, *found]))
        self._common = {
            "fs.defaultFS": self.url,
            "dfs.replication": str(min(datanodes, 2)),
            "dfs.namenode.rpc-bind-host": "127.0.0.1",
            "dfs.namenode.http-address": f"127.0.0.1:{self.web_port}",
            "dfs.namenode.name.dir": str(folder / "name"),
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.safemode.min.datanodes": str(datanodes),
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.heartbeat.recheck-interval": "1000",
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.fs-limits.min-block-size": "4096",
            "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
            "dfs.permissions.enabled": "true",
            "dfs.permissions.superusergroup": "root",
            "hadoop.http.staticuser.user": "root",
            "ipc.client.connect.max.retries": "2",
        }
        self.configuration = folder / "client"
        _write_site(self.configuration, self._common)
        (folder / "conf").mkdir(exist_ok=True)
        (folder / "conf" / "log4j2.properties").write_text(
            "rootLogger.level=warn\nrootLogger.appenderRef.c.ref=c\n"
            "appender.c.type=Console\nappender.c.name=c\nappender.c.layout.type=PatternLayout\n"
            "appender.c.layout.pattern=%d %p %c{1} %m%n\n"
        )

    def start(self) -> None:
        site = self.folder / "namenode"
        _write_site(site, self._common)
        if not (self.folder / "name").exists():
            formatting = self._java(site, "server.namenode.NameNode", "-format", "-force")
            assert formatting.process.wait(120) == 0, formatting.log.read_text()[-3000:]
        self.start_namenode()
        for number in range(self._count):
            self.start_datanode(number)
        self.wait()

    def start_namenode(self) -> None:
        self.namenode = self._java(self.folder / "namenode", "server.namenode.NameNode")

    def make_erasure_coded(self, path: str, policy: str) -> None:
        """Make a directory whose files are erasure-coded."""
        for method, query in (
            ("PUT", "op=MKDIRS"),
            ("PUT", f"op=ENABLEECPOLICY&ecpolicy={policy}"),
            ("PUT", f"op=SETECPOLICY&ecpolicy={policy}"),
        ):
            where = path if "ENABLE" not in query else "/"
            url = f"http://127.0.0.1:{self.web_port}/webhdfs/v1{where}?{query}&user.name=root"
            urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30).close()

    def start_datanode(self, number: int, *, reserved: int = 0) -> None:
        data, http, ipc = self._ports[number]
        site = self.folder / f"datanode{number}"
        _write_site(
            site,
            self._common
            | {
                "dfs.datanode.data.dir": str(site / "data"),
                "dfs.datanode.address": f"127.0.0.1:{data}",
                "dfs.datanode.http.address": f"127.0.0.1:{http}",
                "dfs.datanode.ipc.address": f"127.0.0.1:{ipc}",
                "dfs.datanode.hostname": "127.0.0.1",
                "dfs.datanode.du.reserved": str(reserved),
            },
        )
        program = self._java(site, "server.datanode.DataNode")
        if number < len(self.datanodes):
            self.datanodes[number] = program
        else:
            self.datanodes.append(program)

    def wait(self, datanodes: int | None = None) -> None:
        """Until so many DataNodes live, and files can be created."""
        wanted = self._count if datanodes is None else datanodes
        assert self.namenode is not None
        self.namenode.wait_until(lambda: self._is_ready(wanted), 120)

    def _is_ready(self, datanodes: int) -> bool:
        for program, ports in zip(self.datanodes, self._ports, strict=True):
            if program.process.poll() is None and not is_listening(ports[0]):
                return False
        query = "Hadoop:service=NameNode,name=NameNodeInfo"
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.web_port}/jmx?qry={query}", timeout=5
            ) as answer:
                (bean,) = json.load(answer)["beans"]
        except (OSError, ValueError, KeyError):
            return False
        alive = json.loads(bean["LiveNodes"])
        return not bean["Safemode"] and len(alive) == datanodes

    def stop(self) -> None:
        for program in (*self.datanodes, self.namenode):
            if program is not None:
                program.stop()

    def _java(self, site: Path, kind: str, *arguments: str) -> Program:
        executable = java()
        assert executable is not None
        opens = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch")
        return Program(
            [
                executable, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                *(f"--add-opens={name}=ALL-UNNAMED" for name in opens),
                "-Djava.net.preferIPv4Stack=true", f"-Dhadoop.log.dir={site}",
                "-cp", f"{site}:{self._classpath}", f"org.apache.hadoop.hdfs.{kind}", *arguments,
            ],
            site / "log",
            {"HADOOP_USER_NAME": "root"},
        )  # fmt: skip


def _write_site(folder: Path, values: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in values.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>\n{properties}</configuration>\n")
