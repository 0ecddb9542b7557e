"""Text generation with a backbone and its LM head, which judges do not have: for prompted LLM judges."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, DynamicCache, GenerationConfig
from transformers.utils.hub import extract_commit_hash

from ..data_modules.audio import AudioSource, decode
from ..data_modules.errors import UserError
from ..data_modules.folders import file_hash
from . import NANO
from .backbones import NANO_FOLDER, load_backbone, read_config
from .backbones.audio_language_model import AudioLanguageModel, Message
from .backbones.base import Checkpoint
from .backbones.deferred import own_file, weight_files
from .backbones.inputs import Inputs
from .backbones.loading import one_line

_WEIGHTS_AND_WORDS = {".safetensors", ".json", ".jinja", ".model", ".txt"}
"""Files of a checkpoint that answers depend on."""
_KEY = re.compile(r"(?:^|\.)lm_head\.weight$")
"""Of the LM head in every layout of every family; a talker's have other names."""
_ROWS = 16_384  # rows of the vocabulary that are in float32 at a time


@dataclass(frozen=True)
class Chat:
    """What is said to a model: turns, of which the last is to be answered and in which `{"type": "audio"}` marks where
    a clip goes, and these clips in order."""

    messages: Sequence[Message]
    clips: Sequence[AudioSource]


class Written(NamedTuple):
    """An answer: its text without special tokens, how many tokens were written (the one that ends it included), and
    whether it was not cut off."""

    text: str
    tokens: int
    complete: bool


