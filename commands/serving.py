"""The command that serves a judge. Heavy imports stand inside it, so that help is instant."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from ..data_modules.errors import UserError
from . import DONE

_EXTRA = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def serve(options: argparse.Namespace) -> int:
    """Serve a judge over HTTP, with a page to try it.

    POST /v1/score takes a form with the files `response` and `context` and answers with JSON; /openapi.json describes
    it and all the rest. Requests that come together are scored together. A full queue refuses (429), a slow or large
    upload is cut (408, 413). SIGTERM lets in nobody new (503) and ends when all the others have their answers.
    If the environment variable EMPATHY_JUDGE_TOKEN is set, clients must send it as a bearer token: printable ASCII.
    """
    _require_extra()
    from ..serving.settings import read_settings, return_memory

    return_memory()  # before threads have heaps
    folder = Path(options.judge)
    settings = read_settings(
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
        open_metrics=options.open_metrics,
    )
    from ..scorer import Scorer
    from ..serving.app import create_app, run
    from ..serving.records import log_json

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

    log_json()
    run(create_app(load, settings), options.host, options.port)
    return DONE


def _require_extra() -> None:
    for name in _EXTRA:
        try:
            importlib.import_module(name)
        except ImportError:
            raise UserError(f"serve: {name} is not installed; pip install 'empathy-judge[serve]'") from None
