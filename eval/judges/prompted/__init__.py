"""Prompted LLM judges: models of OpenAI, Gemini or others behind an API.

The steps for a pair: `questions` (clips, texts and a `rubric`) -> `cache` (was it answered before?) -> `runner` (rate
limit, retries, `budget`) -> a `provider` -> `judges` (scores from answers).
"""
