"""What other libraries print and the user of a command cannot act on, line by line."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = {
    "bitsandbytes.backends.cpu.ops": logging.ERROR,  # misses a kernel for a packing that is not used
    "lightning.fabric": logging.WARNING,  # which process has which rank
    "lightning.pytorch": logging.WARNING,  # which devices there are, and advertisements
    "matplotlib": logging.ERROR,  # where it keeps its fonts if there is no home
    "torchao": logging.ERROR,  # whether its kernels are there: they are not used
    "torch.utils._pytree": logging.ERROR,  # torchao 0.18 registers what torch 2.15 knows
}
_WARNINGS = (
    r".*`is_gradient_checkpointing` is deprecated",  # PEFT asks transformers
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning asks PyTorch
    r".*invalid escape sequence",  # torchao 0.18, where Python 3.12 or newer compiles it when it is imported
    # What Lightning says about things that are meant
    r".*module\(s\) in eval mode",  # the frozen backbone
    r".*GPU available but not used",  # by a recipe for a CPU
    r".*does not have many workers",
    r".*Checkpoint directory .* exists and is not empty",  # resuming
    r".*number of training batches",
    r".*ended before the epoch ended and your dataloader is not resumable",  # its batches are those that were left
    r".*sync_dist=True",  # what is logged of a validation is the same on every rank
)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Within it these libraries do not log: some do while they are imported. Their levels are put back."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def silence_libraries() -> None:
    """Silence these lines and no others, in this process; warnings that a user can act on stay.

    torchao prints some of them when it is imported: call this before. Lightning sets the levels of its
    loggers when it is imported: call this once more afterwards.
    """
    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    # A second call adds no filter twice: each is tried on every warning
    known = {entry[1].pattern for entry in warnings.filters if entry[0] == "ignore" and entry[1] is not None}
    for message in _WARNINGS:
        if message not in known:
            warnings.filterwarnings("ignore", message=message)
    shown = threading.excepthook
    if shown.__module__ != __name__:

        def in_thread(error: threading.ExceptHookArgs) -> None:
            # A traceback of TensorBoard's writer, such as of a full disk: the next write raises the same error
            if type(error.thread).__name__ != "_AsyncWriterThread":
                shown(error)

        threading.excepthook = in_thread
