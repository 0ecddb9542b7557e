"""Finds judges and backbones by name, and downloads judges from the Hugging Face hub or uploads them to it.

Torch is not loaded, so that a wrong name is reported at once. A token comes from the environment or from
`hf auth login`; it is never shown."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_url,
    is_offline_mode,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] of httpx, of httpx2 since version 2
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from ..core.errors import DataError, UserError
from ..core.yaml_files import read_yaml
from . import CHECKPOINTS, CONFIG_FILE, JUDGE_FILE, NANO
from .shapes import shapes_of

_NO_LOGIN = "not logged in: set HF_TOKEN or run `hf auth login`"
# No other files of a judge are read, and code is never run
_DOWNLOADED = ["*.json", "*.jinja", "*.md", "*.model", "*.safetensors", "*.txt"]


def is_hub_name(name: str) -> bool:
    """Whether a name has the form ``OWNER/NAME``."""
    return "/" in name and _may_be_on_hub(name)


def check_hub_name(name: str) -> None:
    """Raise a `UserError` if a name does not have the form ``OWNER/NAME``."""
    if not is_hub_name(name):
        raise UserError(f"{name!r}: expected OWNER/NAME on the hub")


def _may_be_on_hub(name: str) -> bool:
    """Whether a name is valid on the hub, where some old models have no owner."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def is_judge(path: Path) -> bool:
    """Whether there is a judge folder, a run folder or a checkpoint, by what its files are called."""
    return path.is_file() or (path / JUDGE_FILE).is_file() or (path / CHECKPOINTS).is_dir()


def check_judge(path: Path) -> None:
    """Raise a `UserError` if there is no judge, as `is_judge` says."""
    if not is_judge(path):
        raise UserError(f"{path}: expected a judge folder (with {JUDGE_FILE}), a run folder or a checkpoint")


