"""An S3 server on this machine, with an empty location for each test."""

from collections.abc import Iterator

import pytest

from retune.storage.files import new_id

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a server that answers as S3 does, with a bucket named `retune`."""
    server_module = pytest.importorskip("moto.server", reason="needs the extra `test`")
    s3fs = pytest.importorskip("s3fs", reason="needs the extra `s3`")
    server = server_module.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as environment:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True).mkdir("retune")
        yield endpoint
    server.stop()


@pytest.fixture
def s3_place(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place in the bucket, which this process and its children can open."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    return f"s3://retune/{new_id()}"
