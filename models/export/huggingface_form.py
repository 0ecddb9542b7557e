"""What makes the folder of a judge open with `transformers`: a configuration that names code, and that code.

The code is a few lines that look for this package: the classes themselves are in `hub_model`, where they are of the
version that reads the judge.
"""

from __future__ import annotations

import json
from pathlib import Path

TASK = "vocal-empathy"
"""Of `pipeline`."""
CODE_FILE = "modeling_empathy_judge.py"
_MODULE = CODE_FILE.removesuffix(".py")
_CODE = '''"""Opens this judge with transformers. The model is in the package empathy-judge, which must be installed."""

try:
    from empathy_judge.hub_model import EmpathyJudgeConfig, EmpathyJudgeModel, EmpathyJudgePipeline
except ModuleNotFoundError as error:
    raise ImportError(f"this judge needs the package empathy-judge: pip install empathy-judge ({error})") from None

__all__ = ["EmpathyJudgeConfig", "EmpathyJudgeModel", "EmpathyJudgePipeline"]
'''


def write_model_code(folder: Path) -> None:
    """Write `config.json` and the code that it names into the folder of a judge."""
    config = {
        "model_type": "empathy_judge",
        "architectures": ["EmpathyJudgeModel"],
        "auto_map": {"AutoConfig": f"{_MODULE}.EmpathyJudgeConfig", "AutoModel": f"{_MODULE}.EmpathyJudgeModel"},
        "custom_pipelines": {
            TASK: {"impl": f"{_MODULE}.EmpathyJudgePipeline", "pt": ["AutoModel"], "type": "multimodal", "default": {}}
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / CODE_FILE).write_text(_CODE, encoding="utf-8")
