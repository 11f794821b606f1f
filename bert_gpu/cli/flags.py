"""absl flags made from settings classes, and settings made from flags; exit codes.

Each field of a settings class becomes a flag of the same name. Values that the user gave are kept
apart from defaults, because they win over presets and recipes: command line > recipe > the
command's defaults > the settings class's.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys

from absl import flags as absl_flags

import bert_gpu
from bert_gpu.base import console
from bert_gpu.base.environment import quick_imports
from bert_gpu.base.errors import TrainingStopped, UserError, one_line
from bert_gpu.base.settings import Settings, fields_of, parse_time, setting, value_type
from bert_gpu.base.signals import answer_interrupts
from bert_gpu.cli import aliases, arguments, flagfile, help_text, quick
from bert_gpu.model.config import ModelConfig
from bert_gpu.recipes import rules

PACKAGE = pathlib.Path(bert_gpu.__file__).resolve().parent
# what stands for each script where there is only the package
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
    save_config: str | None = setting(
        None,
        "Write the flags of this call to a file, for --flagfile, and go on; with --show_config, "
        "exit. What concerns one call alone, such as --overwrite and --quiet, is left out.",
    )
    overwrite: bool = setting(
        False, "Remove an earlier run from the output folder and start again."
    )
    quiet: bool = setting(False, "Print warnings and errors only.")


def bundled(name):
    """Path of a file that comes with bert_gpu: a wheel has it in the package's bundled/ (setup.py),
    a clone beside the package. Just its name when it is in neither.
    """
    places = (PACKAGE / "bundled" / name, PACKAGE.parent / name)
    path = next((path for path in places if path.exists()), None)
    if path is None:
        return name
    return os.path.relpath(path) if path.is_relative_to(pathlib.Path.cwd()) else str(path)


def name_commands(text):
    """Text in which the scripts that a wheel does not have are called bert-gpu COMMAND."""
    for script, command in COMMANDS.items():
        if not (PACKAGE.parent / script).exists():
            text = text.replace(f"python {script}", command).replace(script, command)
    return text


class Parsed:
    """The parsed flags of one call. positionals: the arguments that are not flags. in_program:
    whether a program makes the call.

    script: the command's name in recipes. recipe_name: that of --recipe, or None. phase: that of
    --phase, None where the recipe has none. is_implied: whether the user has named no recipe.
    recipe: {flag: (value, source)} that both set where the user did not. sources: {flag:
    arguments.Given} of the flags that the user gave. adopted: {flag: (value, source)} of what a
    command takes from a file, for --show_config and --save_config.
    """

    def __init__(
        self, values, classes, defaults, positionals, script, given, implied=None, in_program=False
    ):
        self.in_program = in_program
        # makes the context in which a command imports TensorFlow
        self.imports = contextlib.nullcontext if in_program else quick_imports
        self.values, self.classes, self.defaults, self.positionals = (
            values,
            classes,
            defaults,
            positionals,
        )
        self.sources, self.adopted = {flag.name: flag for flag in given}, {}
        self.script, self.recipe, self.phase, self.warned = script, {}, None, set()
        chosen, self.is_implied = None if script is None else self.make(rules.RecipeConfig), False
        self.recipe_name = chosen and chosen.recipe
        if self.recipe_name is None and implied is not None:
            self.recipe_name = implied(script, list(self.sources))
            self.is_implied = self.recipe_name is not None
        if self.recipe_name is not None:
            given = {
                flag: value for kind in classes for flag, value in self.given_values(kind).items()
            }
            self.phase = chosen.phase if rules.RECIPES[self.recipe_name].phases else None
            self.recipe = rules.resolve(self.recipe_name, script, given, self.phase)

    def given(self, name):
        """Whether the user gave the flag."""
        return bool(self.values[name].present)

    def given_values(self, kind):
        """{field: value} of the fields of a settings class that the user gave."""
        return {
            field.name: self._value(field)
            for field in dataclasses.fields(kind)
            if self.given(field.name)
        }

    def overrides(self, kind):
        """{field: value} of the fields of a settings class that the user or the recipe sets."""
        chosen = {
            field.name: self.recipe[field.name][0]
            for field in dataclasses.fields(kind)
            if field.name in self.recipe
        }
        return chosen | self.given_values(kind)

    def make(self, kind, **defaults):
        """Settings of a class: each value from the user, else the recipe, else `defaults`, else the
        command's defaults, else the class.
        """
        ours = {
            field.name: self.defaults[field.name]
            for field in dataclasses.fields(kind)
            if field.name in self.defaults and not any(map(self.given, field.metadata["instead"]))
        }
        with self.naming_origins():
            made = kind(**ours | defaults | self.overrides(kind))
        for name in self.given_values(kind):
            problem = made.without_effect(name)
            if problem and problem not in self.warned:
                self.warned.add(problem)
                console.warn(problem)
        return made

    @contextlib.contextmanager
    def naming_origins(self):
        """Says in errors about a setting where its value comes from, if that is the recipe, a
        flagfile or a flag of another name.
        """
        try:
            yield
        except UserError as error:
            error.origin = error.origin or self.origin_of(error)
            raise

    def origin_of(self, error: UserError) -> str | None:
        """What gave the settings of an error their values; None for the command line, a default or
        no settings.
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
        """The flag of the recipe that a setting follows from, such as its model for the model's
        hidden_size; None where the user or a default decides.
        """
        if name in self.recipe:
            return None if self.given(name) else name
        is_models = name in fields_of(ModelConfig) and not self.given(name)
        return "model" if is_models and "model" in self.recipe and not self.given("model") else None

    def console(self, quiet):
        """A Console, in a program a LogConsole, whose warnings that are UserErrors say where their
        setting comes from. Its first line tells of a recipe that the user has not named.
        """
        kind = console.LogConsole if self.in_program else console.Console
        made = kind(quiet, origin_of=self.origin_of)
        if self.is_implied:
            made.say(quick.SAID)
        return made

    def save_config(self, path, configs):
        """Writes the flags of this call to a file, for --flagfile. configs: Settings objects whose
        other values it tells in comments. An implied recipe is written as a flag, because the call
        would lose it with the first flag that is added.
        """
        implied = [as_flag("recipe", self.recipe_name)] if self.is_implied else []
        given = implied + [
            flag.argument for flag in self.sources.values() if flag.name not in flagfile.NOT_SAVED
        ]
        recipe = [] if self.recipe_name is None else recipe_lines(self)
        others = [
            line_of(self, field, getattr(config, field.name))
            for config in configs
            for field in dataclasses.fields(config)
            if field.name not in self.sources.keys() | flagfile.NOT_SAVED
            and getattr(config, field.name) not in (None, ())
        ]
        flagfile.save(path, aliases.SCRIPTS[self.script], given, recipe + others)

    def _value(self, field):
        value = self.values[field.name].value
        if field.metadata["words"] and value not in field.metadata["words"]:
            try:
                return value_type(field)[0](value)
            except ValueError:
                return value  # the settings class reports the error
        return tuple(value) if value_type(field)[0] is tuple else value


