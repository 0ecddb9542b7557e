"""The command that serves a judge. Heavy imports stand inside it, so that help is instant."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

from ..data_modules.errors import UserError
from . import DONE

_EXTRA = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def serve(options: argparse.Namespace) -> int:
    """Serve a judge over HTTP, with a page to try it.

    POST /v1/score takes a form with the files `response` and `context` and answers with JSON; /openapi.json describes
    it and all the rest. Requests that come together are scored together. A full queue refuses (429), a slow or large
    upload is cut (408, 413). SIGTERM lets in nobody new (503) and ends when all the others have their answers.
    If the environment variable EMPATHY_JUDGE_TOKEN is set, clients must send it as a bearer token.
    """
    _require_extra()
    from ..server.memory import return_memory

    return_memory()  # before threads have heaps
    from ..scorer import Scorer
    from ..server.access import TOKEN_VARIABLE
    from ..server.app import create_app
    from ..server.running import log_json, run
    from ..server.settings import Settings

    folder = Path(options.judge)

    def load() -> Scorer:
        return Scorer.from_pretrained(
            folder,
            backbone=options.backbone,
            device=options.device,
            quantization=options.quantization,
            batch_size=options.batch_size,
            cache=options.cache,
            kept_bytes=options.kept_bytes,
        )

    settings = Settings(
        name=folder.resolve().name,
        max_bytes=options.max_bytes,
        max_seconds=options.max_seconds,
        max_queue=options.max_queue,
        max_wait=options.max_wait,
        concurrency=options.concurrency,
        decoders=options.decoders,
        decode_seconds=options.decode_seconds,
        body_seconds=options.body_seconds,
        idle_seconds=options.idle_seconds,
        request_seconds=options.request_seconds,
        drain_seconds=options.drain_seconds,
        token=os.environ.get(TOKEN_VARIABLE, "").strip() or None,
        open_metrics=options.open_metrics,
    )
    log_json()
    run(create_app(load, settings), options.host, options.port)
    return DONE


def _require_extra() -> None:
    for name in _EXTRA:
        try:
            importlib.import_module(name)
        except ImportError:
            raise UserError(f"serve: {name} is not installed; accepted: pip install 'empathy-judge[serve]'") from None
