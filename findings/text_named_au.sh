#!/usr/bin/env bash
# soundfile reads a text file as 8 kHz audio if its name ends in .au, .snd, .vox or .gsm.
#
# One would guess: a file without a header of audio raises LibsndfileError, whatever its name; the same bytes in memory do.
# What happens: libsndfile takes files with these four endings for headerless telephony (mu-law, or ADPCM of Dialogic, or GSM) if
#   it finds no header, and every content is valid there. A table, a JSON error page of a download or a Git LFS pointer
#   becomes a second or so of noise at 8 kHz (of silence for .gsm), one channel, without an error.
# Who meets it: data sets in AU (many of the 1990s' and 2000s'), where one file in a thousand failed to download.
# Versions: soundfile 0.14.0 with libsndfile 1.2.2, numpy 2.4.6; source: format_from_extension in sndfile.c; a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet soundfile==0.14.0 numpy==2.4.6 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import io
import soundfile

print("soundfile", soundfile.__version__, "with", soundfile.__libsndfile_version__)
text = b'{"error": "quota exceeded, try again later"}\n' * 100
read = {}
for suffix in ("au", "snd", "vox", "gsm", "wav", "flac", "dat"):
    open(f"clip.{suffix}", "wb").write(text)
    try:
        samples, rate = soundfile.read(f"clip.{suffix}")
        read[suffix] = len(samples)
        print(f"clip.{suffix}: {len(samples)} samples at {rate} Hz, peak {abs(samples).max():.2f}")
    except soundfile.LibsndfileError as error:
        print(f"clip.{suffix}: refused ({error.error_string})")
try:
    soundfile.read(io.BytesIO(text))
    raise SystemExit("the same bytes are read from memory, too")
except soundfile.LibsndfileError as error:
    print(f"the same bytes in memory: refused ({error.error_string})")
assert {"au", "snd", "vox"} <= set(read), "text is refused by these names now: the guard in audio/decode.py may go"
assert not {"wav", "flac", "dat"} & set(read), "text is read by other names, too"
print("as found")
PYTHON
