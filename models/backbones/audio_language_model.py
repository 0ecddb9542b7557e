"""A backbone of three parts: an audio tower, a projector and a language model. Base class of most families; one of them
has no tower.

The question is the same for all of them, in neutral words: no transcript, no file name, no label."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...core.errors import TextError, UserError
from ...data_modules.schema import Pair, check_situation
from .attention import HALF, KERNEL, attention_layout, fits_kernel, without_mask
from .base import Backbone, BackbonePart, Checkpoint, Layout, Question
from .inputs import Clips, Inputs, Packed
from .layers import ends_at, passing_on
from .loading import load_processor, one_line
from .packing import pack

LANGUAGE_MODEL = BackbonePart(
    "language_model",
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    layers="language_model.layers",
)
"""Most families' language model: a decoder with gated feed-forward layers."""
Message = Mapping[str, Any]
"""A turn of a chat: its ``role``, and its ``content``: a list of texts and of places of clips, as in `messages`."""
QUESTION = "How well does the voice of the response fit the context?"
_MARKUP = re.compile(r"<.*>|\[.*\]")


class AudioLanguageModel(Backbone):
    """Embeds the text, puts projected audio states where the audio tokens are, and runs the language model.

    A family sets `model_class` and `parts`, says how many tokens a clip has, encodes it, and overrides `network_of`,
    `render`, `audio_span`, `embed`, `project` or `read` where it is special. None of these may keep a reference to a
    linear layer: LoRA replaces it inside its parent.
    """

    layout = Layout({"": "model."})
    layers_path = "language_model.layers"
    final_norm = "language_model.norm"
    processor_of = staticmethod(load_processor)
    own_audio_token: ClassVar[str | None] = None  # the audio token where the processor does not say it
    # False where layers pass on more than one state for each token, so that none can be entered from outside
    entered_at_layers: ClassVar[bool] = True
    tower_width: ClassVar[str] = "hidden_size"  # what the width of the tower's layers is called in its configuration

    @classmethod
    def unquantized(cls) -> list[str]:
        """All parts but the language model."""
        return [part.path for name, part in cls.parts.items() if name != "language_model"]

    @classmethod
    def network_of(cls, model: Any) -> nn.Module:
        """The model inside the generation class."""
        return model.model

    def __init__(self, network: nn.Module, processor: Any, checkpoint: Checkpoint) -> None:
        self.network, self.processor = network, processor
        tower = self.parts.get("audio_tower")
        self.tower: Any = None if tower is None else network.get_submodule(tower.path)  # the audio encoder
        # the decoder without its LM head
        self.language_model: Any = network.get_submodule(self.parts["language_model"].path)
        self.name = checkpoint.name
        self.tokenizer = processor.tokenizer
        self.extractor = processor.feature_extractor
        # what the template shows once for each clip, and the text once for each audio token
        self.audio_token: str = self.own_audio_token or processor.audio_token
        self.audio_token_id: int = self.tokenizer.convert_tokens_to_ids(self.audio_token)
        self.padding_id: int = self.tokenizer.pad_token_id
        self.sampling_rate: int = self.extractor.sampling_rate
        self.hidden_size: int = self.language_model.config.hidden_size
        self.max_tokens = self.language_model.config.max_position_embeddings
        if tower is not None:
            layers: Any = network.get_submodule(tower.layers or "")
            self.audio_size: int = getattr(self.tower.config, self.tower_width)
            self.layer_sizes = len(layers) + 1, self.audio_size
        # turn markers are not always special tokens; the added tokens may also contain runs of blanks and line ends
        added = [token for token in self.tokenizer.get_added_vocab() if _MARKUP.fullmatch(token)]
        self._markup = sorted({self.audio_token, *self.tokenizer.all_special_tokens, *added}, key=len, reverse=True)

    # Text

    def render(self, chat: Sequence[Message]) -> str:
        """A chat, up to where its last message is answered, with one `audio_token` for each clip."""
        return self.processor.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)

    @property
    def audio_span(self) -> str:
        """The text that stands for a clip, with one audio token."""
        return self.audio_token

    def question(self, pair: Pair) -> Question:
        try:
            pieces = self.render(messages(pair)).split(self.audio_token)
        except Exception as error:  # a foreign template may raise anything
            raise UserError(f"backbone {self.name!r}: its chat template fails: {one_line(error)}") from None
        clips = len(pair.context) + 1
        if len(pieces) != clips + 1:
            shows = f"shows {len(pieces) - 1} clips of a chat with {clips}"
            raise UserError(f"backbone {self.name!r}: its chat template {shows}")
        # the template has written all special tokens: a tokenizer that adds its own would begin a second text
        ids = np.array(self.tokenizer(self.audio_span.join(pieces), add_special_tokens=False)["input_ids"])
        is_audio = ids == self.audio_token_id
        if is_audio.sum() != clips:
            raise UserError(f"backbone {self.name!r}: its tokenizer does not read {self.audio_token} as one token")
        return Question(ids, is_audio)

    def check_situation(self, text: object) -> None:
        check_situation(text)
        for token in self._markup:
            if token in str(text or ""):
                raise TextError(f"situation text may not contain {token}", "special token")

    # Clips

    def spectrogram(self, clip: np.ndarray) -> Tensor:
        """The tower's input for a clip `(frames, bins)`; families that make it for several at once override
        `prepare_clips`."""
        raise NotImplementedError

    def prepare_clips(self, clips: Sequence[np.ndarray]) -> Clips:
        """Spectrograms `(clips, frames, bins)`, each computed from its clip alone; zeros pad the shorter ones."""
        spectrograms = [self.spectrogram(clip) for clip in clips]
        return Clips(pad_sequence(spectrograms, batch_first=True), [len(frames) for frames in spectrograms])

    # States

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings `(batch, tokens, hidden)` of token ids; those of audio tokens are replaced."""
        return self.language_model.get_input_embeddings()(ids)

    def project(self, states: Tensor) -> Tensor:
        """From audio states `(states, audio size)` to embeddings `(states, hidden)`."""
        return self.network.get_submodule(self.parts["projector"].path)(states)

    def read(self, ids: Tensor, embeddings: Tensor, mask: Tensor, positions: Tensor, **further: Any) -> Tensor:
        """Last hidden states `(batch, tokens, hidden)` of the language model; `further` are its other arguments."""
        return self.language_model(
            inputs_embeds=embeddings, attention_mask=mask, position_ids=positions, use_cache=False, **further
        ).last_hidden_state

    def hidden_states(self, inputs: Inputs, read: Tensor | None = None) -> Tensor:
        packed = inputs.packed if inputs.hidden is None else None
        numbers = None  # of the tokens that are read, in the rows that are computed
        # The host would wait for the numbers of a mask that is on a GPU
        if read is not None and read.device.type == "cpu":
            # Two equal pairs stand in the same place
            found = np.flatnonzero(read) if packed is None else np.unique(packed.where.numpy()[read.numpy()])
            numbers = torch.from_numpy(found)
        # Real tokens are counted from 0, whichever side the padding is on
        positions = (inputs.attention_mask.cumsum(-1) - 1).clamp(min=0)
        if inputs.hidden is not None:
            # The states that the lower layers would compute are stored: only the others compute
            lower = passing_on(self.layers[: inputs.first], inputs.hidden)
            with lower, attention_layout(inputs.padding_last, None), ends_at(self.layers[-1], numbers):
                return self.read(inputs.input_ids, inputs.hidden, inputs.attention_mask, positions)
        states = inputs.audio_states
        if states is None:
            assert inputs.clips is not None
            states = self.encode_audio(inputs.clips)
        # From here on a batch is either as it came or packed into fewer rows
        tokens, positions = (inputs, positions) if packed is None else (packed, packed.positions)
        embeddings = self.embed(tokens.input_ids)
        # a projector that is fully fine-tuned is float32, also where the language model is bfloat16
        dtype = next(self.network.get_submodule(self.parts["projector"].path).parameters()).dtype
        audio = self.project(states.to(embeddings.device, dtype)).to(embeddings)[tokens.audio_index]
        # By positions that the host knows: a mask of audio tokens would make it wait for the GPU
        flat = embeddings.flatten(0, 1).index_copy(0, tokens.audio_positions.to(embeddings.device), audio)
        embeddings = flat.view_as(embeddings)
        with attention_layout(inputs.padding_last, packed), ends_at(self.layers[-1], numbers):
            hidden = self.read(tokens.input_ids, embeddings, tokens.attention_mask, positions)
        # Back to a row for each pair
        return hidden if packed is None else hidden.flatten(0, 1)[packed.where.to(hidden.device)]

    @property
    def packs(self) -> bool:
        config = self.language_model.config
        kinds = {"full_attention", "sliding_attention"}
        return config._attn_implementation == KERNEL and kinds.issuperset(getattr(config, "layer_types", None) or ())

    def packed(self, inputs: Inputs) -> Packed | None:
        ids, mask = inputs.input_ids, inputs.attention_mask
        if not self.packs:
            return None
        # Pairs share a beginning if they have the same words and the same audio states
        states = ids.new_full(ids.shape, -1)
        states.view(-1)[inputs.audio_positions] = inputs.audio_index
        return pack(ids, mask, states, inputs.response_mask, self.hidden_size, self._reads_pieces)

    @property
    def _reads_pieces(self) -> bool:
        """Whether the attention of packed pairs needs no mask: to score in half precision on one GPU."""
        first, last = (next(layer.parameters()).device for layer in (self.layers[0], self.layers[-1]))
        attention: Any = self.layers[0].self_attn
        return (
            not torch.is_grad_enabled()
            and first == last
            and without_mask(first)
            and self.language_model.get_input_embeddings().weight.dtype in HALF
            and {"full_attention"}.issuperset(getattr(self.language_model.config, "layer_types", None) or ())
            and fits_kernel(attention.head_dim)
        )

    def save_processor(self, folder: str) -> None:
        self.processor.save_pretrained(folder)


def messages(pair: Pair, question: str = QUESTION) -> list[Message]:
    """A chat of one user message that names each clip; `{"type": "audio"}` marks where one goes.

    Audio comes in the order of the context turns, the response last.
    """
    content: list[str | None] = (
        [f"Situation: {situation}\n"] if (situation := pair.situation_or_none) else []
    )  # None = a clip
    for turn in pair.context:
        # one turn needs no role; of several, the role says whose each is
        content += ["Context: " if len(pair.context) == 1 else f"Context, {turn.role}: ", None, "\n"]
    content += ["Response: ", None, f"\n{question}"]
    pieces = [{"type": "audio"} if text is None else {"type": "text", "text": text} for text in content]
    return [{"role": "user", "content": pieces}]


def as_text(message: Message, audio_token: str) -> str:
    """The content of a message as one text, for chat templates that take no lists."""
    return "".join(piece.get("text", audio_token) for piece in message["content"])
