"""The parts of a form (`multipart/form-data`, RFC 7578) that lies in memory.

The whole body is searched for its boundary. A parser that is fed as bytes come calls Python for every piece, and for
all that looks like a boundary: a client chooses how many of those there are, and all others wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from python_multipart.multipart import parse_options_header

from .schemas import Problem

MAX_BOUNDARY = 70
"""Characters of a boundary, RFC 2046, 5.1.1."""
_MAX_HEAD = 2**12
"""Bytes of the head of a part; a file name of 255 characters has at most 3 kB there."""


def boundary_of(content_type: str) -> bytes:
    """The boundary that a form declares.

    Raises:
        Problem: If it is no form, or without a boundary that a form may have.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY:
        raise Problem("not_multipart")
    return boundary


def parts_of(body: bytearray, boundary: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of each part, in their order. What stands before the first boundary and behind the last is left
    out.

    Args:
        body: CRLF and the body.
        boundary: Of `boundary_of`.
        most: Parts that a form may have.

    Raises:
        Problem: If the body is no form, has no end, or has more parts.
    """
    # The line end before a boundary belongs to it, and not to the content; a slice of the view copies nothing
    delimiter, view, count = b"\r\n--" + boundary, memoryview(body), 0
    at = body.find(delimiter)
    while at >= 0:
        at += len(delimiter)
        if body.startswith(b"--", at):
            return
        count += 1
        if count > most:
            raise Problem("invalid", f"more than {most} parts; expected fewer")
        # Searched within a bound: without it, each part could make the search go through the whole body
        line_end = body.find(b"\r\n", at, at + _MAX_HEAD)
        # Blanks may follow a boundary (RFC 2046, 5.1.1)
        if line_end < 0 or view[at:line_end].tobytes().strip(b" \t"):
            raise _unreadable("a boundary is followed by other characters")
        head_end = body.find(b"\r\n\r\n", line_end, line_end + _MAX_HEAD)
        if head_end < 0:
            raise _unreadable(f"the head of a part does not end within {_MAX_HEAD} bytes")
        begin = head_end + 4
        at = body.find(delimiter, begin)
        if at >= 0:
            yield _name_of(view[line_end:head_end].tobytes()), view[begin:at].tobytes()
    raise _unreadable("its end is missing")


def _name_of(head: bytes) -> str:
    """The name of a part; empty = it has none."""
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.lower() == b"content-disposition":
            return parse_options_header(value.strip())[1].get(b"name", b"").decode("utf-8", "replace")
    return ""


def _unreadable(reason: str) -> Problem:
    return Problem("bad_request", f"the form cannot be read: {reason}")
