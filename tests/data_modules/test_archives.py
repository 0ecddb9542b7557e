"""Zip archives from outside: what is safe is read whole, what is not is refused by name, nothing is unpacked."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import stat
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from empathy_judge.data_modules.errors import AudioError, DataError
from empathy_judge.data_modules.importers import archives
from empathy_judge.data_modules.importers.archives import ArchiveMember, archive_members, open_tree
from empathy_judge.data_modules.importers.clips import read_clip

FLAGS, METHOD, PACKED, SIZE, OFFSET = (8, "<H"), (10, "<H"), (20, "<L"), (24, "<L"), (42, "<L")
"""Fields of a member in the central directory: where they start and how they are packed."""


def make_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def patch(path: Path, name: str, field: tuple[int, str], value: int) -> None:
    """Changes what the central directory says of a member."""
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    while data[entry + 46 : entry + 46 + len(name)] != name.encode():
        entry = data.index(b"PK\x01\x02", entry + 4)
    struct.pack_into(field[1], data, entry + field[0], value)
    path.write_bytes(data)


def refused(path: Path) -> str:
    """The one-line error that names the archive."""
    with pytest.raises(DataError) as caught:
        archive_members(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def contents(path: Path) -> dict[str, bytes]:
    return {name: read_clip(file) for name, file in open_tree(path).files.items()}


class TestMembers:
    def test_files_are_read_in_the_order_of_the_archive_and_colons_are_names(self, tmp_path):
        long = bytes(range(256)) * 400
        path = make_zip(tmp_path / "a.zip", {"b/hit:1_conv:2.wav": b"two", "a.wav": long, "b/empty": b""})
        members = archive_members(path)
        assert [member.name for member in members] == ["b/hit:1_conv:2.wav", "a.wav", "b/empty"]
        assert [member.read() for member in members] == [b"two", long, b""]
        assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]

    def test_droppings_and_folders_are_passed_over(self, tmp_path):
        names = ["a/", "a/x.wav", "__MACOSX/a/._x.wav", "a/._x.wav", ".DS_Store", "a/.DS_Store", "a/__MACOSX/x.wav"]
        path = make_zip(tmp_path / "a.zip", dict.fromkeys(names, b"1"))
        assert [member.name for member in archive_members(path)] == ["a/x.wav"]

    def test_a_member_that_is_not_there(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"a.wav": b"abc"})
        with pytest.raises(AudioError, match=r"^a.zip/b.wav: no such file in the archive$"):
            ArchiveMember(path, "b.wav").read()

    def test_one_damaged_member_leaves_the_others(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"a.wav": b"aaaa", "b.wav": b"bbbb"}, zipfile.ZIP_STORED)
        path.write_bytes(path.read_bytes().replace(b"aaaa", b"aaax", 1))
        with pytest.raises(AudioError, match=r"^a.zip/a.wav: cannot be read \(Bad CRC-32"):
            ArchiveMember(path, "a.wav").read()
        assert ArchiveMember(path, "b.wav").read() == b"bbbb"


class TestRefused:
    @pytest.mark.parametrize(
        "name",
        ["../x", "a/../../x", "/x", "C:x", "c:/x", "a\\x", "..\\x", "\\\\host\\x", "a//x", "./x", "../", "a/./x"],
    )
    def test_unsafe_names(self, tmp_path, name):
        path = make_zip(tmp_path / "a.zip", {"ok.wav": b"1", name: b"2"})
        assert refused(path).startswith(f"member {name!r} has an unsafe name; expected a relative path")

    def test_an_unsafe_dropping_is_unsafe(self, tmp_path):
        assert "unsafe name" in refused(make_zip(tmp_path / "a.zip", {"__MACOSX/../../x": b"1"}))

    def test_double_names(self, tmp_path):
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/x.wav", b"first")
            with pytest.warns(UserWarning, match="Duplicate name"):
                archive.writestr("a/x.wav", b"second")
        assert refused(path) == "member 'a/x.wav' stands twice in the archive; expected each name once"

    def test_links(self, tmp_path):
        path = tmp_path / "a.zip"
        info = zipfile.ZipInfo("x.wav")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(info, "/etc/passwd")
        assert refused(path) == "member 'x.wav' is a link; expected files"

    @pytest.mark.parametrize("flag", [0x1, 0x41])
    def test_encrypted_members(self, tmp_path, flag):
        path = make_zip(tmp_path / "a.zip", {"x.wav": b"1"})
        patch(path, "x.wav", FLAGS, flag)
        assert refused(path).startswith("member 'x.wav' is encrypted; expected ")

    def test_methods_that_unpack_without_limit(self, tmp_path):
        assert refused(make_zip(tmp_path / "a.zip", {"x": b"1"}, zipfile.ZIP_LZMA)).startswith(
            "member 'x' is packed by method 14; expected stored, deflated"
        )

    def test_a_member_that_says_it_is_huge(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"x.wav": b"1"})
        patch(path, "x.wav", SIZE, (512 << 20) + 1)
        assert refused(path).startswith("member 'x.wav' holds 536870913 bytes; expected at most 536870912")

    def test_a_bomb(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"x.wav": bytes(65 << 20)})
        assert path.stat().st_size < 100_000
        assert "is a zip bomb: " in refused(path)

    def test_silence_is_no_bomb(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"x.wav": bytes(4 << 20)})
        assert len(ArchiveMember(path, "x.wav").read()) == 4 << 20

    def test_more_bytes_than_declared_are_not_unpacked(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"x.wav": bytes(1 << 20)})
        patch(path, "x.wav", SIZE, 1000)
        with pytest.raises(AudioError, match="Bad CRC-32"):
            ArchiveMember(path, "x.wav").read()

    def test_fewer_bytes_than_declared(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"x.wav": b"12345"})
        patch(path, "x.wav", SIZE, 1000)
        with pytest.raises(AudioError, match=r"^a.zip/x.wav: the archive is damaged, 5 of 1000 bytes are there$"):
            ArchiveMember(path, "x.wav").read()

    def test_members_that_overlap(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"a": b"1" * 40, "b": b"2" * 40})
        patch(path, "b", OFFSET, 0)
        assert refused(path) == "member 'b' overlaps with 'a'; expected members side by side"

    def test_no_zip_cut_off_and_missing(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"x.wav": bytes(10_000), "y.wav": b"2"}, zipfile.ZIP_STORED)
        whole = path.read_bytes()
        for cut in (len(whole) - 10, len(whole) // 2, 30, 1, 0):
            path.write_bytes(whole[:cut])
            assert refused(path).startswith("not readable as a zip archive (")
        path.write_bytes(b"RIFF" + bytes(100))
        assert refused(path) == "not readable as a zip archive (File is not a zip file)"
        path.unlink()
        assert refused(path) == "cannot be read (No such file or directory)"

    def test_a_bad_member_name_stays_on_one_line(self, tmp_path):
        assert "\n" not in refused(make_zip(tmp_path / "a.zip", {"../a\nb": b""}))


class TestManyReads:
    def test_the_directory_is_parsed_once(self, tmp_path, monkeypatch):
        path = make_zip(tmp_path / "a.zip", {f"{n}": b"%d" % n for n in range(100)})
        opened = []
        real = zipfile.ZipFile
        monkeypatch.setattr(archives.zipfile, "ZipFile", lambda file: opened.append(file) or real(file))
        assert [member.read() for member in archive_members(path)] == [b"%d" % n for n in range(100)]
        assert opened == [path]

    def test_a_replaced_archive_is_read_anew(self, tmp_path):
        path = make_zip(tmp_path / "a.zip", {"x": b"old"})
        assert ArchiveMember(path, "x").read() == b"old"
        shutil.move(make_zip(tmp_path / "b.zip", {"y": b"1", "x": b"renewed"}), path)
        assert ArchiveMember(path, "x").read() == b"renewed"

    def test_threads_and_forked_processes_share_no_position(self, tmp_path):
        expected = {f"{n}.wav": random.Random(n).randbytes(3000 + 50 * n) for n in range(60)}
        path = make_zip(tmp_path / "a.zip", expected)
        members = archive_members(path) * 5
        context = multiprocessing.get_context("fork")
        with context.Pool(2) as processes, ThreadPoolExecutor(8) as threads:
            elsewhere = processes.map_async(ArchiveMember.read, members, chunksize=3)
            here = list(threads.map(ArchiveMember.read, members))
            assert here == elsewhere.get(timeout=60) == list(expected.values()) * 5


class TestTrees:
    def test_a_folder_an_archive_and_a_folder_with_the_archive_are_the_same(self, tmp_path):
        files = {"set/audio/a:1.wav": b"1", "set/b.json": b"[]"}
        inside = {name.removeprefix("set/"): data for name, data in files.items()}
        for name, data in files.items():
            (tmp_path / "unpacked" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "unpacked" / name).write_bytes(data)
        for form in ("wrapped", "flat"):
            (tmp_path / form).mkdir()
        make_zip(tmp_path / "wrapped" / "set.zip", files)
        make_zip(tmp_path / "flat" / "set.zip", inside)
        assert contents(tmp_path / "unpacked") == files
        assert contents(tmp_path / "unpacked" / "set") == inside
        for form in ("wrapped", "flat"):
            assert contents(tmp_path / form / "set.zip") == inside
            found = contents(tmp_path / form)
            assert set(found) == {"set.zip", *files}
            assert {name: found[name] for name in files} == files

    def test_what_is_in_both_is_read_from_the_archive(self, tmp_path):
        make_zip(tmp_path / "set.zip", {"a.wav": b"whole", "b.wav": b"2"})
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "a.wav").write_bytes(b"who")
        found = contents(tmp_path)
        assert (found["set/a.wav"], found["set/b.wav"]) == (b"whole", b"2")

    def test_hidden_files_are_passed_over(self, tmp_path):
        for name in ("a/x.wav", "a/._x.wav", ".cache/y.wav", "__MACOSX/z.wav", "a/.DS_Store"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"1")
        assert list(open_tree(tmp_path).files) == ["a/x.wav"]

    def test_links(self, tmp_path):
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "a.wav").write_bytes(b"1")
        (tmp_path / "private.wav").write_bytes(b"2")
        (tmp_path / "tree" / "inside.wav").symlink_to("a.wav")
        assert list(open_tree(tmp_path / "tree").files) == ["a.wav", "inside.wav"]
        (tmp_path / "tree" / "out.wav").symlink_to(tmp_path / "private.wav")
        with pytest.raises(DataError, match=r"tree/out.wav: a link that leaves the folder .*tree; expected the file"):
            open_tree(tmp_path / "tree")
        (tmp_path / "tree" / "out.wav").unlink()
        (tmp_path / "tree" / "more").symlink_to(tmp_path)
        with pytest.raises(DataError, match=r"tree/more: a link to a folder; expected the folder itself"):
            open_tree(tmp_path / "tree")

    def test_an_unsafe_archive_in_a_folder_is_named(self, tmp_path):
        make_zip(tmp_path / "b.zip", {"../x": b"1"})
        with pytest.raises(DataError, match=r"b\.zip: member '\.\./x' has an unsafe name"):
            open_tree(tmp_path)
        with pytest.raises(DataError, match=r"nowhere: no such folder or zip archive"):
            open_tree(tmp_path / "nowhere")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"{", r"not readable as JSON \(Expecting"),
            (b"\xff[]", "not readable as JSON .*utf-8"),
            (b'{"a": 1}', r"value \{'a': 1\}; expected a list of JSON objects"),
            (b"[{}, 3]", ", row 2: value 3; expected a JSON object"),
            (b'[{"a": 1, "a": 2}]', "a name stands twice in an object"),
            (b"[" * 100_000, "not readable as JSON"),
        ],
    )
    def test_json_that_is_no_table(self, tmp_path, text, message):
        tree = open_tree(make_zip(tmp_path / "a.zip", {"t.json": text}))
        with pytest.raises(DataError, match=rf"^{tmp_path}/a\.zip/t\.json.*{message}"):
            tree.read_json_table("t.json")

    def test_json_table(self, tmp_path):
        tree = open_tree(make_zip(tmp_path / "a.zip", {"t.json": '\ufeff[{"a": "é"}, {"b": 1}]'.encode()}))
        table = tree.read_json_table("t.json")
        assert (table.rows, table.columns) == ([{"a": "é"}, {"b": 1}], ("a", "b"))
        assert table.place(1, "b") == f"{tmp_path}/a.zip/t.json, row 2, column 'b'"
