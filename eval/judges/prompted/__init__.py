"""Prompted LLM judges: models of OpenAI, Gemini or others behind an API, and generative backbones on this machine.

The way of a pair: `questions` (clips, texts and a `rubric`) -> `cache` (was it paid for already?) -> `runner` (rate
limit, retries, budget of `costs`) -> a `provider` -> `judges` (what the answer says) -> scores.
"""
