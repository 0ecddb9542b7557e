"""Stage 2: the language model learns to answer questions about delivery from the frozen tower's states."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from empathy_judge.audio.decode import Clip as AudioClip
from empathy_judge.checkpoints.nano.make.clips import ClipStore
from empathy_judge.checkpoints.nano.make.listen import Readouts, batches_by_length, keep, resume
from empathy_judge.checkpoints.nano.make.questions import CLOSED, OPEN, Delivery, NamedQuestion
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones.audio_language_model import AudioLanguageModel, messages
from empathy_judge.models.backbones.inputs import Clips, Inputs
from torch import Tensor, nn
from transformers import Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

_BATCH = 8  # small: on CPUs a batch that fits the cache is several times faster per dialogue
_SAVE_EVERY = 250
_CYCLES = 3  # cycles of the learning rate; each continues from the weights of the one before
_QUESTIONS = 6  # closed questions about one pair of clips
_DESCRIBE = 0.3  # share of pairs that are described as well
_ALONE = 0.15  # share of responses without a context
_LONG = 0.04  # share of batches of long clips; mixed with short ones they would fill most batches with padding
_LONG_TOKENS = 125  # 10 s
_SILENT_CLIP = AudioClip(np.zeros(1600, np.float32), 16_000)  # stands for any clip where only the chat's text counts


@dataclass(frozen=True)
class Dialogue:
    """Chats about pairs of clips as a judge reads them, padded on the right, and which tokens the model must produce
    `(batch, tokens)`."""

    inputs: Inputs
    is_answer: Tensor


class Listener:
    """Outputs of the frozen tower for clips, with their targets."""

    def __init__(self, backbone: AudioLanguageModel, store: ClipStore) -> None:
        self.store = store
        self.states: list[Tensor] = [torch.empty(0)] * len(store)
        with torch.no_grad():
            for indices in batches_by_length(store, 64, torch.Generator().manual_seed(0)):
                mel, lengths, _ = store.batch(indices)
                packed = backbone.encode_audio(Clips(mel, lengths.tolist()))
                for i, states in zip(indices, packed.split([store.tokens(i) for i in indices]), strict=True):
                    self.states[i] = states.half()
        lengths = np.array([store.tokens(i) for i in range(len(store))])
        self.short, self.long = np.flatnonzero(lengths <= _LONG_TOKENS), np.flatnonzero(lengths > _LONG_TOKENS)

    def delivery(self, index: int) -> Delivery:
        """What is known about a clip."""
        return Delivery(self.store.measures[index].tolist(), self.store.labels[index].tolist())


class Writer:
    """Turns questions about clips into token ids."""

    def __init__(self, processor: Qwen2AudioProcessor) -> None:
        self._processor = processor
        self._audio_token_id = processor.tokenizer.convert_tokens_to_ids(processor.audio_token)
        self._cache: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Token ids of a piece of text."""
        if text not in self._cache:
            self._cache[text] = self._processor.tokenizer(text)["input_ids"]
        return self._cache[text]

    def chat(self, counts: Sequence[int], exchanges: Sequence[tuple[str, str]]) -> tuple[list[int], list[bool]]:
        """Ids and answer marks of a chat about clips of so many audio tokens (the response last)."""
        context = (Turn("user", _SILENT_CLIP),) if len(counts) == 2 else ()
        ids: list[int] = []
        is_answer: list[bool] = []
        for number, (question, answer) in enumerate(exchanges):
            chat: Any = [{"role": "user", "content": question}]
            if number == 0:
                chat = messages(Pair("", _SILENT_CLIP, context), question)
            opening = self._processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            pieces = opening.split(self._processor.audio_token)
            prompt = self.ids(pieces[0])
            for piece, count in zip(pieces[1:], counts, strict=False):
                prompt = prompt + [self._audio_token_id] * count + self.ids(piece)
            reply = self.ids(f"{answer}<|im_end|>")
            ids += prompt + reply + self.ids("\n")
            is_answer += [False] * len(prompt) + [True] * len(reply) + [False]
        return ids, is_answer

    def batch(self, listener: Listener, rows: Sequence[tuple[int | None, int, list[tuple[str, str]]]]) -> Dialogue:
        """Chats about (context clip or None, response clip, exchanges)."""
        chats, states = [], []
        for context, response, exchanges in rows:
            clips = [response] if context is None else [context, response]
            chats.append(self.chat([len(listener.states[i]) for i in clips], exchanges))
            states += [listener.states[i] for i in clips]
        longest = max(len(ids) for ids, _ in chats)
        pad = self._processor.tokenizer.pad_token_id
        input_ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in chats])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in chats])
        is_answer = torch.tensor([marks + [False] * (longest - len(marks)) for _, marks in chats])
        is_audio = input_ids == self._audio_token_id
        from_end = is_audio.flip(-1).cumsum(-1).flip(-1)
        lengths = torch.tensor([len(listener.states[response]) for _, response, _ in rows])
        audio = torch.cat(states).float()
        is_response = is_audio & (from_end <= lengths[:, None])
        index, places = torch.arange(len(audio)), is_audio.flatten().nonzero()[:, 0]
        inputs = Inputs(input_ids, mask, is_response, index, places, audio_states=audio, padding_last=True)
        return Dialogue(inputs, is_answer)


