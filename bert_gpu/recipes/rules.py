"""Recipes: many settings at once, those of a published BERT (table.py has them).

A recipe is a layer between the user's flags and the command's defaults: the user's flags win, and
OVERRIDE_RULES says which settings of a recipe are dropped because they would contradict a flag or
cancel its effect.
"""

import dataclasses
import math
from collections.abc import Callable

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting
from bert_gpu.model.config import NOT_IN_WEIGHTS, ModelConfig
from bert_gpu.recipes.table import RECIPES

DEFAULT_LENGTH = 128  # --max_seq_length of the scripts where no recipe sets it


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
        "Part of a pretraining that changes its rows: with --recipe=bert 1 = 90 % of the steps on "
        "rows of 128 tokens, 2 = the rest on rows of 512, from --init_checkpoint. Each has its own "
        "data and --output_dir; fine-tuning is the same. Default: one part, rows of 128.",
        low=1,
        high=max(number for recipe in RECIPES.values() for number in recipe.phases),
        needs=("recipe", tuple(name for name, recipe in RECIPES.items() if recipe.phases)),
    )


@dataclasses.dataclass(frozen=True)
class OverrideRule:
    """A rule: when the user gives these flags, a recipe drops some of its settings.

    Attributes:
      flags: all of these must be given. to_drop: the settings that the recipe drops. script: the
        script that it is for; None = all three.
      holds: whether the rule applies, a function of {flag: value} of both together.
      recipe_has: settings without which a recipe does not yield.
    """

    flags: tuple[str, ...]
    to_drop: tuple[str, ...]
    holds: Callable = lambda values: True
    script: str | None = None
    recipe_has: tuple[tuple[str, object], ...] = ()

    def applies(self, script, given, of_recipe):
        """given, of_recipe: {flag: value} of the user and of a recipe for a script."""
        return (
            self.script in (None, script)
            and set(self.flags) <= set(given)
            and all(of_recipe.get(flag) == value for flag, value in self.recipe_has)
            and self.holds(of_recipe | given)
        )


def peaks_by_share(values):
    return values.get("curve") == "one_cycle" and values.get("lr_schedule") == "time"


def rises_by_itself(values):
    return values.get("curve") == "triangle" and bool(values.get("num_warmup_steps"))


def has_more_masks_than_tokens(values):
    """Whether the masks that the user asks for fit into the scripts' own rows alone."""
    length = values.get("max_seq_length", math.inf)
    return length < values["max_predictions_per_seq"] <= DEFAULT_LENGTH


# The model's fields that recipes set; they are dropped together with the recipe's model.
MODEL_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(ModelConfig)
    if any(field.name in recipe.settings("pretrain") for recipe in RECIPES.values())
)


def continues(values):
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
    OverrideRule(
        ("use_v2_feature_names",), ("masking",), lambda values: values["use_v2_feature_names"]
    ),
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


def resolve(name, script, given, phase=None):
    """{flag: (value, source)} that a recipe sets, given the user's flags.

    Args:
      name: of the recipe. script: "data", "pretrain" or "classify". given: {flag: value} of the
        user. phase: one of the recipe's, or None.
    """
    settings = RECIPES[name].settings(script, phase)
    of_recipe = {flag: value for flag, (value, _) in settings.items()}
    rules = [rule for rule in OVERRIDE_RULES if rule.applies(script, given, of_recipe)]
    dropped = {flag for rule in rules for flag in rule.to_drop}
    return {flag: entry for flag, entry in settings.items() if flag not in dropped | set(given)}


def differences(name, made):
    """How a data set differs from the recipe's, as messages: ["objective is nsp, not packed"].

    Args:
      name: of the recipe. made: settings of the data set, as dataset.json has them. Lengths and
        vocabularies are left to other checks.
    """
    if name not in RECIPES:
        raise UserError(f"recipe={name}: must be one of {', '.join(RECIPES)}")
    wanted = RECIPES[name].settings("data")
    compared = [
        flag
        for flag in ("objective", "pack_separator", "masking", "masked_lm_prob")
        if flag in wanted and flag in made
    ]
    return [
        f"{flag} is {made[flag]}, not {wanted[flag][0]}"
        for flag in compared
        if made[flag] != wanted[flag][0]
    ]
