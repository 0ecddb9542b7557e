"""A chat as token ids, with as many audio tokens as there are audio states."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....data_modules.errors import UserError, shown
from ....data_modules.schema import Pair
from .prompt import Message, messages

_MARKUP = re.compile(r"<.*>|\[.*\]")


class Chat:
    """Renders chats in a family's own template and puts audio tokens where clips go."""

    def __init__(
        self,
        processor: Any,
        audio_token: str,
        *,
        render: Callable[[Sequence[Message]], str] | None = None,
        span: Callable[[int], str] | None = None,
    ) -> None:
        """Wrap a processor.

        Args:
            processor: With `tokenizer` and, unless `render` is given, `apply_chat_template`.
            audio_token: What stands in the template once for each clip, and afterwards once for each audio state.
            render: A chat, up to where its last message is answered, with one `audio_token` for each clip; by default
                the template.
            span: What takes a clip's place for a number of audio tokens; by default as many times `audio_token`.
        """
        self.tokenizer = processor.tokenizer
        self.audio_token = audio_token
        self.audio_token_id: int = self.tokenizer.convert_tokens_to_ids(audio_token)
        self._render = render or (
            lambda chat: processor.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
        )
        # turn markers are not always among the special tokens; runs of blanks and line ends may be among the added ones
        added = [token for token in self.tokenizer.get_added_vocab() if _MARKUP.fullmatch(token)]
        self._markup = sorted({audio_token, *self.tokenizer.all_special_tokens, *added}, key=len, reverse=True)
        self._span = span or (lambda count: audio_token * count)

    def prepare(
        self, pairs: Sequence[Pair], audio_tokens: Sequence[Sequence[int]], padding_side: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention mask and mask of audio tokens, each `(batch, tokens)`; see `Backbone.prepare_text`.

        Raises:
            UserError: If a situation holds a token with a meaning of its own, such as the audio token.
            RuntimeError: If a template does not have one audio token for each clip.
        """
        texts = [self._text(pair, counts) for pair, counts in zip(pairs, audio_tokens, strict=True)]
        # the template has written every special token that belongs there
        made = self.tokenizer(
            texts, padding=True, padding_side=padding_side, add_special_tokens=False, return_tensors="pt"
        )
        is_audio = made["input_ids"] == self.audio_token_id
        expected = torch.tensor([sum(counts) for counts in audio_tokens])
        if not torch.equal(is_audio.sum(-1), expected):
            raise RuntimeError(
                f"audio tokens in the text {is_audio.sum(-1).tolist()}, audio states {expected.tolist()}"
            )
        return made["input_ids"], made["attention_mask"], is_audio

    def write(self, chat: Sequence[Message], audio_tokens: Sequence[int]) -> Tensor:
        """Token ids `(1, tokens)` of any chat, up to where its last message is answered.

        Args:
            chat: Its turns; the texts are whoever's they are.
            audio_tokens: Of each clip.

        Raises:
            UserError: If a text holds a token with a meaning of its own.
            RuntimeError: If the template does not have one audio token for each clip.
        """
        for piece in (piece for message in chat for piece in message["content"]):
            self._check(piece.get("text", ""), f"the text {shown(piece.get('text'))}")
        text = self._filled(chat, audio_tokens)
        return self.tokenizer([text], add_special_tokens=False, return_tensors="pt")["input_ids"]

    def _check(self, text: str, what: str) -> None:
        for token in self._markup:
            if token in text:
                raise UserError(f"{what} may not contain {token}")

    def _text(self, pair: Pair, counts: Sequence[int]) -> str:
        self._check(pair.situation or "", f"pair {pair.pair_id!r}: situation text")
        return self._filled(messages(pair), counts)

    def _filled(self, chat: Sequence[Message], counts: Sequence[int]) -> str:
        pieces = self._render(chat).split(self.audio_token)
        if len(pieces) != len(counts) + 1:
            raise RuntimeError(f"the chat template shows {len(pieces) - 1} clips, the chat has {len(counts)}")
        spans = [*map(self._span, counts), ""]
        return "".join(piece + span for piece, span in zip(pieces, spans, strict=True))
