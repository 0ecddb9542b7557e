"""Judges on the Hugging Face hub: fetched by name, and put there. A token comes out of the environment or of the login
of `hf auth login`; it is never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] of httpx, of httpx2 since version 2
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..data_modules.errors import UserError
from .file_names import JUDGE_FILE

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NO_LOGIN = "not logged in: set HF_TOKEN or run `hf auth login`"
_KINDS = ["*.json", "*.jinja", "*.md", "*.model", "*.safetensors", "*.txt"]
"""What is fetched: a judge has no other files that are read, and code is never run."""


def judge_folder(path: Path, revision: str | None = None) -> Path:
    """The folder of a judge: as it is, or that of a copy of a judge on the hub.

    Args:
        path: A folder or file, or `OWNER/NAME` on the hub where there is no such folder.
        revision: Commit, tag or branch on the hub.

    Raises:
        UserError: If a revision of a folder is asked for, or the hub has no such judge, lets nobody have it, or cannot
            be reached and no copy is in the cache.
    """
    name = path.as_posix()
    if path.exists() or not _NAME.fullmatch(name):
        if revision is not None:
            raise UserError(f"{path}: revision {revision!r} of a folder; expected none, or OWNER/NAME on the hub")
        return path
    with _one_line(f"{name}: no such folder, and no judge on the hub"):
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_KINDS))
    if not (folder / JUDGE_FILE).is_file():
        raise UserError(f"{name}: no judge on the hub: it has no {JUDGE_FILE}")
    return folder


def push_to_hub(folder: Path, name: str, private: bool) -> str:
    """Put the folder of a judge on the hub, in one commit.

    Args:
        folder: Of the judge.
        name: `OWNER/NAME`; made if it is not there.
        private: Of a repository that is made.

    Returns:
        Address of the repository.

    Raises:
        UserError: If nobody is logged in, who is has no right to it, or the hub cannot be reached.
    """
    check_hub_name(name)
    with _one_line(f"push to {name}"):
        api = HfApi()
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Judge {folder.name}")
    return str(made)


def check_hub_name(name: str) -> None:
    """A name on the hub.

    Raises:
        UserError: If it is none.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r}: expected OWNER/NAME on the hub")


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Errors of the hub as a user can mend them; nothing of a request or its headers is repeated.

    Raises:
        UserError: For each of them.
    """
    try:
        yield
    except RepositoryNotFoundError:
        raise UserError(f"{what}: not found; expected a public one, or `hf auth login` by who may see it") from None
    except RevisionNotFoundError:
        raise UserError(f"{what}: no such revision; expected a commit, tag or branch of it") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        meaning = {401: _NO_LOGIN, 403: "this login has no right to it"}
        raise UserError(f"{what}: {meaning.get(status, f'the hub answered {status}')}") from None
    except LocalTokenNotFoundError:
        raise UserError(f"{what}: {_NO_LOGIN}") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise UserError(
            f"{what}: the hub cannot be reached (or HF_HUB_OFFLINE is set) and no copy is in the cache"
        ) from None
    except (HTTPError, ConnectionError) as error:
        raise UserError(f"{what}: the hub cannot be reached ({type(error).__name__})") from None
    except OSError as error:
        raise UserError(f"{what}: {type(error).__name__} {error.strerror or ''}".rstrip()) from None