def as_flag(name, value):
    """A setting as on the command line."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={','.join(value) if isinstance(value, tuple) else value}"


def parse(
    argv,
    summary,
    example,
    classes,
    *,
    defaults=None,
    positionals=None,
    script=None,
    main=None,
    implied=None,
    in_program=False,
):
    """Parses a command line.

    Args:
      argv: with the program's name first. summary: what the command does. example: lines
        shown by --help.
      classes: settings classes, in the order in which --helpfull shows them.
      defaults: {field: value} where this command's default differs from the settings class's.
      positionals: how --help shows arguments that are not flags, such as "TEXT"; None refuses them.
      script: this command's name in recipes and aliases, if its classes include
        recipes.RecipeConfig; None = neither.
      main: {topic: names of the flags that --help shows}; None = it shows all.
      implied: function of (script, names of the flags given) -> the recipe of a call that names
        none, or None.
      in_program: whether a program makes the call, which has other help and goes on afterwards.

    Returns: Parsed. Prints the help and raises SystemExit(0) for --help and --helpfull. Raises
      UserError for bad flags.
    """
    values, defaults, fields = absl_flags.FlagValues(), defaults or {}, fields_of(*classes)
    foreign = aliases.ALIASES.get(script, {})
    flags_end = argv.index("--") if "--" in argv else len(argv)
    wanted = next((argument for argument in argv[1:flags_end] if argument in HELP), None)
    if wanted is not None and not in_program:
        text = help_text.text(
            os.path.basename(argv[0]),
            summary,
            [name_commands(line) for line in example],
            classes,
            defaults,
            positionals=positionals,
            main=main,
            aliases=foreign,
            is_full=wanted == "--helpfull",
        )
        console.answer(name_commands(text))
        raise SystemExit(0)
    for field in fields.values():
        define(field, values, defaults.get(field.name, field.default))
    switches = {name: value_type(field)[0] is bool for name, field in fields.items()}
    listing = f"help(bert_gpu.{argv[0]})" if in_program else "--helpfull"
    reader = arguments.Reader(
        switches, foreign | own_aliases(fields), positionals is not None, script, listing
    )
    given, rest = reader.read(argv[1:])
    for flag in given:
        try:
            values([argv[0], flag.argument])
        except absl_flags.Error as error:
            raise UserError(
                f"{flag.said or flag.argument}: {form_of(fields[flag.name])}",
                where=flag.place.where,
            ) from error
    return Parsed(values, classes, defaults, rest, script, given, implied, in_program)


HELP = ("--help", "-h", "-help", "--helpfull")


def own_aliases(fields):
    """{name: Alias} of the other names that flags have of their own. fields: {name: field}."""
    return {
        alias: aliases.Alias(alias, (), (), flag=name, is_switch=value_type(field)[0] is bool)
        for name, field in fields.items()
        for alias in field.metadata["aliases"]
    }


def form_of(field):
    """What the text of a field's value must be."""
    if field.metadata["unit"]:
        try:
            parse_time("", field.metadata["unit"])
        except ValueError as problem:
            return str(problem)
    forms = {bool: "true or false", int: "a whole number", float: "a number"}
    return f"must be {forms.get(value_type(field)[0], 'a list of texts, separated by commas')}"


