"""What all tests share: seeds that can be given back, Java for Spark, and the rule for skips."""

import itertools
import os
import random
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # For the servers beside the tests.

REQUIRE_ALL = os.environ.get("FILESTREAM_REQUIRE_ALL") == "1"


def pytest_configure(config):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "default",
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("default")


@pytest.fixture(scope="session")
def require_all() -> bool:
    """Whether what a user's machine may lack must be here."""
    return REQUIRE_ALL


@pytest.fixture
def seed() -> int:
    """Printed with a failing test; FILESTREAM_SEED gives it back."""
    chosen = int(os.environ.get("FILESTREAM_SEED", random.SystemRandom().randrange(2**32)))
    print(f"FILESTREAM_SEED={chosen}")
    return chosen


def skip_for_lack_of(what: str) -> None:
    """Skip because of something that this machine lacks; a failure where all is required."""
    if REQUIRE_ALL:
        pytest.fail(f"{what}, and FILESTREAM_REQUIRE_ALL=1")
    pytest.skip(what)


@pytest.fixture
def missing():
    """``skip_for_lack_of``, for a test that finds out by itself."""
    return skip_for_lack_of


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One local Spark for all tests."""
    home = os.environ.get("JAVA_HOME")
    if not (shutil.which(f"{home}/bin/java") if home else shutil.which("java")):
        skip_for_lack_of("no Java: set JAVA_HOME, or run the tests with make test")
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        skip_for_lack_of("no PySpark: pip install 'filestream-engine[spark]'")
    from filestream.consumers.spark.register import register

    warehouse = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(warehouse))
        # Where an HDFS of the tests runs already, its configuration would be that of plain paths.
        .config("spark.hadoop.fs.defaultFS", "file:///")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_sessions_left():
    """The threads of a connection go on after its test, and draw random numbers, which hypothesis
    takes for those of a strategy.
    """
    yield
    room = sys.modules.get("filestream.coordination.zookeeper_session")
    if room is not None:
        room.close_sessions()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """One ZooKeeper for all tests that leave it alone."""
    server = zookeeper_in(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


_coordinations = itertools.count()


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def coordination(request):
    """Each property store in turn: a test that asks for it runs on both."""
    if request.param == "embedded":
        return "embedded"
    server = request.getfixturevalue("zookeeper")
    return f"zk://{server.hosts}/test{next(_coordinations)}?timeout=2s"


@pytest.fixture
def make_zookeeper(tmp_path):
    """A ZooKeeper of the test's own, not started yet."""
    servers = []

    def make():
        servers.append(zookeeper_in(tmp_path / "zookeeper"))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def own_zookeeper(make_zookeeper):
    """A ZooKeeper of the test's own, to be killed and paused."""
    server = make_zookeeper()
    server.start()
    return server


def zookeeper_in(folder):
    from servers.zookeeper import ZooKeeperServer, what_is_missing

    if missing := what_is_missing():
        skip_for_lack_of(missing)
    return ZooKeeperServer(folder)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """One HDFS for all tests that leave it alone; it is found by the environment alone."""
    cluster = hdfs_in(tmp_path_factory.mktemp("hdfs"))
    cluster.start()
    before = os.environ.get("HADOOP_CONF_DIR")
    os.environ["HADOOP_CONF_DIR"] = str(cluster.configuration)
    yield cluster
    if before is None:
        del os.environ["HADOOP_CONF_DIR"]
    else:
        os.environ["HADOOP_CONF_DIR"] = before
    cluster.stop()


@pytest.fixture
def make_hdfs(tmp_path):
    """An HDFS of the test's own, not started yet, to be killed and paused."""
    clusters = []

    def make(**options):
        clusters.append(hdfs_in(tmp_path / f"hdfs{len(clusters)}", **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.stop()


def hdfs_in(folder, **options):
    from servers.hdfs import HdfsCluster, what_is_missing

    if missing := what_is_missing():
        skip_for_lack_of(missing)
    return HdfsCluster(folder, **options)


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """One real S3 server for all tests that leave it alone; the environment alone opens it."""
    for server in _serve_s3("versity", tmp_path_factory):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment.items():
                patch.setenv(name, value)
            yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory):
    """The quick S3 server."""
    yield from _serve_s3("moto", tmp_path_factory)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory):
    """The S3 server that takes conditions and ignores them."""
    yield from _serve_s3("rclone", tmp_path_factory)


@pytest.fixture
def make_s3(tmp_path):
    """A real S3 server of the test's own, not started yet."""
    servers = []

    def make():
        servers.append(s3_in("versity", tmp_path / f"s3-{len(servers)}"))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def _serve_s3(kind, tmp_path_factory):
    server = s3_in(kind, tmp_path_factory.mktemp(kind))
    server.start()
    server.make_bucket("bucket")
    yield server
    server.stop()


def s3_in(kind, folder):
    from servers import s3

    reasons = {
        "versity": s3.versity_missing,
        "moto": s3.moto_missing,
        "rclone": s3.rclone_missing,
    }
    if missing := reasons[kind]():
        skip_for_lack_of(missing)
    return s3.S3Server(kind, folder)


@pytest.fixture
def no_grace(monkeypatch):
    """Compaction may remove at once what it has packed: no test waits for a minute."""
    from filestream.partitions import compaction

    monkeypatch.setattr(compaction, "_GRACE_MS_MIN", 0)


_places = itertools.count()
STORES = [
    "file",
    pytest.param("hdfs", marks=pytest.mark.hdfs),
    pytest.param("s3", marks=pytest.mark.s3),
]


@pytest.fixture
def place(request):
    """A URL that nothing lies below yet: ``place("hdfs")``, with the options to open it."""

    def make(kind):
        name = f"test{next(_places)}"
        if kind == "file":
            return str(request.getfixturevalue("tmp_path") / name), {}
        if kind == "hdfs":
            return f"{request.getfixturevalue('hdfs').url}/{name}", {}
        server = request.getfixturevalue(kind)
        return f"s3://bucket/{name}", server.options

    return make


@pytest.fixture(params=STORES)
def home(request, place):
    """A URL on each kind of store in turn, which the environment alone opens."""
    return place(request.param)[0]


@pytest.fixture
def make(home):
    """Creates a stream below ``home``: ``make("clicks", ttl="1d")``."""
    import filestream

    def create(name, **properties):
        if home.startswith("s3:"):
            # Nobody moves a manual clock while a commit lingers.
            properties.setdefault("linger", "0")
        return filestream.create(f"{home}/{name}", **properties)

    return create


on_disk = pytest.mark.parametrize("home", ["file"], indirect=True)