def require_judge(path: Path, backbone: str | None = None, shapes: bool = False) -> None:
    """Check that a judge and its backbone (or the one it is loaded on now) are available, as far as their names tell;
    with `shapes`, those that come with the package do in place of a backbone.

    Commands call this before they load torch, which takes seconds. Files are checked when they are loaded.

    Raises:
        UserError: As `judge_folder` and `require_backbone`; also if there is no judge of that name.
    """
    # A folder comes first, also where it is called like a judge on the hub
    if not os.path.exists(path) and is_hub_name(path.as_posix()):
        require_hub(path.as_posix(), None, path.as_posix(), JUDGE_FILE)
        return
    try:
        settings = _settings_of(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    name, revision = backbone or settings.get("backbone"), settings.get("revision")
    if isinstance(name, str) and isinstance(revision, str | None) and not (shapes and shapes_of(name)):
        require_backbone(name, revision)


def _settings_of(path: Path) -> dict[str, Any]:
    """The settings from which a judge was built, as far as they can be read without torch; empty where they cannot."""
    check_judge(path)
    run = path.parent.parent if path.is_file() else path
    try:
        if (path / JUDGE_FILE).is_file():
            description = json.loads((path / JUDGE_FILE).read_text(encoding="utf-8"))
            tree = None if description.get("export") else description["settings"]  # an export contains its backbone
        else:
            tree = read_yaml(run / CONFIG_FILE)["judge"] if (run / CONFIG_FILE).is_file() else None
    except (DataError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # the error is raised when the judge is loaded
    return tree if isinstance(tree, dict) else {}


def require_backbone(name: str, revision: str | None = None) -> None:
    """Check that a backbone is available: as `require_hub`."""
    if name != NANO:
        require_hub(name, revision, expected_backbone(name))


def expected_backbone(name: str) -> str:
    """The beginning of an error about the name of a backbone."""
    return f"backbone {name!r}: expected {NANO!r}, a hub id or a folder with config.json"


def require_hub(name: str, revision: str | None, what: str, file: str = "config.json") -> None:
    """Check that a model on the hub is available: the hub answers, or the cache has a copy. A folder needs no hub.

    Libraries try six times for each file, half a minute in all. Here one attempt is made, for the one `file` that every
    such model has, at most `HF_HUB_ETAG_TIMEOUT` seconds long (10 by default).

    Raises:
        UserError: If neither has it; the error begins with `what`.
    """
    if os.path.exists(name):
        return
    # Such as ./backbone or /data/qwen: only a folder can be meant
    if not _may_be_on_hub(name):
        raise UserError(f"{what}: no such folder")
    offline = is_offline_mode()
    if not offline and _hub_answers(name, revision, file):
        return
    if isinstance(try_to_load_from_cache(name, file, revision=revision), str):
        # As with HF_HUB_OFFLINE=1, which is read at import alone: each file would wait for the hub again
        constants.HF_HUB_OFFLINE = True
        return
    reason = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({constants.ENDPOINT})"
    raise UserError(
        f"{what}: no such folder, {reason}, and no copy is in the cache {constants.HF_HUB_CACHE}; run "
        f"`hf download {name}` where there is a network, or name a folder"
    )


def _hub_answers(name: str, revision: str | None, file: str) -> bool:
    answered, patience = threading.Event(), constants.HF_HUB_ETAG_TIMEOUT

    def ask() -> None:
        try:
            get_hf_file_metadata(hf_hub_url(name, file, revision=revision), timeout=patience)
        # 404 or 401, too: there is a network, and what loads the model says what is wrong with the name
        except HfHubHTTPError:
            pass  # an answer
        except (HTTPError, OSError):
            return
        answered.set()

    # In a thread, as name resolution has no time limit
    asking = threading.Thread(target=ask, name="hub", daemon=True)
    asking.start()
    asking.join(patience)
    return answered.is_set()


def judge_folder(path: Path, revision: str | None = None) -> Path:
    """The folder of a judge: as it is, or that of a copy of `OWNER/NAME` on the hub, at a commit, tag or branch.

    Raises:
        UserError: If a revision of a folder is asked for, or the hub has no such judge, lets nobody have it, or cannot
            be reached and no copy is in the cache.
    """
    name = path.as_posix()
    if os.path.exists(path) or not is_hub_name(name):
        if revision is not None:
            raise UserError(f"{path}: revision {revision!r} of a folder; expected none, or OWNER/NAME on the hub")
        return path
    require_hub(name, revision, name, JUDGE_FILE)
    with _one_line(f"{name}: no such folder, and no judge on the hub"):
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_DOWNLOADED))
    if not (folder / JUDGE_FILE).is_file():
        raise UserError(f"{name}: no judge on the hub: it has no {JUDGE_FILE}")
    return folder


def push_to_hub(folder: Path, name: str, private: bool) -> str:
    """Upload the folder of a judge to the hub as `OWNER/NAME`, in one commit; `private` applies to a new repository.

    Returns:
        Address of the repository.

    Raises:
        UserError: If nobody is logged in, the user has no right to it, or the hub cannot be reached.
    """
    check_hub_name(name)
    with _one_line(f"push to {name}"):
        api = HfApi()
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Judge {folder.name}")
    return str(repository)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turn errors of the hub into one line, without the request or its headers, which may hold a token."""
    try:
        yield
    except (HTTPError, OSError, LocalTokenNotFoundError) as error:
        match error:
            case RepositoryNotFoundError():
                meaning = "not found; expected a public one, or `hf auth login` by who may see it"
            case RevisionNotFoundError():
                meaning = "no such revision; expected a commit, tag or branch of it"
            case HfHubHTTPError():
                status = error.response.status_code
                known = {401: _NO_LOGIN, 403: "this login has no right to it"}
                meaning = known.get(status, f"the hub answered {status}")
            case LocalTokenNotFoundError():
                meaning = _NO_LOGIN
            case LocalEntryNotFoundError() | OfflineModeIsEnabled():
                meaning = "the hub cannot be reached (or HF_HUB_OFFLINE is set) and no copy is in the cache"
            case HTTPError() | ConnectionError():
                meaning = f"the hub cannot be reached ({type(error).__name__})"
            case _:
                meaning = f"{type(error).__name__} {getattr(error, 'strerror', None) or ''}".rstrip()
        raise UserError(f"{what}: {meaning}") from None
