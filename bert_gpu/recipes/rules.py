"""Applies recipes: the settings of a published BERT, all at once (table.py lists them).

The user's flags win over a recipe, and a recipe wins over the command's defaults. By OVERRIDE_RULES
a recipe also drops settings that would contradict one of the user's flags or cancel its effect.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting
from bert_gpu.model.config import NOT_IN_WEIGHTS, ModelConfig
from bert_gpu.recipes.table import RECIPES

DEFAULT_LENGTH = 128  # --max_seq_length of the scripts without a recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig(Settings):
    """The recipe: many settings at once."""

    recipe: str | None = setting(
        None,
        (
            "Use the settings of a published BERT, in any of the three scripts. Flags "
            "override it, and --show_config prints the source of each value. "
        )
        + "; ".join(f"{name}: {recipe.summary}" for name, recipe in RECIPES.items())
        + ".",
        choices=tuple(RECIPES),
    )
    phase: int | None = setting(
        None,
        "Part of a pretraining whose rows get longer. With --recipe=bert: 1 = 90 % of the steps, "
        "on rows of 128 tokens; 2 = the rest, on rows of 512, starting from --init_checkpoint. "
        "Each part has its own data and --output_dir; fine-tuning does not change. Default: one "
        "part, with rows of 128.",
        low=1,
        high=max(number for recipe in RECIPES.values() for number in recipe.phases),
        needs=("recipe", tuple(name for name, recipe in RECIPES.items() if recipe.phases)),
    )


@dataclasses.dataclass(frozen=True)
class OverrideRule:
    """A rule: when the user sets certain flags, a recipe drops some of its settings.

    Attributes:
      flags: the user must set all of these. to_drop: the settings that the recipe drops. script:
        the script to which the rule applies; None = all three.
      holds: function that says whether a further condition holds, given {flag: value} of the recipe
        and the user together.
      recipe_has: (flag, value) settings that the recipe must have.
    """

    flags: tuple[str, ...]
    to_drop: tuple[str, ...]
    holds: Callable[[Mapping[str, Any]], object] = lambda values: True
    script: str | None = None
    recipe_has: tuple[tuple[str, object], ...] = ()

    def applies(
        self, script: str, user_values: dict[str, object], recipe_values: dict[str, object]
    ) -> bool:
        """Return whether the rule applies to a call of a script with these values of the user and
        the recipe, both {flag: value}.
        """
        return (
            self.script in (None, script)
            and set(self.flags) <= set(user_values)
            and all(recipe_values.get(flag) == value for flag, value in self.recipe_has)
            and bool(self.holds(recipe_values | user_values))
        )


def peaks_by_share(values: Mapping[str, object]) -> bool:
    """Return whether the settings, {flag: value}, put the learning rate's peak at a share of the
    training time, not at a step.
    """
    return "one_cycle" in str(values.get("curve")) and values.get("lr_schedule") == "time"


def rises_by_itself(values: Mapping[str, object]) -> bool:
    """Return whether the settings, {flag: value}, add a warm-up to the curve "triangle", which has
    its own rise.
    """
    return values.get("curve") == "triangle" and bool(values.get("num_warmup_steps"))


def has_more_masks_than_tokens(values: Mapping[str, Any]) -> bool:
    """Return whether --max_predictions_per_seq exceeds the length of the recipe's rows, but fits
    into rows of the scripts' default length. values: {flag: value}.
    """
    length = values.get("max_seq_length", math.inf)
    return length < values["max_predictions_per_seq"] <= DEFAULT_LENGTH


# The model's fields that some recipe sets; rules that drop a recipe's model drop these too.
MODEL_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(ModelConfig)
    if any(field.name in recipe.settings("pretrain") for recipe in RECIPES.values())
)


def continues(values: Mapping[str, object]) -> bool:
    return values["init_checkpoint"] != "none"


OVERRIDE_RULES = (
    OverrideRule(
        ("init_checkpoint",),
        ("model", *(name for name in MODEL_FIELDS if name not in NOT_IN_WEIGHTS)),
        continues,
        script="pretrain",
    ),
    OverrideRule(
        ("init_checkpoint",),
        ("tokenization", "vocab_size", "do_lower_case"),
        continues,
        script="data",
    ),
    OverrideRule(("model",), MODEL_FIELDS, script="pretrain"),
    OverrideRule(("bert_config_file",), ("model", *MODEL_FIELDS), script="pretrain"),
    OverrideRule(("encoder",), ("model", *MODEL_FIELDS), script="pretrain"),
    OverrideRule(("embedding_size",), ("mlm_transform",)),
    OverrideRule(
        ("intermediate_size",), ("hidden_act",), lambda values: values["intermediate_size"] % 2
    ),
    OverrideRule(("gradient_accumulation_steps",), ("global_batch_size",)),
    OverrideRule(("max_seq_length",), ("max_predictions_per_seq",)),
    OverrideRule(("masked_lm_prob",), ("max_predictions_per_seq",)),
    OverrideRule(("num_train_epochs",), ("num_train_steps",)),
    OverrideRule(("validation_epochs",), ("eval_steps",)),
    OverrideRule(("max_predictions_per_seq",), ("max_seq_length",), has_more_masks_than_tokens),
    OverrideRule(
        ("lr_schedule",), ("total_training_time",), lambda values: values["lr_schedule"] == "step"
    ),
    OverrideRule(("lr_schedule",), ("num_warmup_steps",), peaks_by_share),
    OverrideRule(("warmup_proportion",), ("num_warmup_steps",)),
    OverrideRule(
        ("num_warmup_steps",),
        ("curve",),
        lambda values: peaks_by_share(values) or rises_by_itself(values),
    ),
    OverrideRule(
        ("curve",),
        ("num_warmup_steps",),
        lambda values: peaks_by_share(values) or rises_by_itself(values),
    ),
    OverrideRule(
        ("num_warmup_steps", "curve"), ("lr_schedule", "total_training_time"), peaks_by_share
    ),
    OverrideRule(("curve",), ("min_lr_ratio",), lambda values: values["curve"] == "constant"),
    OverrideRule(
        ("optimizer",),
        ("learning_rate",),
        lambda values: values["optimizer"] != "muon",
        recipe_has=(("optimizer", "muon"),),
    ),
)


def resolve(
    name: str, script: str, user_values: dict[str, object], phase: int | None = None
) -> dict[str, tuple[object, str]]:
    """Return {flag: (value, source)} of the settings that a recipe adds to the user's flags.

    Args:
      name: the recipe's name. script: "data", "pretrain" or "classify". user_values: {flag: value}
        of the user's flags. phase: number of one of the recipe's phases, or None.
    """
    settings = RECIPES[name].settings(script, phase)
    recipe_values = {flag: value for flag, (value, _) in settings.items()}
    rules = [rule for rule in OVERRIDE_RULES if rule.applies(script, user_values, recipe_values)]
    hidden = {flag for rule in rules for flag in rule.to_drop} | set(user_values)
    return {flag: entry for flag, entry in settings.items() if flag not in hidden}


def differences(name: str, settings: Mapping[str, object]) -> list[str]:
    """Return phrases on how a data set differs from the recipe's, such as "objective is nsp, not
    packed". Lengths and vocabularies are compared elsewhere.

    Args:
      name: the recipe's name. settings: {setting: value} of the data set, from its dataset.json.
    """
    if name not in RECIPES:
        raise UserError(f"recipe={name}: must be one of {', '.join(RECIPES)}")
    recipe = RECIPES[name].settings("data")
    flags = [
        flag
        for flag in ("objective", "pack_separator", "masking", "masked_lm_prob")
        if flag in recipe and flag in settings
    ]
    return [
        f"{flag} is {settings[flag]}, not {recipe[flag][0]}"
        for flag in flags
        if settings[flag] != recipe[flag][0]
    ]
