"""A processor that reads text and audio alone, for families whose own also sees."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer, ProcessorMixin

from ....data_modules.errors import UserError
from .base import Checkpoint
from .loading import load_feature_extractor, quiet_transformers


class SpeechProcessor:
    """Tokenizer, feature extractor and chat template of a checkpoint.

    The family's own class insists on an image and a video processor, and these on torchvision.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Load the pieces from the hub or a folder.

        Raises:
            UserError: If a file is missing or broken.
        """
        self.feature_extractor: Any = load_feature_extractor(checkpoint)
        try:
            with quiet_transformers():
                files = {"pretrained_model_name_or_path": checkpoint.name, "revision": checkpoint.revision}
                self.tokenizer: Any = AutoTokenizer.from_pretrained(**files, trust_remote_code=False)
                settings, _ = ProcessorMixin.get_processor_dict(**files)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"backbone {checkpoint.name!r}: no tokenizer: {reason}") from None
        # chat_template.json belongs to the processor, chat_template.jinja to both
        self.tokenizer.chat_template = settings.get("chat_template") or self.tokenizer.chat_template
        if self.tokenizer.chat_template is None:
            raise UserError(f"backbone {checkpoint.name!r}: no chat template")

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The text of a chat."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def save_pretrained(self, folder: str) -> None:
        """Write what the constructor reads."""
        self.tokenizer.save_pretrained(folder)
        self.feature_extractor.save_pretrained(folder)