@contextmanager
def kv_cache(language_model: nn.Module) -> Iterator[None]:
    """Within this context, each call of the language model continues the tokens of the calls before, row by row. Their
    keys and values in every layer are kept, and their mask `(batch, tokens)`, 1 for real tokens and 0 for padding."""
    cache = DynamicCache(config=language_model.config)  # pyright: ignore[reportArgumentType]
    mask: Tensor | None = None

    def extend(module: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        nonlocal mask
        new, positions = options["attention_mask"], options["position_ids"]
        if mask is not None:
            positions = positions + mask.sum(-1, keepdim=True)
            new = torch.cat([mask, new], -1)
        mask = new
        extended = {"attention_mask": new, "position_ids": positions, "past_key_values": cache, "use_cache": True}
        return args, options | extended

    handle = language_model.register_forward_pre_hook(extend, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


class AnsweringModel:
    """A generative backbone with its LM head, its own chat template and processor.

    Clips and chats are read as the judge of the same backbone reads them, which the tests of its family compare with
    the official classes. It reads one chat at a time, so that an answer depends on its chat alone.

    Args:
        checkpoint: What to load and how. Without weights, chats can be written and nothing can be answered.
        device: Where it runs; where the weights were spread over several, where answers are chosen.

    Raises:
        UserError: If there is no such checkpoint, or it has no language model or no LM head.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        checkpoint = _here(checkpoint)
        backbone = load_backbone(checkpoint)
        if not isinstance(backbone, AudioLanguageModel):
            raise UserError(
                f"backbone {checkpoint.name!r}: an encoder without a language model, which cannot answer; expected a "
                "family with one, such as qwen2_audio, qwen2_5_omni or voxtral"
            )
        self._backbone, self._device = backbone, device
        self._language_model = backbone.language_model
        self._ends = _ends(checkpoint, backbone.tokenizer)
        self._head: LMHead | None = None
        if checkpoint.weights:
            if checkpoint.device_map is None:
                backbone.network.to(device)  # first: tied embeddings are then held once
            self._head = load_lm_head(checkpoint, backbone).to(device)

    def spellings(self, texts: Sequence[str]) -> dict[int, str]:
        """Tokens that are one of these texts, with or without blanks around it: id -> text.

        Raises:
            UserError: If no token is one of them.
        """
        tokenizer = self._backbone.tokenizer
        written = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        by_token = {token: text.strip() for token, text in enumerate(written) if text.strip() in texts}
        missing = [text for text in texts if text not in by_token.values()]
        if missing:
            raise UserError(
                f"backbone {self._backbone.name!r}: its tokenizer has no single token for {missing[0]!r}; use "
                "answers=text"
            )
        return by_token

    @torch.inference_mode()
    def first_token(self, chat: Chat) -> tuple[Tensor, int, int]:
        """Probabilities of the first token of an answer.

        Returns:
            Natural logarithms of the probabilities of all tokens `(vocabulary,)`, float32, on the CPU; how many tokens
            of text and of audio were read.

        Raises:
            AudioError: If a clip is longer than the model's maximum audio length.
            UserError: If a text holds a token with a meaning of its own, or the chat is too long.
        """
        inputs, text_tokens, audio_tokens = self._read(chat)
        return self._scores(inputs).log_softmax(-1).cpu(), text_tokens, audio_tokens

    @torch.inference_mode()
    def write(self, chat: Chat, max_tokens: int, temperature: float = 0.0) -> tuple[Written, int, int]:
        """The answer, of at most `max_tokens`, and how many tokens of text and of audio were read. Raises as
        `first_token`.

        With a temperature above 0 it is sampled from the whole distribution, else each token is the likeliest. What a
        checkpoint recommends for conversations (top-p, penalties for repetition) is not applied.
        """
        inputs, text_tokens, audio_tokens = self._read(chat)
        tokens: list[int] = []
        with kv_cache(self._language_model):
            while len(tokens) < max_tokens and not self._ends.intersection(tokens[-1:]):
                scores = self._scores(inputs)
                drawn = torch.multinomial((scores / temperature).softmax(-1), 1) if temperature else scores.argmax()
                tokens.append(int(drawn))
                inputs = _continued(drawn.reshape(1, 1).to(inputs.input_ids))
        complete = bool(self._ends.intersection(tokens[-1:]))
        text = self._backbone.tokenizer.decode(tokens, skip_special_tokens=True)
        return Written(text, len(tokens), complete), text_tokens, audio_tokens

    def text_of(self, token: int) -> str:
        """The text of a token."""
        return self._backbone.tokenizer.decode([token])

    def _scores(self, inputs: Inputs) -> Tensor:
        """Scores of the next token `(vocabulary,)`, float32."""
        assert self._head is not None, "loaded without weights"
        with torch.autocast(self._device.type, enabled=False):
            return self._head(self._backbone.hidden_states(inputs)[0, -1])

    def _read(self, chat: Chat) -> tuple[Inputs, int, int]:
        """A chat as the language model reads it, and how many tokens of text and of audio it has."""
        backbone = self._backbone
        clips = [decode(clip, backbone.sampling_rate, backbone.max_seconds) for clip in chat.clips]
        counts = [backbone.audio_tokens(len(clip)) for clip in clips]
        ids = backbone.prepare_chat(chat.messages, counts)
        longest = backbone.max_tokens
        if longest is not None and ids.shape[1] > longest:
            raise UserError(
                f"backbone {backbone.name!r}: a question of {ids.shape[1]:,} tokens; expected at most {longest:,}, "
                "with shorter clips or fewer examples"
            )
        inputs = replace(
            _continued(ids),
            audio_index=torch.arange(sum(counts)),
            audio_positions=(ids[0] == backbone.audio_token_id).nonzero()[:, 0],
            clips=backbone.prepare_clips(clips) if clips else None,
        ).to(self._device)
        return inputs, ids.shape[1] - sum(counts), sum(counts)


def _continued(ids: Tensor) -> Inputs:
    """Tokens `(1, tokens)` without audio."""
    nothing = torch.zeros(0, dtype=torch.long, device=ids.device)
    nobody = torch.zeros_like(ids, dtype=torch.bool)
    return Inputs(ids, torch.ones_like(ids), nobody, nothing, nothing, padding_last=True)


def _ends(checkpoint: Checkpoint, tokenizer: Any) -> set[int]:
    """Tokens that end an answer: the tokenizer's, and those of generation_config.json where there is one."""
    try:
        revision: Any = checkpoint.revision  # the stubs do not know None
        named = GenerationConfig.from_pretrained(checkpoint.name, revision=revision).eos_token_id
    except OSError:
        named = None
    ends = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    return {int(token) for token in ends if token is not None}


def identity(checkpoint: Checkpoint) -> str:
    """Identifies weights, tokenizer and chat template of a checkpoint: the commit on the hub, or a folder's SHA-256.

    Raises:
        UserError: If there is no such checkpoint.
    """
    resolved = _here(checkpoint)
    folder = Path(resolved.name)
    if folder.is_dir():
        digest = hashlib.sha256()
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.suffix in _WEIGHTS_AND_WORDS and not name.startswith(".") and "/." not in name:
                digest.update(f"{name} {file_hash(path)}\n".encode())
        return digest.hexdigest()
    read_config(resolved.name, resolved.revision)  # raises if there is no such checkpoint
    commit = extract_commit_hash(own_file(resolved, "config.json"), None)
    assert commit is not None, resolved
    return commit


def _here(checkpoint: Checkpoint) -> Checkpoint:
    return replace(checkpoint, name=str(NANO_FOLDER)) if checkpoint.name == NANO else checkpoint


class LMHead(nn.Module):
    """Computes the scores of the next token from hidden states, in float32 whatever the precision of its weights is.

    In bfloat16 the scores of a large vocabulary would be multiples of 1/8, and answers would tie.

    Args:
        weight: `(vocabulary, hidden)`; that of the embeddings where the family ties both.
        text_config: Of the language model: some families bound the scores (Gemma).
    """

    weight: Tensor

    def __init__(self, weight: Tensor, text_config: Any) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self._bound: float | None = getattr(text_config, "final_logit_softcapping", None)

    def forward(self, hidden: Tensor) -> Tensor:
        """Scores `(..., vocabulary)`, float32, of hidden states `(..., hidden)`."""
        states = hidden.to(self.weight.device, torch.float32)
        scores = torch.cat([states @ rows.float().T for rows in self.weight.split(_ROWS)], -1)
        return scores if self._bound is None else self._bound * torch.tanh(scores / self._bound)


def load_lm_head(checkpoint: Checkpoint, backbone: AudioLanguageModel) -> LMHead:
    """Load the head from the files of a backbone, or use its embeddings where these are the head.

    Raises:
        UserError: If the checkpoint has no such weights, or they do not fit the language model.
    """
    language_model = backbone.language_model
    try:
        weight = _stored(checkpoint)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"backbone {checkpoint.name!r}: no LM head can be read: {one_line(error)}") from None
    if weight is None:
        config: Any = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
        # the configuration of the whole model or that of its language model may say it
        if not (config.tie_word_embeddings or language_model.config.tie_word_embeddings):
            raise UserError(f"backbone {checkpoint.name!r}: no LM head among its weights: it cannot answer in words")
        weight = language_model.get_input_embeddings().weight.detach()
    if weight.ndim != 2 or weight.shape[1] != backbone.hidden_size:
        shape, hidden = tuple(weight.shape), backbone.hidden_size
        raise UserError(f"backbone {checkpoint.name!r}: LM head of shape {shape}; expected (vocabulary, {hidden})")
    return LMHead(weight.to(checkpoint.dtype), language_model.config)


def _stored(checkpoint: Checkpoint) -> Tensor | None:
    """The first LM head weight in the checkpoint; None where it has none of its own."""
    for path in weight_files(checkpoint, _KEY):
        with safe_open(path, framework="pt") as tensors:
            for key in filter(_KEY.search, tensors.keys()):
                return tensors.get_tensor(key)
    return None
