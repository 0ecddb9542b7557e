"""The body of a form, read as it comes: parts by name, in memory. What clients call their files is not looked at."""

from __future__ import annotations

from collections.abc import Collection

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from .problems import Problem


class Form:
    """Collects the parts of a form.

    Args:
        boundary: Between them.
        files: Names of parts of any size; they are bounded by the size of the body.
        texts: Names of parts that are short texts.
        max_text: Bytes of a text.
        max_parts: Of both together.

    Attributes:
        parts: Name and content of each part, in order.
    """

    def __init__(
        self, boundary: bytes, files: Collection[str], texts: Collection[str], max_text: int, max_parts: int
    ) -> None:
        self.parts: list[tuple[str, bytearray]] = []
        self._files, self._texts, self._max_text, self._max_parts = files, texts, max_text, max_parts
        self._header, self._value, self._disposition = b"", b"", b""
        self._is_complete = False
        callbacks = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_end": self._on_end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise _unreadable(error) from None

    def write(self, chunk: bytes) -> None:
        """Some more of the body.

        Raises:
            Problem: If it is no form, or has a part that is not accepted.
        """
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _unreadable(error) from None

    def finish(self) -> None:
        """That was all.

        Raises:
            Problem: If the end is missing.
        """
        if not self._is_complete:
            raise Problem("bad_request", "the form cannot be read: its end is missing")

    def _on_part_begin(self) -> None:
        self._disposition = b""
        if len(self.parts) >= self._max_parts:
            raise Problem("invalid", f"more than {self._max_parts} parts; accepted: fewer")

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name", b"").decode("utf-8", "replace")
        if name not in self._files and name not in self._texts:
            accepted = ", ".join((*self._files, *self._texts))
            raise Problem("invalid", f"a part of the form is not known; accepted: {accepted}")
        self.parts.append((name, bytearray()))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        name, content = self.parts[-1]
        if name in self._texts and len(content) + end - start > self._max_text:
            raise Problem("invalid", f"{name}: more than {self._max_text} bytes; accepted: less")
        content += data[start:end]

    def _on_end(self) -> None:
        self._is_complete = True


def _unreadable(error: FormParserError) -> Problem:
    return Problem("bad_request", f"the form cannot be read: {error}")
