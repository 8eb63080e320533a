"""Errors are sentences for people, and tell no passwords."""

import pickle

import pytest

from retune.compiler.core.errors import (
    DeviceLimitError,
    OptionError,
    StoreError,
    UnknownWorkloadError,
    without_passwords,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://me:secret@host/folder", "sftp://me:***@host/folder"),
        ("sftp://bob:pa'ss@h/x", "sftp://bob:***@h/x"),
        ("""cannot open "sftp://b'b:pa'ss"wo"rd@h/x" now""", """cannot open "sftp://b'b:***@h/x" now"""),
        ("at https://me:se@cr:et@host:4200/api, see", "at https://me:***@host:4200/api, see"),
        ("s3://:secret@bucket/x and s3://a:b@c", "s3://:***@bucket/x and s3://a:***@c"),
        ('{"url": "http://me:secret@host"}', '{"url": "http://me:***@host"}'),
        ("http://host:4200/api/me@home", "http://host:4200/api/me@home"),
        ("http://host:4200, or me@home", "http://host:4200, or me@home"),
        ("s3://me@bucket", "s3://me@bucket"),
        ("me:secret@host", "me:secret@host"),
        ("sftp://me:***@host", "sftp://me:***@host"),
    ],
)
def test_the_password_of_a_url_is_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize("kind", [StoreError, OptionError, UnknownWorkloadError])
def test_no_error_tells_it(kind: type[Exception]) -> None:
    error = kind("cannot read http://me:secret@host/x")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "cannot read http://me:***@host/x"


def test_an_error_with_more_than_a_text_survives_a_pipe() -> None:
    error = pickle.loads(pickle.dumps(DeviceLimitError("too much", "registers")))
    assert (str(error), error.limit) == ("too much", "registers")
