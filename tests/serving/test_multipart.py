"""The parts of a form: what clients send is found whatever is in it, and takes no time to find."""

from __future__ import annotations

import time

import pytest
from empathy_judge.serving.multipart import boundary_of, parts_of
from empathy_judge.serving.schemas import Problem


def parts(body: bytes, boundary: bytes = b"b", most: int = 3) -> list[tuple[str, bytes]]:
    return list(parts_of(bytearray(b"\r\n" + body), boundary, most))


def part(content: bytes, head: bytes = b'Content-Disposition: form-data; name="response"') -> bytes:
    return b"--b\r\n" + head + b"\r\n\r\n" + content + b"\r\n"


def test_names_and_contents_come_in_their_order():
    first, second = bytes(range(256)) * 3, b""
    body = part(first) + part(second, b'CONTENT-DISPOSITION:form-data; filename="x"; name=context\r\nContent-Type: a/b')
    assert parts(body + b"--b--\r\n") == [("response", first), ("context", second)]
    assert parts(b"before" + b"\r\n" + body + b"--b--" + b"behind") == [("response", first), ("context", second)]
    assert parts(b"--b  \t\r\nX: y\r\n\r\nz\r\n--b--") == [("", b"z")]
    assert parts(b"--b\r\n\r\nz\r\n--b--") == [("", b"z")]


@pytest.mark.parametrize(
    "content", [b"--b", b"\r\n-b", b"\n--b\r\n", b"\r\n--", b"\r", b"\r\n\r\n", b"\r\r\n--a--b", b"--b--"]
)
def test_what_looks_like_a_boundary_is_content(content):
    assert parts(part(content) + b"--b--\r\n") == [("response", content)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the form cannot be read: its end is missing"),
        (b"x", "the form cannot be read: its end is missing"),
        (part(b"x"), "the form cannot be read: its end is missing"),
        (part(b"x") + b"--b", "the form cannot be read: a boundary is followed by other characters"),
        (part(b"\r\n--bX") + b"--b--", "the form cannot be read: a boundary is followed by other characters"),
        (b"--b\r\nA: " + b"x" * 5000, "the form cannot be read: the head of a part does not end within 4096 bytes"),
        (part(b"x", b"A: " + b"x" * 5000) + b"--b--", "the form cannot be read: the head of a part does not end"),
        (part(b"x") * 4 + b"--b--", "more than 3 parts; expected fewer"),
    ],
)
def test_what_is_no_form_is_told_why(body, message):
    with pytest.raises(Problem, match=f"^{message}"):
        parts(body)


@pytest.mark.parametrize(
    ("declared", "boundary"),
    [
        ("multipart/form-data; boundary=b", b"b"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b:c"', b"a b:c"),
        (f"multipart/form-data; boundary={'b' * 70}", b"b" * 70),
        ("", None),
        ("application/json", None),
        ("multipart/mixed; boundary=b", None),
        ("multipart/form-data", None),
        ('multipart/form-data; boundary=""', None),
        (f"multipart/form-data; boundary={'b' * 71}", None),
    ],
)
def test_a_boundary_is_what_the_rfc_allows(declared, boundary):
    if boundary is None:
        with pytest.raises(Problem, match="expected multipart/form-data with a boundary of at most 70 characters"):
            boundary_of(declared)
    else:
        assert boundary_of(declared) == boundary


@pytest.mark.parametrize(
    ("content", "boundary"),
    [(b"\r", b"b"), (b"\r\n--", b"b"), (b"\r\n--" + b"b" * 68 + b"c", b"b" * 69), (b"-", b"-" * 70), (b"\r\n", b"-")],
)
def test_no_content_takes_long_to_search(content, boundary):
    """32 MB of what is almost the boundary, while nobody else has a turn."""
    head = b'\r\n--%s\r\nContent-Disposition: form-data; name="response"\r\n\r\n' % boundary
    body = bytearray(head + content * (2**25 // len(content)) + b"\r\n--%s--" % boundary)
    begun = time.process_time()
    ((_, found),) = parts_of(body, boundary, 1)
    assert time.process_time() - begun < 1.0
    assert len(found) == len(content) * (2**25 // len(content))
