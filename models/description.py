"""Reads and checks `judge.json`, and compares two judges that may differ in their trained weights alone. JSON files are
read strictly with pydantic; an error is one line that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from ..core.errors import UserError, problem_of, shown
from ..core.json_text import parse_json
from ..data_modules.schema import Dimension
from .settings import BuiltSettings, WeightForm

Values = TypeVar("Values")
STRICT = ConfigDict(strict=True, extra="forbid")
"""No value is converted (neither true nor "3" is a number), and no field is passed over."""
SCHEMA_VERSION = 3
MEMBERS = "members"
"""In `judge.json` of an ensemble: the folders of its members, each a judge folder. Its own weights are theirs."""
EXPORT = "export"
"""In `judge.json` of a judge that has its backbone in its own folder: the form, and what became of its scores."""
BACKBONE = "backbone"
"""Folder of that backbone, inside the folder of the judge."""


@dataclass(frozen=True)
class Provenance:
    """Where a judge comes from."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)  # other fields may be there

    dataset: str  # name of the training data
    synthetic: bool  # True if its ratings were not given by people
    content_hash: str  # hash of the training data
    split_hash: str  # hash of the assignment of pairs to splits
    # Spearman on the validation split per dimension, of the weights that were exported
    validation: dict[str, float | None]
    train_splits: list[str]  # what it was trained on
    validation_splits: list[str]  # what chose its checkpoint
    target: str  # how several ratings of a pair became what it was trained to predict
    # share of the preferences of the validation split that its scores meet, per dimension
    preferences_met: dict[str, float | None]
    losses: dict[str, float]  # weight of each loss that was minimised
    # of ratings, preferences and counterfactual pairs among the training items
    shares: dict[str, Annotated[float, Field(ge=0, le=1)]]
    # whether it was trained on the validation splits, too, after they had chosen; `validation` is then what judges that
    # were not trained on a pair say of it
    refit: bool
    # where training began, per dimension, if at a probe: `probe`, its Spearman on the validation split; `added`, what
    # training has added, each pair after the epoch that other groups chose; `low` and `high`, the ends of the 90 %
    # interval of that over speakers or groups. None where it is undefined. Of a refit judge, what the run that chose
    # its epochs says; the mean of several, without interval.
    start: dict[str, dict[str, float | None]]
    # of method probe, what was fitted, in words: kernel, pairs, penalties; "" = trained by gradients
    probe: str


def start_in_words(provenance: Mapping[str, Any]) -> list[str]:
    """What training added to the probe at which it began, a sentence for each dimension; empty without a probe."""
    sentences = []
    for name, start in provenance["start"].items():
        if start["probe"] is None or start["added"] is None:
            continue
        text = f"{name}: training began at a probe with Spearman {start['probe']:.3f} and added {start['added']:+.3f}"
        if start["low"] is not None:
            text += f" (90 % interval {start['low']:+.3f} to {start['high']:+.3f})"
            text += "; this is not told apart from the probe" if start["low"] < 0 else ""
        sentences.append(text)
    return sentences


class _Export(BaseModel):
    """How a judge was exported with its backbone; other fields are for people."""

    model_config = ConfigDict(strict=True)  # other fields may be there
    form: Literal["merged"]
    quantization: WeightForm
    origin: _Origin


class _Origin(BaseModel):
    """What an exported judge was made of."""

    model_config = STRICT
    settings: BuiltSettings
    backbone_fingerprint: str
    trained_in_full: list[str]


class Description(BaseModel):
    """The fields of `judge.json` that loading depends on; others are for people and programs."""

    model_config = STRICT  # settings and dimensions inherit it
    schema_version: Literal[3]
    settings: BuiltSettings
    dimensions: Annotated[tuple[Dimension, ...], Field(min_length=1)]
    backbone_fingerprint: str
    unquantized_fingerprint: str
    backbone_configuration: dict[str, Any]
    reads_text: bool
    trained_in_full: list[str]
    head: dict[str, str]
    versions: dict[str, str]
    sampling_rate: Annotated[int, Field(gt=0)]
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    members: Annotated[list[Annotated[str, Field(pattern=r"^members/\d+$")]], Field(min_length=2)] | None = None
    export: _Export | None = None
    provenance: Provenance
    member_provenance: list[Provenance] = []
    sha256: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Description:
        # the backbone of an export is in its folder and nowhere else
        if EXPORT in self.model_fields_set and (self.export is None or self.settings.backbone != BACKBONE):
            raise ValueError(f"export with settings.backbone {self.settings.backbone!r}; expected {BACKBONE!r}")
        return self


