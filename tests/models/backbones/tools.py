"""What the files in `families/` build miniatures with, and how they run the official classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones.audio_language_model import QUESTION, messages
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn


def small_tokenizer(kind: Any, special_tokens: Sequence[str], vocabulary: int = 512, **options: Any) -> Any:
    """A tokenizer of a class, with a small byte-level vocabulary."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([QUESTION, "Situation: Context: Response: the user the assistant"], trainer)
    made = json.loads(bpe.to_str())["model"]
    tokenizer = kind(vocab=made["vocab"], merges=[tuple(pair) for pair in made["merges"]], **options)
    tokenizer.add_tokens(list(special_tokens), special_tokens=True)
    return tokenizer


def joined(message: Mapping[str, Any], audio_token: str) -> str:
    """The content of a message as one text; apart from the code that is tested, which writes it by itself."""
    return "".join(piece.get("text", audio_token) for piece in message["content"])


def omni_processor(kind: Any, folder: Path, template: str) -> Any:
    """The official processor without those of images and videos, which need torchvision."""
    nothing = SimpleNamespace(model_input_names=[], merge_size=2)
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with mock.patch.object(kind, "check_argument_for_proper_class"):
        return kind(nothing, nothing, extractor, tokenizer, chat_template=template)


def processed(processor: Any, pair: Pair, **options: Any) -> Any:
    """What an official processor makes of the messages of a pair."""
    chat = processor.apply_chat_template(messages(pair), tokenize=False, add_generation_prompt=True)
    return processor(text=chat, audio=[clip.samples for clip in pair.clips], return_tensors="pt", **options)


def with_spans(text: str, token: str, spans: Sequence[str]) -> str:
    """The text with these in place of its audio tokens."""
    return "".join(part + span for part, span in zip(text.split(token), [*spans, ""], strict=True))


def gemma_tokenizer(further: Sequence[str], special: Mapping[str, str], template: str, added: Sequence[str]) -> Any:
    """A tokenizer of bytes and characters; `further` tokens have the last ids, two of `added` begin and end a turn."""
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *added[:2]]
    text = [*first, *(f"<0x{byte:02X}>" for byte in range(256)), "\n", "\n\n", "▁", *map(chr, range(33, 127))]
    vocab = {token: number for number, token in enumerate([*text, *further])}
    named = {"extra_special_tokens": dict(special), "chat_template": template}
    tokenizer = transformers.GemmaTokenizer(vocab=vocab, merges=[("\n", "\n")], **named)
    tokenizer.add_tokens(list(added), special_tokens=True)
    return tokenizer


def uneven(model: nn.Module) -> None:
    """Norms and scales as trained, not as made."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and ("scale" in name or "norm" in name):
                weight.add_(0.3 * torch.randn(weight.shape))


def louder(model: nn.Module, factor: float = 2.0, but: Sequence[str] = ("embed_positions",)) -> None:
    """Weights larger than those of an untrained model, so that the audio matters."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and not any(word in name for word in but):
                weight.mul_(factor)


def wave_encoder(
    folder: Path,
    model_class: Any,
    but: Sequence[str] = ("embed_positions",),
    return_attention_mask: bool = True,
    **settings: Any,
) -> None:
    """An encoder over the waveform with two layers."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    model = model_class(model_class.config_class(**sizes, **positions, conv_dim=(16,) * 7, **settings))
    louder(model, 5.0, but)
    model.save_pretrained(folder)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=return_attention_mask)
    extractor.save_pretrained(folder)


def official_encoder(model_class: Any, folder: Path) -> tuple[nn.Module, Callable[..., Tensor]]:
    """The official class, and what makes of samples the states of all its layers, side by side."""
    model = model_class.from_pretrained(folder).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)

    def run(samples: np.ndarray) -> Tensor:
        inputs = extractor(samples, sampling_rate=16_000, return_tensors="pt")
        return torch.cat(model(**inputs, output_hidden_states=True).hidden_states, -1)[0]

    return model, run
