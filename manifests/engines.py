"""Who does the work: worker processes on this machine, or a Ray cluster."""

from __future__ import annotations

from typing import Literal

from .meter import Meter
from .parts import Parts
from .places import Place, worker_devices
from .run import Engine


def engine(name: Literal["local", "ray"], place: Place, device: str | None, workers: int | None) -> Engine:
    """An engine by its name.

    Args:
        name: Of the engine.
        place: Of this process among several.
        device: As the user has it.
        workers: As the user has it.

    Raises:
        UserError: If workers would be in each other's way, or Ray is not installed.
    """
    if name == "ray":
        from .ray_engine import run_ray

        return lambda parts, meter: run_ray(parts, meter, workers, device)
    devices = worker_devices(place, device, workers)

    def run(parts: Parts, meter: Meter) -> None:
        from .pool import run_pool

        run_pool(parts.job, devices, meter.tell, meter.look)

    return run