class TimeParser(absl_flags.ArgumentParser):
    """Parses times, such as 1h30m, into floats in a unit."""

    def __init__(self, unit):
        super().__init__()
        self.unit = unit

    def parse(self, argument):
        return parse_time(argument, self.unit) if isinstance(argument, str) else argument


def define(field, values, default):
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
        kind, default = str, None if default is None else str(default)
    make = makers.get(kind, absl_flags.DEFINE_list if kind is tuple else absl_flags.DEFINE_string)
    make(field.name, default, field.metadata["help"], flag_values=values)


def describe(parsed, settings):
    """The resolved settings, one per line, with the source of each. settings: Settings objects."""
    lines = [] if parsed.recipe_name is None else [f"# {line}" for line in recipe_lines(parsed)]
    lines += [
        line_of(parsed, field, getattr(config, field.name))
        for config in settings
        for field in dataclasses.fields(config)
    ]
    return "\n".join(lines)


def recipe_lines(parsed):
    recipe = rules.RECIPES[parsed.recipe_name]
    differs = recipe.differs.get(parsed.script, ())
    return [
        f"recipe {parsed.recipe_name}: {recipe.summary}",
        *(f"differs from its source: {text}" for text in differs),
    ]


def line_of(parsed, field, value):
    if field.name in parsed.adopted and field.name not in parsed.sources:
        value, source = parsed.adopted[field.name]
    else:
        value = ",".join(value) if isinstance(value, tuple) else value
        source = source_of(parsed, field, value)
    return f"--{field.name}={value}  # {source}"


def source_of(parsed, field, value):
    """The source of a setting's value."""
    if field.name in parsed.sources:
        return parsed.sources[field.name].source
    chosen, source = parsed.recipe.get(field.name, (None, None))
    if source is not None and value == chosen:
        return f"recipe {parsed.recipe_name}: {source}"
    return "default" if value == parsed.defaults.get(field.name, field.default) else "derived"


def exit_code(main, argv):
    """Runs main(argv) and returns `code_of` its result; turns bad input and file errors into one
    line on stderr and exit code 2.
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
        cause = error
        while isinstance(cause, SystemError):  # of Numba's compiled functions
            cause = cause.__cause__
        if not isinstance(cause, KeyboardInterrupt):
            raise
        return 128 + signal.SIGINT
    except Exception as error:
        problem = tensorflow_problem(error)
        if problem is None:
            raise
        return fail(problem)


def code_of(result: object) -> int:
    """The exit code of a command's result: the result itself, or 128 + the signal that stopped a
    run, else 0. Prints a result that is text.
    """
    if isinstance(result, int):
        return result
    if isinstance(result, str):
        console.answer(result)
    signum = getattr(result, "signal", None)
    return 0 if signum is None else 128 + signum


CHECK_PATH = "check the path, its permissions and the space on the disk"


def tensorflow_problem(error):
    """One line on what to do about an error of TensorFlow's; None for other errors. Does not import
    TensorFlow.
    """
    kinds = [
        kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("tensorflow.")
    ]
    if "ResourceExhaustedError" in kinds:
        return (
            "out of memory: lower --train_batch_size and raise "
            f"--gradient_accumulation_steps ({error.message})"
        )
    if {"NotFoundError", "PermissionDeniedError", "FailedPreconditionError"} & set(kinds):
        return f"{error.message}; {CHECK_PATH}"
    if "UnimplementedError" in kinds and "File system scheme" in error.message:
        return f"{error.message}; give a path on a local or mounted file system"
    return None


def fail(message):
    """Prints one line of at most 300 characters to stderr; returns the exit code of bad input."""
    console.print_to(sys.stderr, one_line(name_commands(message)))
    return 2
