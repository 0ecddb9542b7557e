"""Voxtral: windows of 2 s in the miniature, 30 s on the hub.

The official chat template needs `mistral-common`; `test_voxtral.py` compares with it where it is installed. Here the
prompt is written out, and everything else is official: tokenizer, spectrograms, model.
"""

import base64
import json

from empathy_judge.models.backbones.audio_language_model import messages
from transformers import AutoProcessor, VoxtralConfig, VoxtralForConditionalGeneration, WhisperFeatureExtractor

from ..tools import joined, louder, with_spans

MAX_SECONDS = 2_400.0
LORA_LAYERS = {"language_model": 2 * 7, "projector": 2, "audio_tower": 2 * 6}

SECONDS = 2
# the processor's own defaults but for the window; where they lie differs between versions of transformers
FEATURES = {"sampling_rate": 16_000, "padding": True, "truncation": False, "return_tensors": "pt"}
FEATURES |= {"pad_to_multiple_of": 16_000 * SECONDS, "max_source_positions": 100 * SECONDS}
# Ids 24 and 25 are those of the hub; transformers' processor has the first written into it.
SPECIAL = {0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 11: "<pad>", 24: "[AUDIO]", 25: "[BEGIN_AUDIO]"}
SPECIAL |= {5: "[AVAILABLE_TOOLS]", 6: "[/AVAILABLE_TOOLS]", 7: "[TOOL_RESULTS]", 8: "[/TOOL_RESULTS]"}
SPECIAL |= {9: "[TOOL_CALLS]", 10: "[IMG]", 12: "[IMG_BREAK]", 13: "[IMG_END]", 14: "[PREFIX]", 15: "[MIDDLE]"}
SPECIAL |= {16: "[SUFFIX]", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]", 19: "[TOOL_CONTENT]", 34: "[TRANSCRIBE]"}
WORDS = ("th", "he", " t", "Re", "sp", "on", "se", " the", "Resp", "onse", "Response")
PATTERN = (  # of Mistral's tekken tokenizers
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build(folder):
    special = [SPECIAL.get(rank, f"<SPECIAL_{rank}>") for rank in range(40)]
    vocabulary = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
    tekken = {
        "config": {
            "pattern": PATTERN, "num_vocab_tokens": len(vocabulary),
            "default_vocab_size": len(vocabulary) + len(special), "default_num_special_tokens": len(special),
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(vocabulary)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(special)
        ],
        "audio": {
            "sampling_rate": 16_000, "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
            "chunk_length_s": SECONDS,
        },
    }  # fmt: skip
    (folder / "tekken.json").write_text(json.dumps(tekken))
    WhisperFeatureExtractor(feature_size=128, chunk_length=SECONDS).save_pretrained(folder)
    config = VoxtralConfig(
        audio_config={
            "model_type": "voxtral_encoder", "num_mel_bins": 128, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 128, "max_source_positions": 50 * SECONDS,
        },
        text_config={
            "model_type": "llama", "vocab_size": len(vocabulary) + len(special), "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16,
        },
        audio_token_id=24,
    )  # fmt: skip
    model = VoxtralForConditionalGeneration(config).float()
    louder(model)
    model.save_pretrained(folder)


def official(folder):
    model = VoxtralForConditionalGeneration.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder, mistral_format=False)

    def run(pair):
        clips = [clip.samples for clip in pair.clips]
        spans = ["[BEGIN_AUDIO]" + "[AUDIO]" * (25 * -(-len(clip) // (16_000 * SECONDS))) for clip in clips]
        text = with_spans(joined(*messages(pair), "[AUDIO]"), "[AUDIO]", spans)
        ids = processor.tokenizer(f"<s>[INST]{text}[/INST]", add_special_tokens=False, return_tensors="pt")["input_ids"]
        features = processor._retrieve_input_features(clips, **FEATURES)
        return ids, model.model(input_ids=ids, input_features=features).last_hidden_state

    return model, run
