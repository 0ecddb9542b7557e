"""Judges that are asked in words: models of OpenAI, Gemini or others behind an API, and generative backbones here.

The way of a pair: `asking` (a question of clips and texts, with a `rubric`) -> `answers_store` (was it paid for
already?) -> `runner` (limits, retries, budget) -> a `Provider` -> `reading` (what the answer says) -> scores.
"""
