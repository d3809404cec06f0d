"""An S3 server on loopback for tests: moto's, in this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "eyrie"
# No account of anybody: the server takes any.
VARIABLES = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Serve an empty bucket `BUCKET` for the length of a block; yields the variables that lead to it, which are set."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {**VARIABLES, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield variables
    finally:
        server.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
