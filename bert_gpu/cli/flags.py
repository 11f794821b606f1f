"""Makes absl flags from settings classes, and settings from flags; turns errors into exit codes.

Each field of a settings class becomes a flag of the same name. A setting comes from the first of
these that has it: the command line, the recipe, the command's defaults, the settings class.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags as absl_flags

import bert_gpu
from bert_gpu.base import console
from bert_gpu.base.console import Console
from bert_gpu.base.environment import quick_imports
from bert_gpu.base.errors import TrainingStopped, UserError, one_line
from bert_gpu.base.settings import Settings, fields_of, parse_time, setting, value_type
from bert_gpu.base.signals import answer_interrupts
from bert_gpu.cli import aliases, arguments, help_text, quick
from bert_gpu.model.config import ModelConfig
from bert_gpu.recipes import rules

S = TypeVar("S", bound=Settings)
PACKAGE = pathlib.Path(bert_gpu.__file__).resolve().parent
# {script: the command that does the same, for an installed package, which has no scripts}
COMMANDS = {
    "create_pretraining_data.py": "bert-gpu data",
    "run_pretraining_gpu.py": "bert-gpu pretrain",
    "run_classifier.py": "bert-gpu classify",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonConfig(Settings):
    """Flags of every script."""

    show_config: bool = setting(
        False, "Print the resolved settings with the source of each, and exit."
    )
    overwrite: bool = setting(
        False, "Remove an earlier run from the output folder and start again."
    )
    quiet: bool = setting(False, "Print warnings and errors only.")


def bundled(name: str) -> str:
    """Return the path of a file that comes with bert_gpu: a wheel has it in the package's bundled/
    (setup.py), a clone beside the package. Returns `name` itself when it is in neither.
    """
    places = (PACKAGE / "bundled" / name, PACKAGE.parent / name)
    path = next((path for path in places if path.exists()), None)
    if path is None:
        return name
    return os.path.relpath(path) if path.is_relative_to(pathlib.Path.cwd()) else str(path)


def name_commands(text: str) -> str:
    """Return a text with `bert-gpu COMMAND` in place of scripts that are not installed."""
    for script, command in COMMANDS.items():
        if not (PACKAGE.parent / script).exists():
            text = text.replace(f"python {script}", command).replace(script, command)
    return text


class Parsed:
    """The parsed flags of one call.

    Attributes:
      positionals: the arguments that are not flags. in_program: whether a program that uses the
        library makes the call, not a command line.
      imports: returns the context in which a command imports TensorFlow.
      script: the command's name in recipes, such as "pretrain"; "" = none. recipe_name: the recipe
        that the user names or that is implied; None = no recipe. phase: the value of --phase; None
        if the recipe has no phases. is_implied: whether the recipe is implied, because the user has
        named none.
      recipe: {flag: (value, source)} of the settings that the recipe and its phase set and the user
        does not.
      sources: {flag: arguments.UserFlag} of the flags that the user has set. file_values: {flag:
        (value, source)} of settings that a command reads from a file, for --show_config.
    """

    def __init__(
        self,
        values: absl_flags.FlagValues,
        classes: Sequence[type[Settings]],
        defaults: Mapping[str, object],
        positionals: list[str],
        script: str,
        user_flags: Iterable[arguments.UserFlag],
        implied: Callable[[str, list[str]], str | None] | None = None,
        in_program: bool = False,
    ) -> None:
        self.in_program = in_program
        self.imports = contextlib.nullcontext if in_program else quick_imports
        self.values = values
        self.classes = classes
        self.defaults = defaults
        self.positionals = positionals
        self.sources = {flag.name: flag for flag in user_flags}
        self.file_values: dict[str, tuple[object, str]] = {}
        self.script = script
        self.recipe: dict[str, tuple[object, str]] = {}
        self.phase: int | None = None
        self.warned: set[str] = set()
        config = self.make(rules.RecipeConfig) if script else rules.RecipeConfig()
        self.is_implied = False
        self.recipe_name = config.recipe
        if self.recipe_name is None and implied is not None:
            self.recipe_name = implied(script, list(self.sources))
            self.is_implied = self.recipe_name is not None
        if self.recipe_name is not None:
            user_values = {
                flag: value for kind in classes for flag, value in self.user_values(kind).items()
            }
            self.phase = config.phase if rules.RECIPES[self.recipe_name].phases else None
            self.recipe = rules.resolve(self.recipe_name, script, user_values, self.phase)

    def is_set(self, name: str) -> bool:
        """Return whether the user has set the flag."""
        return bool(self.values[name].present)

    def user_values(self, kind: type[Settings]) -> dict[str, Any]:
        """Return {field: value} for the fields of a settings class that the user has set."""
        return {
            field.name: self._value(field)
            for field in dataclasses.fields(kind)
            if self.is_set(field.name)
        }

    def overrides(self, kind: type[Settings]) -> dict[str, object]:
        """Return {field: value} for the fields of a settings class that the user or the recipe
        sets.
        """
        recipe_values = {
            field.name: self.recipe[field.name][0]
            for field in dataclasses.fields(kind)
            if field.name in self.recipe
        }
        return recipe_values | self.user_values(kind)

    def make(self, kind: type[S], **defaults: object) -> S:
        """Return settings of a class. Each value comes from the first of these that has it: the
        user, the recipe, `defaults`, the command's defaults, the class.
        """
        command_defaults = {
            field.name: self.defaults[field.name]
            for field in dataclasses.fields(kind)
            if field.name in self.defaults and not any(map(self.is_set, field.metadata["instead"]))
        }
        with self.naming_origins():
            config = kind(**command_defaults | defaults | self.overrides(kind))
        for name in self.user_values(kind):
            problem = config.without_effect(name)
            if problem and problem not in self.warned:
                self.warned.add(problem)
                console.warn(problem)
        return config

    @contextlib.contextmanager
    def naming_origins(self) -> Iterator[None]:
        """Add to each UserError raised inside this context where the wrong value comes from, if
        that is the recipe, a flagfile or a flag of another name.
        """
        try:
            yield
        except UserError as error:
            error.origin = error.origin or self.origin_of(error)
            raise

    def origin_of(self, error: UserError) -> str | None:
        """Return a phrase that says where the value of an error's setting comes from; None for the
        command line, a default or an error without settings.
        """
        for name in error.settings:
            if name in self.sources and self.sources[name].origin:
                return self.sources[name].origin
            if (flag := self._flag_of_recipe(name)) is not None:
                phase = "" if self.phase is None else f" --phase={self.phase}"
                note = (
                    f"--recipe={self.recipe_name}{phase} sets {as_flag(flag, self.recipe[flag][0])}"
                )
                return note if error.where else f"{note}; your own value wins"
        return None

    def _flag_of_recipe(self, name: str) -> str | None:
        """Return the recipe's flag that determines a setting, such as "model" for the model's
        hidden_size; None when the user or a default determines the setting.
        """
        if name in self.recipe:
            return None if self.is_set(name) else name
        is_models = name in fields_of(ModelConfig) and not self.is_set(name)
        return (
            "model" if is_models and "model" in self.recipe and not self.is_set("model") else None
        )

    def console(self, quiet: bool) -> Console:
        """Return a console whose warnings about settings say where the values come from. If the
        recipe is implied, the console first prints a notice of it.
        """
        kind = console.LogConsole if self.in_program else console.Console
        log = kind(quiet, origin_of=self.origin_of)
        if self.is_implied:
            log.say(quick.NOTICE)
        return log

    def _value(self, field: dataclasses.Field) -> object:
        value = self.values[field.name].value
        if field.metadata["words"] and value not in field.metadata["words"]:
            try:
                return value_type(field)[0](value)
            except ValueError:
                return value  # the settings class reports the error
        return tuple(value) if value_type(field)[0] is tuple else value


def as_flag(name: str, value: object) -> str:
    """Return a setting as an argument of a command line, such as "--seed=1"."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={','.join(value) if isinstance(value, tuple) else value}"