def train_language_model(
    backbone: AudioLanguageModel,
    model: Qwen2AudioForConditionalGeneration,
    processor: Qwen2AudioProcessor,
    listener: Listener,
    steps: int,
    seed: int,
    kept: Path,
) -> None:
    """Train projector and language model in place; the audio tower stays as it is. An interrupted call is continued by
    the next one from the state in `kept` and ends as if it had not been interrupted.

    Beside the answers, linear readouts of both clips' delivery from the mean over the response's tokens are trained, so
    that a head that pools there finds delivery without another layer having to fetch it.
    """
    writer = Writer(processor)
    torch.manual_seed(seed)
    width = model.lm_head.in_features
    readouts = [Readouts(width, listener.store) for _ in range(2)]
    weights = [w for n, w in model.named_parameters() if "audio_tower" not in n] + [
        w for readout in readouts for w in readout.parameters()
    ]
    trained = nn.ModuleDict({"model": model, "readouts": nn.ModuleList(readouts)})
    ends = [steps * cycle // _CYCLES for cycle in range(_CYCLES + 1)]
    done, start, totals = resume(kept, {"trained": trained}), time.monotonic(), np.zeros(2)
    for begin, end in itertools.pairwise(ends):
        optimizer = torch.optim.AdamW(weights, lr=2e-3, weight_decay=0.02, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=end - begin, pct_start=0.05)
        state = {"trained": trained, "optimizer": optimizer, "schedule": schedule}
        if begin < done <= end:
            resume(kept, state)
        for step in range(max(begin, done) + 1, end + 1):
            rows = list(_draw(listener, np.random.default_rng([seed, step])))
            dialogue = writer.batch(listener, rows)
            hidden = backbone.hidden_states(dialogue.inputs)
            answers = _answer_loss(model, hidden, dialogue)
            is_response = dialogue.inputs.response_mask
            pooled = (hidden * is_response[..., None]).sum(1) / is_response.sum(1, keepdim=True)
            delivery = _delivery_loss(readouts, pooled, listener.store, rows)
            optimizer.zero_grad()
            (answers + 0.3 * delivery).backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            totals += (answers.item(), delivery.item())
            if step % _SAVE_EVERY == 0 or step == end:
                mean = totals / _SAVE_EVERY
                seconds = time.monotonic() - start
                means = f"answers {mean[0]:.3f}, delivery {mean[1]:.3f}"
                print(f"language model step {step}: {means}, {seconds:.0f} s", flush=True)
                totals[:] = 0
                keep(kept, state, step)


@torch.no_grad()
def measure_answers(
    backbone: AudioLanguageModel,
    model: Qwen2AudioForConditionalGeneration,
    processor: Qwen2AudioProcessor,
    listener: Listener,
    pairs: int,
    seed: int,
) -> list[dict[str, object]]:
    """Accuracy per closed question on random pairs of held-out clips, each question asked alone and answered greedily.

    Returns:
        Rows `question`, `n`, `majority` (share of the commonest right answer) and `accuracy`.
    """
    rng = np.random.default_rng(seed)
    writer = Writer(processor)
    drawn = rng.integers(len(listener.store), size=(pairs, 2)).tolist()
    rows = []
    for question in CLOSED:
        cases = [
            (context, response, right)
            for context, response in drawn
            if (right := question.answer(listener.delivery(context), listener.delivery(response))) is not None
        ]
        if len(cases) < 20:
            continue
        hits = 0
        for start in range(0, len(cases), _BATCH):
            part = cases[start : start + _BATCH]
            dialogue = writer.batch(listener, [(c, r, [(question.text, right)]) for c, r, right in part])
            is_answer = dialogue.is_answer[:, 1:]
            predicted = model.lm_head(backbone.hidden_states(dialogue.inputs)[:, :-1][is_answer]).argmax(-1)
            wrong = torch.zeros_like(is_answer)
            wrong[is_answer] = predicted != dialogue.inputs.input_ids[:, 1:][is_answer]
            hits += int((~wrong.any(-1)).sum())  # teacher-forced greedy: right as a whole or not at all
        commonest = Counter(right for *_, right in cases).most_common(1)[0][1]
        shares = {"majority": commonest / len(cases), "accuracy": hits / len(cases)}
        rows.append({"question": question.name, "n": len(cases), **shares})
    return rows


def _draw(listener: Listener, rng: np.random.Generator) -> Iterator[tuple[int | None, int, list[tuple[str, str]]]]:
    long = len(listener.long) > 0 and (rng.random() < _LONG or not len(listener.short))
    clips = listener.long if long else listener.short
    for _ in range(_BATCH):
        context, response = rng.choice(clips, size=2).tolist()
        context = None if rng.random() < _ALONE else context
        first = None if context is None else listener.delivery(context)
        second = listener.delivery(response)
        questions: list[NamedQuestion] = [CLOSED[i] for i in rng.permutation(len(CLOSED))]
        if rng.random() < _DESCRIBE:
            questions.insert(0, OPEN[rng.integers(len(OPEN))])
        answered = [(q.text, answer) for q in questions if (answer := q.answer(first, second)) is not None]
        yield context, response, answered[:_QUESTIONS]


def _answer_loss(model: Qwen2AudioForConditionalGeneration, hidden: Tensor, dialogue: Dialogue) -> Tensor:
    predicted = model.lm_head(hidden[:, :-1][dialogue.is_answer[:, 1:]])
    return nn.functional.cross_entropy(predicted, dialogue.inputs.input_ids[:, 1:][dialogue.is_answer[:, 1:]])


def _delivery_loss(readouts: Sequence[Readouts], pooled: Tensor, store: ClipStore, rows: Sequence[tuple]) -> Tensor:
    responses = [response for _, response, _ in rows]
    loss = readouts[0].clip_loss(pooled, store.measures[responses], store.labels[responses])
    with_context = [row for row, (context, _, _) in enumerate(rows) if context is not None]
    contexts = [rows[row][0] for row in with_context]
    return loss + readouts[1].clip_loss(pooled[with_context], store.measures[contexts], store.labels[contexts])
