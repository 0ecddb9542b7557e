"""The synthesiser says the same again."""

from __future__ import annotations

import subprocess
import sys

from empathy_judge.audio.espeak import Tone, Voice, restart, speak

TEXT = "The parcel came on Tuesday with the morning post."
MAN, WOMAN = Voice("en-us", "m", 105, 1.0), Voice("en", "f", 200, 1.16)


def test_a_restarted_engine_speaks_as_a_fresh_process_does():
    tone = Tone(pitch=4, range=2.7, rate=205)
    program = (
        "import sys; from empathy_judge.audio.espeak import Tone, Voice, speak;"
        f"sys.stdout.buffer.write(speak({TEXT!r}, {MAN}, {tone})[0].tobytes())"
    )
    fresh = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    speak("Something else before.", WOMAN, Tone(quality="breathy"))
    again = speak(TEXT, MAN, tone)[0].tobytes()
    restart()
    assert speak(TEXT, MAN, tone)[0].tobytes() == fresh != again