def parse(
    argv: Sequence[str],
    summary: str,
    example: Iterable[str],
    classes: Sequence[type[Settings]],
    *,
    defaults: Mapping[str, object] | None = None,
    positionals: str | None = None,
    script: str = "",
    main: Mapping[str, Sequence[str]] | None = None,
    implied: Callable[[str, list[str]], str | None] | None = None,
    in_program: bool = False,
) -> Parsed:
    """Parse a command line.

    Prints the help and raises SystemExit(0) for --help and --helpfull. Raises UserError for bad
    flags.

    Args:
      argv: the command line, with the program's name first. summary: what the command does.
        example: example commands for --help.
      classes: the settings classes, in the order in which --helpfull shows them.
      defaults: {field: value} where this command's default differs from the settings class's.
      positionals: arguments that are not flags, as --help shows them, such as "TEXT"; None = such
        arguments are errors.
      script: this command's name in recipes and aliases, if its classes include
        recipes.RecipeConfig; "" = the command has neither.
      main: {topic: names of the flags that --help shows}; None = --help shows all flags.
      implied: function that returns the recipe for a call that names none, or None, given the
        script and the names of the flags that the user has set.
      in_program: whether a program that uses the library makes the call: it has no --help, and its
        messages are logged.
    """
    values = absl_flags.FlagValues()
    defaults = defaults or {}
    fields = fields_of(*classes)
    foreign = aliases.ALIASES.get(script, {})
    flags_end = argv.index("--") if "--" in argv else len(argv)
    help_flag = next((argument for argument in argv[1:flags_end] if argument in HELP), None)
    if help_flag is not None and not in_program:
        text = help_text.text(
            os.path.basename(argv[0]),
            summary,
            [name_commands(line) for line in example],
            classes,
            defaults,
            positionals=positionals,
            main=main,
            aliases=foreign,
            is_full=help_flag == "--helpfull",
        )
        console.answer(name_commands(text))
        raise SystemExit(0)
    for field in fields.values():
        define(field, values, defaults.get(field.name, field.default))
    switches = {name: value_type(field)[0] is bool for name, field in fields.items()}
    reader = arguments.Reader(
        switches,
        foreign | own_aliases(fields),
        positionals is not None,
        script,
        f"help(bert_gpu.{argv[0]})" if in_program else "--helpfull",
        {name: defaults.get(name, field.default) for name, field in fields.items()},
    )
    user_flags, texts = reader.read(argv[1:])
    for flag in user_flags:
        try:
            values([argv[0], flag.argument])
        except absl_flags.Error as error:
            raise UserError(
                f"{flag.alias_text or flag.argument}: {form_of(fields[flag.name])}",
                where=flag.place.where,
            ) from error
    return Parsed(values, classes, defaults, texts, script, user_flags, implied, in_program)


