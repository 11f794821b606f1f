"""The sink of Weights & Biases (--wandb_project)."""

import os
import secrets
from collections.abc import Mapping
from types import ModuleType

from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import write_text
from bert_gpu.base.run_names import WANDB
from bert_gpu.monitor.sinks.interface import Sink


class WeightsAndBiases(Sink):
    """The sink that writes to one run of Weights & Biases (--wandb_project).
    OUTPUT_DIR/wandb/run_id.txt holds the run's id, so that a resumed run keeps it.

    Weights & Biases deletes nothing, and its own step never decreases. So the x-axis is a metric,
    "step": after a resume or a rollback the steps since the restored checkpoint appear a second
    time, and none is lost. Offline runs stay in OUTPUT_DIR/wandb until `wandb sync`; a resumed one
    has several folders with one id.

    Args of the constructor: path: OUTPUT_DIR. settings: {setting: value}, shown with the run.
    """

    def __init__(self, path: str, project: str, settings: Mapping[str, object]) -> None:
        wandb = check_wandb(project)
        folder = os.path.join(path, WANDB)
        os.makedirs(folder, exist_ok=True)
        self.id = stored_id(os.path.join(folder, "run_id.txt"))
        try:
            self.run = wandb.init(
                project=project,
                id=self.id,
                name=os.path.basename(os.path.abspath(path)),
                dir=path,
                mode=mode(),
                resume="allow" if mode() == "online" else None,
                config=settings,
                allow_val_change=True,
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.Error, ValueError) as error:
            if is_network(error):  # the caller continues without this sink
                raise
            raise cannot_start(project, error) from error
        self.row = self.run.step - 1  # the last row's step as Weights & Biases counts
        self.step: int | None = None  # the training step of the last row
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        if step != self.step:
            self.row = max(step, self.row + 1)
            self.step = step
        self.run.log(
            {"step": step} | {name: value for name, value in values.items() if value is not None},
            step=self.row,
        )

    def cut(self, step: int) -> None:
        """Keep the rows that were sent, because they cannot be deleted; steps after a rollback get
        new rows.
        """
        self.step = None

    def close(self) -> None:
        self.run.finish(exit_code=0 if self.is_complete else 1)  # shown as finished or failed


def mode() -> str:
    """Return the mode that the environment sets: online, offline (runs stay on this machine) or
    another mode of Weights & Biases.
    """
    return os.environ.get("WANDB_MODE", "online")


def check_wandb(project: str) -> ModuleType:
    """Return the module wandb, logged in when it is online (on a terminal it prompts for the key).
    Raises UserError when the package or the key is missing.
    """
    if mode() == "offline":  # otherwise wandb sends usage statistics
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    remedy = "pip install 'bert-gpu[wandb]', or leave it out"
    wandb = import_extra("wandb", f"--wandb_project={project}", remedy)
    if mode() == "online":
        try:
            wandb.login()
        except wandb.Error as error:
            raise cannot_start(project, error) from error
    return wandb


def is_network(error: Exception) -> bool:
    """Return whether the error means that Weights & Biases cannot be reached, not that the key or a
    setting is wrong.
    """
    from wandb import errors

    return isinstance(error, errors.CommError) and not isinstance(error, errors.AuthenticationError)


def cannot_start(project: str, error: Exception) -> UserError:
    return UserError(
        f"Weights & Biases cannot start ({' '.join(str(error).split())[:120]})",
        "run `wandb login`, or set WANDB_MODE=offline",
        setting="wandb_project",
        value=project,
    )


def stored_id(path: str) -> str:
    """Return the run's id in the file `path`; a missing file is created, with a random id."""
    if not os.path.exists(path):
        write_text(path, secrets.token_hex(4) + "\n")
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
