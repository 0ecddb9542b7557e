"""An adapter that a checkpoint brings along and that is always on: merged into the weights when they are loaded."""

from __future__ import annotations

from peft import PeftConfig
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from ....data_modules.errors import UserError
from .base import Checkpoint
from .deferred import merge_later, seen_as_float32
from .loading import check_report, quiet_transformers


def merge_own_adapter(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    *,
    required: bool,
    subfolder: str = "",
    targets: str | None = None,
) -> None:
    """Merge the LoRA that lies beside a model's weights into them, so that another can be put on top.

    A weight becomes `W + scale * B A`, rounded once to its own type; in float32 this is the unmerged model to rounding.

    Args:
        model: Without any adapter.
        checkpoint: Where `adapter_config.json` and `adapter_model.safetensors` may be.
        required: The model's configuration says that there is one.
        subfolder: Where they lie in the repository.
        targets: Regular expression of the modules that it is on; by default what its configuration says.

    Raises:
        UserError: If it is missing though required, broken, or does not fit the model.
    """
    found = {
        name: cached_file(
            checkpoint.name,
            name,
            revision=checkpoint.revision,
            subfolder=subfolder,
            _raise_exceptions_for_missing_entries=False,
        )
        for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    missing = [name for name, path in found.items() if path is None]
    if len(missing) == len(found) and not required:
        return
    if missing:
        raise UserError(f"backbone {checkpoint.name!r}: its adapter is incomplete: there is no {missing[0]}")
    try:
        config = PeftConfig.from_pretrained(checkpoint.name, subfolder=subfolder or None, revision=checkpoint.revision)
        if targets is not None:
            config.target_modules = targets  # pyright: ignore[reportAttributeAccessIssue] LoRA's has it
        with seen_as_float32(model), quiet_transformers():  # what it reports is an error below
            report = model.load_adapter(
                peft_config=config,  # pyright: ignore[reportArgumentType] it takes the object too
                adapter_state_dict=load_file(str(found["adapter_model.safetensors"])),
            )
    except (ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"backbone {checkpoint.name!r}: its adapter: {' '.join(str(error).split())[:300]}") from None
    check_report(f"{checkpoint.name}: adapter", report.to_dict(), r"(?!)")
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoraLayer):
            merge_later(layer) if checkpoint.deferred else layer.merge()
            model.set_submodule(name, layer.get_base_layer())
    model._hf_peft_config_loaded = False
    del model.peft_config
