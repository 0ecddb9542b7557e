"""Loads weights and processors from a folder or the hub, with strict checks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoFeatureExtractor,
    AutoProcessor,
    AutoTokenizer,
    BitsAndBytesConfig,
    ProcessorMixin,
    TorchAoConfig,
)

from ...core.errors import UserError, raised_in
from .attention import KERNEL
from .base import Backbone, Checkpoint
from .deferred import keeps, own_file, short_dtype

NF4_BLOCK = 64
"""Number of 4-bit values that share a scale."""
# Where a repository has no safetensors, transformers would ask a public service to convert it, with the user's token
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "true")


def load_model(family: type[Backbone], checkpoint: Checkpoint) -> Any:
    """Load the model of a family; model and checkpoint must have the same weights.

    The weights are read into place one after the other: there is never a second copy in memory.

    Raises:
        UserError: If weights are missing, surplus or misshapen, are not in safetensors files, an adapter lies beside
            them that nobody asked for, or the attention kernel is not installed.
    """
    with quiet_transformers():  # of Qwen's rotation, and of tokens of parts that are not loaded
        config = family.config_of(checkpoint)
    kernels = family.kernels(checkpoint.attention)
    kernels = {part: KERNEL if kernel == "sdpa" else kernel for part, kernel in kernels.items()}
    options: dict[str, Any] = {"dtype": checkpoint.dtype}
    # transformers takes one kernel for all, or a mapping where parts need unlike ones
    options["attn_implementation"] = kernels if len(kernels) > 1 else kernels[""]
    with _in_one_line(checkpoint):
        loader = _loader(family, checkpoint)

        def without_weights() -> Any:
            model_config = config or loader.config_class.from_pretrained(checkpoint.name, revision=checkpoint.revision)
            with torch.device("meta"), quiet_transformers():
                return loader._from_config(model_config, **options)

        # Shapes alone, to count with: nothing is read or allocated
        if not checkpoint.weights:
            model = without_weights()
            for part in family.float32_parts:
                model.get_submodule(part).float()
            return model
        _refuse_adapter(checkpoint)
        if checkpoint.quantization != "none":
            unquantized = [*family.unquantized(), "lm_head"]
            if checkpoint.quantization == "nf4":
                unquantized += _across_blocks(without_weights(), _patterns(unquantized))
                options["quantization_config"] = nf4(checkpoint.dtype, unquantized)
                # Without a map it would be the first GPU, whichever this process is to use
                options["device_map"] = {"": "cpu"}
            else:
                options["quantization_config"] = int8(unquantized)
        if checkpoint.device_map is not None:
            options["device_map"] = checkpoint.device_map
        with quiet_transformers():  # what it reports is an error below
            try:
                model, report = loader.from_pretrained(
                    checkpoint.name,
                    config=config,
                    revision=checkpoint.revision,
                    use_safetensors=True,  # a pickle can run code
                    key_mapping=family.key_mapping,
                    output_loading_info=True,
                    **options,
                )
            except OSError as error:
                name = checkpoint.name
                raise UserError(
                    f"backbone {name!r}: {one_line(error)} Weights are read from safetensors alone. On the hub, they "
                    "may be in a pull request of SFconvertbot: give its revision, such as refs/pr/1. Or convert a .bin "
                    f"that you trust: AutoModel.from_pretrained({name!r}).save_pretrained(FOLDER), and copy "
                    "preprocessor_config.json and tokenizer files beside it"
                ) from None
    check_report(checkpoint.name, report, family.ignored_keys, model)
    if getattr(model, "hf_quantizer", None) is not None:
        _read_4_bits_alike(model, checkpoint)
    return model


def _loader(family: type[Backbone], checkpoint: Checkpoint) -> Any:
    """The official class, or one under it, since `transformers` asks the class how weights are loaded."""
    model_class, members = family.model_class, dict[str, Any]()
    if checkpoint.depth is not None:
        model_class = _shallow(model_class, checkpoint, family.layout.stored(family.layers_path) or "")
    if family.float32_parts:  # weights that were rounded while they are loaded would stay rounded
        members["_keep_in_fp32_modules_strict"] = set(family.float32_parts)
    deferred = checkpoint.deferred and checkpoint.weights and checkpoint.dtype == torch.float32
    if deferred and (short := short_dtype(checkpoint)) is not None:
        members |= keeps(short, model_class)
    members |= {"__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), members) if len(members) > 1 else model_class


@contextmanager
def _in_one_line(checkpoint: Checkpoint, what: str = "") -> Iterator[None]:
    """Within this context, a library's error about files that are missing, broken or do not fit, or about what is not
    installed, becomes a `UserError` of one line about this backbone."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ImportError, ValueError, RuntimeError, SafetensorError) as error:
        text = one_line(error)
        if isinstance(error, ImportError) and re.search("torchao|bitsandbytes", text):
            text += "; expected what pip install 'empathy-judge[quantization]' brings"
        raise UserError(f"backbone {checkpoint.name!r}: {what}{text}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        if raised_in(error, __name__.partition(".")[0]):
            raise
        # libraries calculate with what config.json says before they look at it
        text = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(
            f"backbone {checkpoint.name!r}: {what}a value of config.json or of the processor's files cannot be used "
            f"({text}); expected them as they were published"
        ) from None


def layers_read(depth: int | float, count: int, name: str) -> int:
    """How many of so many layers of a backbone a depth is, a number or a share.

    Raises:
        UserError: If there are fewer.
    """
    layers = depth if isinstance(depth, int) else max(1, round(depth * count))
    if layers > count:
        raise UserError(f"depth {depth}: backbone {name!r} has {count} layers")
    return layers


def _shallow(model_class: Any, checkpoint: Checkpoint, path: str) -> Any:
    """A class whose models have only the first layers (`Checkpoint.depth`) of the list at this path.

    `transformers` makes a model without memory for weights, and then reads the weights that the model has: layers that
    are removed in between are neither read nor allocated. The configuration stays that of the whole model: it says
    which layers share keys and values (Gemma) and of which kind each layer is. A depth that is a share is rounded, to
    at least one layer.
    """

    def build(model: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(model, *args, **kwargs)
        layers = model.get_submodule(path)
        assert isinstance(layers, nn.ModuleList)
        depth, count = checkpoint.depth, len(layers)
        assert depth is not None
        remaining = layers_read(depth, count, checkpoint.name)
        above = {
            f"{path}.{number}.{name}" for number in range(remaining, count) for name in layers[number].state_dict()
        }
        # a key that finds no weight is reported as it is in the file, with the prefix of the base model
        model.weights_above = above | {f"{model.base_model_prefix}.{name}" for name in above}
        del layers[remaining:]

    return type(model_class.__name__, (model_class,), {"__init__": build, "__module__": model_class.__module__})


def _across_blocks(model: nn.Module, unquantized: Sequence[str]) -> list[str]:
    """Kinds of linear layers, beside those of these patterns, whose rows are not whole blocks of 4-bit weights; they
    keep their precision.

    Where a CPU has AVX-512, bitsandbytes 0.50 starts a new block with each row; when it quantizes, and on every other
    machine, blocks run on across rows. Such a layer would be read with the scales of neighbouring blocks.
    """
    return sorted(
        {
            ".".join(name.split(".")[-2:])
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module.in_features % NF4_BLOCK
            if not any(re.match(rf"{pattern}(\.|$)", name) for pattern in unquantized)
        }
    )


def _read_4_bits_alike(model: nn.Module, checkpoint: Checkpoint) -> None:
    """4-bit weights stay in the packing of QLoRA on every CPU: the same file, and the same scores, on all of them.

    On CPUs with AVX512-BF16 bitsandbytes 0.50 would repack each weight in its first forward pass, which fails unless
    rows divide by 64 and columns by 32, rounds activations and scales to bfloat16 whatever the compute dtype, and
    changes weights that LoRA is being trained on. Without it a CPU dequantizes a weight each time it is used, as CPUs
    without these instructions do.
    """
    module: Any
    for name, module in model.named_modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):  # of bitsandbytes' Linear4bit
            module.support_avx512bf16_for_cpu = False
            if module.in_features % NF4_BLOCK:
                raise UserError(
                    f"backbone {checkpoint.name!r}: {name} has rows of {module.in_features} values in 4 bits, which "
                    f"CPUs read in different ways; expected a multiple of {NF4_BLOCK}: export the judge again"
                )


def _refuse_adapter(checkpoint: Checkpoint) -> None:
    """Refuse a foreign adapter beside the weights: `transformers` would load it unasked."""
    if own_file(checkpoint, "adapter_config.json") is not None:
        raise UserError(
            f"backbone {checkpoint.name!r}: has an adapter (adapter_config.json) beside its weights, which would not "
            "be used; expected weights that it was merged into (PeftModel.merge_and_unload), or a folder without it"
        )


def check_report(name: str, report: dict[str, Any], ignored_keys: str, model: Any) -> None:
    """Refuse a checkpoint that does not fit its model, also where `transformers` would accept it.

    Keys that are ignored (see `Backbone`) and weights above the layers that are read are passed over.
    """
    missing, unexpected = (
        sorted(key for key in report[kind] if not re.search(ignored_keys, key))
        for kind in ("missing_keys", "unexpected_keys")
    )
    above = getattr(model, "weights_above", ())  # see `_shallow`
    unexpected = [key for key in unexpected if key not in above]
    mismatched = sorted(str(key) for key in report["mismatched_keys"])
    if missing or unexpected or mismatched:
        raise UserError(
            f"{name}: not a complete checkpoint of its family: missing {missing[:3]}, unexpected {unexpected[:3]}, "
            f"of another shape {mismatched[:3]}"
        )


def nf4(compute_dtype: torch.dtype, unquantized: Sequence[str]) -> BitsAndBytesConfig:
    """4-bit NormalFloat with double quantization (QLoRA, Dettmers et al., 2023); products in `compute_dtype`."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
        llm_int8_skip_modules=_patterns(unquantized),
    )


def int8(unquantized: Sequence[str]) -> TorchAoConfig:
    """8-bit integers with one scale for each row of a weight; activations keep their precision."""
    from torchao.quantization import Int8WeightOnlyConfig

    # version 2 can be written to safetensors files; the options of the compiler are left alone
    kind = Int8WeightOnlyConfig(version=2, set_inductor_config=False)
    return TorchAoConfig(kind, modules_to_not_convert=_patterns(unquantized))


def _patterns(names: Sequence[str]) -> list[str]:
    """Regular expressions for these names; `transformers` matches them from the start of a full name."""
    return [rf".*{re.escape(name)}" for name in names]


def load_processor(checkpoint: Checkpoint, **options: Any) -> Any:
    """The processor (tokenizer and feature extractor) beside the weights; `options` as for `AutoProcessor`."""
    return _load(AutoProcessor, "processor", checkpoint, **options)


def load_feature_extractor(checkpoint: Checkpoint) -> Any:
    """The feature extractor beside the weights."""
    return _load(AutoFeatureExtractor, "feature extractor", checkpoint)


def check_extractor(name: str, extractor: Any, class_name: str, values: Mapping[str, float] | None = None) -> None:
    """Refuse a feature extractor of another model: some folders are put together by hand.

    Args:
        name: Of the backbone.
        extractor: The feature extractor beside its weights.
        class_name: Class of the official one.
        values: What it must say, by config.json.

    Raises:
        UserError: If it is another.
    """
    found: dict[str, Any] = {"feature_extractor_type": type(extractor).__name__}
    wanted: dict[str, Any] = {"feature_extractor_type": class_name, **(values or {})}
    for key, value in wanted.items():
        own = found[key] if key in found else getattr(extractor, key, None)
        if own != value:
            raise UserError(
                f"backbone {name!r}: preprocessor_config.json: {key} {own}; expected {value}, which its weights take: "
                "the file that was published with them"
            )


def _load(loader: Any, what: str, checkpoint: Checkpoint, **options: Any) -> Any:
    with _in_one_line(checkpoint, f"no {what}: "), quiet_transformers():
        if what == "feature extractor" and os.path.isdir(checkpoint.name):
            # transformers would ask whether the folder is in the way of a name on the hub
            files = "preprocessor_config.json", "processor_config.json"
            if not any(os.path.isfile(os.path.join(checkpoint.name, file)) for file in files):
                raise OSError(f"there is no {files[0]}; expected the file that was published with the weights")
        return loader.from_pretrained(checkpoint.name, revision=checkpoint.revision, trust_remote_code=False, **options)


class SpeechProcessor:
    """Tokenizer, feature extractor and chat template of a checkpoint, for families whose own processor also sees.

    The family's own class requires an image and a video processor, and these require torchvision.
    """

    def __init__(self, checkpoint: Checkpoint, audio_token: str | None = None) -> None:
        """`audio_token` = where the tokenizer does not say it."""
        self.feature_extractor: Any = load_feature_extractor(checkpoint)
        self.tokenizer: Any = _load(AutoTokenizer, "tokenizer", checkpoint)
        with _in_one_line(checkpoint, "no tokenizer: "):
            settings, _ = ProcessorMixin.get_processor_dict(checkpoint.name, revision=checkpoint.revision)
        # chat_template.json belongs to the processor, chat_template.jinja to both
        self.tokenizer.chat_template = settings.get("chat_template") or self.tokenizer.chat_template
        if self.tokenizer.chat_template is None:
            raise UserError(f"backbone {checkpoint.name!r}: no chat template")
        self.audio_token: str = audio_token or self.tokenizer.audio_token

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The text of a chat."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def save_pretrained(self, folder: str) -> None:
        """Write what the constructor reads."""
        self.tokenizer.save_pretrained(folder)
        self.feature_extractor.save_pretrained(folder)


def one_line(error: Exception) -> str:
    """What an error says, without line breaks and cut to 300 characters."""
    return " ".join(str(error).split())[:300]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Within this context, `transformers` shows no log lines and no progress bars."""
    verbosity, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()