def parse(path: Path, description: Mapping[str, Any]) -> Description:
    """The fields of a description that loading depends on; `path` is where it is written.

    Raises:
        UserError: If a field is missing, unknown or not one of its values.
    """
    if not isinstance(description, Mapping):
        raise UserError(f"{path}: {shown(description)}; expected an object")
    read = {name: description[name] for name in Description.model_fields if name in description}
    return validated(Description, read, str(path))


def check_alike(first: Mapping[str, Any], path: Path, other: Mapping[str, Any]) -> None:
    """Check that the first judge can use the weights of the other one, which `path` describes, unchanged.

    Raises:
        UserError: If not, or the other is not a single judge of adapter and head.
    """
    if EXPORT in other:
        raise UserError(f"{path}: its adapter was merged into its backbone; expected the judge that it was made of")
    if MEMBERS in other:
        raise UserError(f"{path}: is an ensemble itself; expected single judges, such as its members")
    ours, theirs = parse(path, first), parse(path, other)
    if theirs.dimensions != ours.dimensions:
        scales = scales_text(theirs.dimensions), scales_text(ours.dimensions)
        raise UserError(f"{path}: scores {scales[0]}, the first judge {scales[1]}; expected the same")
    our_settings, their_settings = _compared(ours.settings), _compared(theirs.settings)
    for key in their_settings:
        if their_settings[key] != our_settings[key]:
            values = f"{key} {shown(their_settings[key])}, of the first judge {shown(our_settings[key])}"
            raise UserError(f"{path}: {values}; expected the same")
    if theirs.backbone_fingerprint != ours.backbone_fingerprint:
        their_hash, our_hash = theirs.backbone_fingerprint[:12], ours.backbone_fingerprint[:12]
        raise UserError(
            f"{path}: backbone with fingerprint {their_hash}, of the first judge {our_hash}; expected the same"
        )


def _compared(settings: BuiltSettings) -> dict[str, Any]:
    """Settings that scores depend on, by name. The folder of the backbone is not one of them: it may have moved, and
    its fingerprint says whether it is the same."""
    values = asdict(settings)
    lora = {f"lora {name}": value for name, value in values.pop("lora").items() if name != "dropout"}
    head_input = {f"head_input {name}": value for name, value in values.pop("head_input").items()}
    unread = ("backbone", "revision", "attention", "padding_side")
    return {**{name: value for name, value in values.items() if name not in unread}, **lora, **head_input}


def scales_text(dimensions: Sequence[Dimension]) -> str:
    """Names and scales as one line, in the form in which they are compared everywhere."""
    return json.dumps([[d.name, d.minimum, d.maximum, d.higher_is_better] for d in dimensions])


def read_json(path: Path) -> Any:
    """The content of a JSON file; see `parse_json`.

    Raises:
        UserError: If it is not JSON, a name stands twice in an object, or a number is not finite.
        FileNotFoundError: If there is no such file.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None


def validated(kind: type[Values], values: Any, where: str) -> Values:
    """Convert plain values, as `json.loads` returns them, to a (pydantic or standard) dataclass or model; `where` heads
    an error message.

    Raises:
        UserError: Naming the first field that is missing, unexpected or not one of its values.
    """
    try:
        # as JSON: in strict mode a list may then be a tuple, and an integer a float
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(f"{where}: {_problem(*problem_of(error))}") from None
    except UserError as error:  # raised by a `__post_init__`
        raise UserError(f"{where}: {error}") from None


def _problem(field: str, kind: str, message: str, value: Any) -> str:
    if kind == "json_invalid":
        return "nested too deeply, or half of a surrogate pair; expected a file as it was written"
    if kind == "missing":
        return f"{field} is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unexpected {field}"
    if kind == "value_error":
        text = message.removeprefix("Value error, ")
        return f"{field}: {text}" if field else text
    message = message.replace("Input should be", "expected").replace("Tuple should have", "expected")
    return f"{field} {shown(value)}; {message}".lstrip()
