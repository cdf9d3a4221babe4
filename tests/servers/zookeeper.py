"""A real ZooKeeper for tests: the server inside the jars that PySpark brings, on loopback."""

import importlib.util
import socket
from pathlib import Path

from servers.programs import Program, free_port, java

TICK_MS = 500


def what_is_missing() -> str | None:
    """Why no server can be started here, or None."""
    if java() is None:
        return "no Java for ZooKeeper: set JAVA_HOME, or run the tests with make test"
    if importlib.util.find_spec("pyspark") is None:
        return "no ZooKeeper: its jars come with pip install 'filestream-engine[spark]'"
    return None


class ZooKeeperServer:
    """One server with its own data directory; the same port after a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self.program: Program | None = None
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        jars = Path(spec.origin).parent / "jars"
        names = ("zookeeper", "slf4j-api", "netty", "metrics-core", "snappy", "jcl-over")
        self.classpath = ":".join(
            str(jar) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(names)
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "zoo.cfg").write_text(
            f"tickTime={TICK_MS}\n"
            f"dataDir={folder / 'data'}\n"
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\nsyncEnabled=true\n"
        )

    def add_tls(self, certificate: Path, authority: Path) -> int:
        """Before the start: serve TLS on another port too, for clients that show a certificate."""
        port = free_port()
        with (self.folder / "zoo.cfg").open("a") as file:
            file.write(
                f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n"
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"ssl.keyStore.location={certificate}\nssl.keyStore.type=PEM\n"
                f"ssl.trustStore.location={authority}\nssl.trustStore.type=PEM\n"
                "ssl.clientAuth=need\n"
            )
        return port

    def start(self) -> None:
        executable = java()
        assert executable is not None
        self.program = Program(
            [
                executable,
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                self.classpath,
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                str(self.folder / "zoo.cfg"),
            ],
            self.folder / "log",
        )
        self.wait()

    def wait(self, timeout_s: float = 60) -> None:
        assert self.program is not None
        self.program.wait_until(lambda: "Mode:" in self.says("srvr"), timeout_s)

    def says(self, word: str) -> str:
        """The answer to a four-letter word; empty when there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(word.encode())
                answer = b""
                while more := connection.recv(65536):
                    answer += more
                return answer.decode()
        except OSError:
            return ""

    def pause(self) -> None:
        assert self.program is not None
        self.program.pause()

    def resume(self) -> None:
        assert self.program is not None
        self.program.resume()

    def kill(self) -> None:
        assert self.program is not None
        self.program.kill()

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()