HELP = ("--help", "-h", "-help", "--helpfull")


def own_aliases(fields: Mapping[str, dataclasses.Field]) -> dict[str, aliases.Alias]:
    """Return {other name: Alias} for the other names of our own flags, which the settings fields
    list.
    """
    return {
        alias: aliases.Alias(alias, (), (), flag=name, is_switch=value_type(field)[0] is bool)
        for name, field in fields.items()
        for alias in field.metadata["aliases"]
    }


def form_of(field: dataclasses.Field) -> str:
    """Return a phrase for a message on the form of the text of a field's value, such as "must be a
    number".
    """
    if field.metadata["unit"]:
        try:
            parse_time("", field.metadata["unit"])
        except ValueError as problem:
            return str(problem)
    forms = {bool: "true or false", int: "a whole number", float: "a number"}
    return f"must be {forms.get(value_type(field)[0], 'a list of texts, separated by commas')}"


class TimeParser(absl_flags.ArgumentParser):
    """An absl parser that turns times, such as 1h30m, into floats in `unit`, such as "hours"."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def parse(self, argument: str | float) -> float:
        return parse_time(argument, self.unit) if isinstance(argument, str) else argument


def define(field: dataclasses.Field, values: absl_flags.FlagValues, default: object) -> None:
    kind, _ = value_type(field)
    if field.metadata["unit"]:
        absl_flags.DEFINE(
            TimeParser(field.metadata["unit"]),
            field.name,
            default,
            field.metadata["help"],
            flag_values=values,
        )
        return
    makers = {
        bool: absl_flags.DEFINE_boolean,
        int: absl_flags.DEFINE_integer,
        float: absl_flags.DEFINE_float,
    }
    if field.metadata["words"]:
        kind = str
        default = None if default is None else str(default)
    make = makers.get(kind, absl_flags.DEFINE_list if kind is tuple else absl_flags.DEFINE_string)
    make(field.name, default, field.metadata["help"], flag_values=values)


def describe(parsed: Parsed, settings: Iterable[Settings]) -> str:
    """Return the resolved settings, one per line, with the source of each."""
    lines = [f"# {line}" for line in recipe_lines(parsed)]
    lines += [
        line_of(parsed, field, getattr(config, field.name))
        for config in settings
        for field in dataclasses.fields(config)
    ]
    return "\n".join(lines)


def recipe_lines(parsed: Parsed) -> list[str]:
    if parsed.recipe_name is None:
        return []
    recipe = rules.RECIPES[parsed.recipe_name]
    return [
        f"recipe {parsed.recipe_name}: {recipe.summary}",
        *(f"differs from its source: {text}" for text in recipe.differs.get(parsed.script, ())),
    ]


def line_of(parsed: Parsed, field: dataclasses.Field, value: object) -> str:
    if field.name in parsed.file_values and field.name not in parsed.sources:
        value, source = parsed.file_values[field.name]
    else:
        value = ",".join(value) if isinstance(value, tuple) else value
        source = source_of(parsed, field, value)
    return f"--{field.name}={value}  # {source}"


def source_of(parsed: Parsed, field: dataclasses.Field, value: object) -> str:
    """Return the source of a setting's value as text: the place of the user's flag, the recipe's
    source, "default" or "derived".
    """
    if field.name in parsed.sources:
        return parsed.sources[field.name].source
    recipe_value, source = parsed.recipe.get(field.name, (None, None))
    if source is not None and value == recipe_value:
        return f"recipe {parsed.recipe_name}: {source}"
    return "default" if value == parsed.defaults.get(field.name, field.default) else "derived"


def exit_code(main: Callable[[list[str]], object], argv: list[str]) -> int:
    """Run main(argv) and return the exit code of its result. Bad input and errors of files become
    one line on stderr and exit code 2.
    """
    try:
        with console.warnings_of_libraries(), answer_interrupts(console.warn):
            return code_of(main(argv))
    except UserError as error:
        return fail(str(error))
    except TrainingStopped as problem:
        if not problem.is_reported:
            console.warn(str(problem))
        if problem.ends_at_once:
            console.close_streams()
            os._exit(problem.exit_code)
        return problem.exit_code
    except OSError as error:
        return fail(f"{error.filename or 'a file'}: {error.strerror or error}; {CHECK_PATH}")
    except (KeyboardInterrupt, SystemError) as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):  # Numba's compiled functions wrap other errors in it
            cause = cause.__cause__
        if not isinstance(cause, KeyboardInterrupt):
            raise
        return 128 + signal.SIGINT
    except Exception as error:
        message = tensorflow_problem(error)
        if message is None:
            raise
        return fail(message)


def code_of(result: object) -> int:
    """Return the exit code of a command's result: the result if it is a number, 128 + the number of
    the signal that stopped the run, else 0. Prints a result that is text.
    """
    if isinstance(result, int):
        return result
    if isinstance(result, str):
        console.answer(result)
    signum = getattr(result, "signal", None)
    return 0 if signum is None else 128 + signum


CHECK_PATH = "check the path, its permissions and the space on the disk"


def tensorflow_problem(error: Any) -> str | None:
    """Return a message, with a remedy, for an error of TensorFlow's that the user can mend; None
    for other errors. Does not import TensorFlow.
    """
    kinds = [
        kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("tensorflow.")
    ]
    if "ResourceExhaustedError" in kinds:
        return (
            "out of memory: lower --train_batch_size and raise --gradient_accumulation_steps; in a "
            f"validation lower --eval_batch_size ({error.message})"
        )
    if {"NotFoundError", "PermissionDeniedError", "FailedPreconditionError"} & set(kinds):
        return f"{error.message}; {CHECK_PATH}"
    if "UnimplementedError" in kinds and "File system scheme" in error.message:
        return f"{error.message}; give a path on a local or mounted file system"
    return None


def fail(message: str) -> int:
    """Print one line of at most 300 characters to stderr; return the exit code of bad input."""
    console.print_to(sys.stderr, one_line(name_commands(message)))
    return 2
