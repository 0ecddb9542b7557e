#!/usr/bin/env bash
# Streamlit's st.audio plays each array at full scale: a quiet clip and a loud one reach the listener with the same peak.
#
# One would guess: an array of float between -1 and 1, or of int16, is played at its level, as the same samples in a file are.
# What happens: st.audio divides by the largest absolute sample and multiplies by 32,767, floats and int16 alike. The same clip
#   at 0.01 and at 0.5 becomes the same bytes. Silence with one click becomes a click at full scale. A path or bytes of a file are left
#   as they are. Its docstring speaks of neither. There is no option for it.
# Who meets it: rating pages made with Streamlit: loudness, a cue of warmth and arousal, is gone from what the raters hear.
# Versions: streamlit 1.67.0, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet streamlit==1.67.0 numpy==2.4.6 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import io
import logging
import wave

import numpy as np
import streamlit
from streamlit.elements import media

logging.disable(logging.CRITICAL)
print("streamlit", streamlit.__version__)
made, real = [], media._make_wav
media._make_wav = lambda data, rate: made.append(real(data, rate)) or made[-1]  # what st.audio hands to the browser
tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
sent = {"float at 0.5": 0.5 * tone, "float at 0.01": 0.01 * tone, "int16 at 0.01": np.round(0.01 * 32_767 * tone).astype(np.int16)}
peaks = []
for name, samples in sent.items():
    streamlit.audio(samples, sample_rate=16_000)
    with wave.open(io.BytesIO(made[-1])) as file:
        played = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    peaks.append(int(np.abs(played).max()))
    print(f"{name}: played with a peak of {peaks[-1]} of 32,767")
print("the words of its docstring on level:", [word for word in ("normal", "level", "loud", "scale") if word in streamlit.audio.__doc__.lower()])
assert len(made) == 3 and peaks == [32_767] * 3, "st.audio keeps the level now"
assert made[0] == made[1]
print("as found")
PYTHON
